#include "kernels/table_resource.h"

#include <utility>
#include <vector>

#include "tensorflow/core/framework/tensor.h"

namespace sok {

namespace tf = tensorflow;

int64_t OpenTable::MemoryUsed() const {
  const TableStats stats = table_->Stats();
  return static_cast<int64_t>(stats.index_bytes + stats.row_bytes);
}

absl::Status OpenTable::CheckProcess() const {
  return storage_ == nullptr ? absl::OkStatus() : ToAbsl(storage_->CheckProcess(), name_);
}

void OpenTable::NoteKeysToCome(std::vector<Key> keys) {
  constexpr size_t kMostCalls = 4;
  std::lock_guard<std::mutex> guard(mu_);
  if (keys_to_come_.size() == kMostCalls) keys_to_come_.pop_front();
  keys_to_come_.push_back(std::move(keys));
}

absl::Status GetTable(tf::OpKernelContext* ctx, std::shared_ptr<OpenTable>* table) {
  TF_RETURN_IF_ERROR(ExpectScalar(ctx->input(0), "table"));
  TF_RETURN_IF_ERROR(GetContent(ctx, tf::HandleFromInput(ctx, 0), table));
  return (*table)->CheckProcess();
}

std::shared_ptr<const void> Hold(const tf::Tensor& tensor) {
  return std::make_shared<const tf::Tensor>(tensor);
}

absl::Status CountsOf(tf::OpKernelContext* ctx, int inputs, const tf::Tensor& keys,
                      const int64_t** counts) {
  if (ctx->num_inputs() <= inputs) return absl::OkStatus();
  const tf::Tensor& given = ctx->input(inputs);
  if (ctx->num_inputs() > inputs + 1 || given.shape() != keys.shape()) {
    return absl::InvalidArgumentError("expected counts of the shape of the keys, " +
                                      keys.shape().DebugString() + ", got shape " +
                                      given.shape().DebugString());
  }
  *counts = static_cast<const int64_t*>(given.data());
  return absl::OkStatus();
}

void LogOnHost(const std::string& table_name, int gpu, const Status& reason) {
  LOG(WARNING) << "table '" << table_name << "': expected GPU " << gpu
               << ", in whose memory the saved model has the rows, got a machine without it; the "
                  "rows lie in the host's memory. The reason: "
               << reason.message();
}

void LogLeftOut(const CommitOutcome& outcome, const std::string& table_name) {
  if (!outcome.first_left_out) return;
  LOG(WARNING)
      << "table '" << table_name << "': a step has dropped the gradients of " << outcome.left_out
      << " keys without a row, since the table is full, and not enough of its rows may go. "
         "stats()[\"left_out\"] counts such keys from now on. Raise max_rows, or make "
         "batches smaller";
}

LookupKeys KeysOf(const tf::Tensor& keys) {
  LookupKeys out;
  out.n = static_cast<size_t>(keys.NumElements());
  if (keys.dtype() != tf::DT_INT32) {
    out.hold = Hold(keys);
    out.keys = static_cast<const Key*>(keys.data());
    return out;
  }
  auto wide = std::make_shared<std::vector<Key>>(out.n);
  const auto narrow = keys.flat<int32_t>();
  for (size_t i = 0; i < out.n; ++i) {
    (*wide)[i] = static_cast<Key>(static_cast<int64_t>(narrow(i)));
  }
  out.keys = wide->data();
  out.hold = std::move(wide);
  return out;
}

}  // namespace sok
