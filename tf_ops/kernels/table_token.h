// A token stands for a table on a GPU. Handles of tables are on the CPU, and TensorFlow runs every
// op that takes one there, but a variant may go to another device.
#pragma once

#include <memory>
#include <string>

#include "kernels/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/framework/variant_tensor_data.h"

namespace sok {

struct TableToken {
  std::shared_ptr<OpenTable> table;

  std::string TypeName() const { return "sok_embed::TableToken"; }
  void Encode(tensorflow::VariantTensorData*) const {}
  bool Decode(const tensorflow::VariantTensorData&) { return false; }
  std::string DebugString() const { return "token of a table"; }
};

// Finds the table of a token, which must come from this process.
inline absl::Status GetTableOfToken(tensorflow::OpKernelContext* ctx, int input,
                                    std::shared_ptr<OpenTable>* table) {
  TF_RETURN_IF_ERROR(ExpectScalar(ctx->input(input), "token"));
  const auto* const token = ctx->input(input).scalar<tensorflow::Variant>()().get<TableToken>();
  if (token == nullptr || token->table == nullptr) {
    return absl::InvalidArgumentError("expected the token of a table of this process, got " +
                                      ctx->input(input).SummarizeValue(1));
  }
  *table = token->table;
  return absl::OkStatus();
}

}  // namespace sok
