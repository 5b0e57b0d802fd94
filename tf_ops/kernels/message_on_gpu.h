// Messages of rows in the memory of a GPU, and the same rows by table.
#pragma once

#include <vector>

#include "core/collection/row_messages.h"
#include "core/gpu/device.h"
#include "kernels/pooled_on_gpu.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace sok {

// The rows of each table one after the other, in memory of their own with the alignment that
// kernels need. If the message has one table, its own memory may serve.
class RowsByTable {
 public:
  // `message` may be written to through this.
  RowsByTable(const RowSegments& segments, const tensorflow::Tensor& message)
      : segments_(segments),
        message_(message),
        is_message_(segments.tables() == 1 && segments.is_by_table()) {}

  absl::Status Allocate(tensorflow::OpKernelContext* ctx) {
    if (is_message_) return absl::OkStatus();
    rows_.resize(segments_.tables());
    for (size_t table = 0; table < rows_.size(); ++table) {
      if (segments_.rows(table) == 0) continue;
      const auto rows = static_cast<int64_t>(segments_.rows(table));
      TF_RETURN_IF_ERROR(
          ctx->allocate_temp(tensorflow::DT_FLOAT, {rows, segments_.dim(table)}, &rows_[table]));
    }
    return absl::OkStatus();
  }

  // Copy rows from the message, or to all their places in it, after the earlier work on a stream.
  Status FromMessage(const gpu::Device& device, void* stream) const {
    return Copy(device, stream, /*to_message=*/false);
  }
  Status ToMessage(const gpu::Device& device, void* stream) const {
    return Copy(device, stream, /*to_message=*/true);
  }

  gpu::DeviceAddress address(size_t table) const {
    return AddressOf(is_message_ ? message_ : rows_[table]);
  }
  // Adds the tensors that keep the rows alive.
  void Hold(std::vector<tensorflow::Tensor>* held) const {
    held->push_back(message_);
    held->insert(held->end(), rows_.begin(), rows_.end());
  }

 private:
  Status Copy(const gpu::Device& device, void* stream, bool to_message) const {
    if (is_message_) return Status();
    for (const RowSegments::Piece& piece : segments_.Pieces()) {
      const gpu::DeviceAddress in_table = address(piece.table) + piece.in_table * sizeof(float);
      const gpu::DeviceAddress in_message = AddressOf(message_) + piece.in_message * sizeof(float);
      Status status =
          device.CopyWithin(to_message ? in_message : in_table, to_message ? in_table : in_message,
                            piece.floats * sizeof(float), stream);
      if (!status.ok()) return status;
    }
    return Status();
  }

  const RowSegments& segments_;
  const tensorflow::Tensor message_;
  const bool is_message_;
  std::vector<tensorflow::Tensor> rows_;  // (tables)
};

}  // namespace sok
