// A receipt carries data from a lookup to the deposit of its gradients.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "core/base/bfloat16.h"
#include "core/tables/table.h"
#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/framework/variant_encode_decode.h"
#include "tensorflow/core/framework/variant_tensor_data.h"

namespace sok {

// The element of the variant tensor that a lookup returns.
struct Receipt {
  std::string table_name;
  size_t n = 0;  // rows of the gradients
  int dim = 0;
  // Deposits gradients (n, dim); exactly one of the pointers is set, and `hold` keeps it alive.
  // `number` is DepositOrder::gradient; see Table::Deposit for the anchor's gradient.
  using Deposit =
      std::function<Status(int64_t number, std::shared_ptr<const void> hold, const float* gradients,
                           const BFloat16* gradients_bf16, const AnchorGradient& anchor,
                           const ParallelFor& parallel_for)>;
  Deposit deposit = nullptr;
  // The error of a lookup for which other workers wait; such a receipt takes no gradients.
  Status failure = {};
  bool on_gpu = false;  // the gradients lie in the memory of a GPU

  // A receipt has no meaning outside of its process.
  std::string TypeName() const { return "sok_embed::Receipt"; }
  void Encode(tensorflow::VariantTensorData*) const {}
  bool Decode(const tensorflow::VariantTensorData&) { return false; }
  std::string DebugString() const { return "receipt of a lookup in '" + table_name + "'"; }
};

// Makes the receipt of a lookup of n embeddings, which takes the gradients of `keys`.
inline Receipt ReceiptOf(const std::shared_ptr<Table>& table, const std::string& name, size_t n,
                         LookupKeys keys) {
  Receipt receipt{name, n, table->dim()};
  receipt.on_gpu = keys.device.has_value();
  receipt.deposit = [table, keys = std::move(keys)](
                        int64_t number, std::shared_ptr<const void> hold, const float* gradients,
                        const BFloat16* gradients_bf16, const AnchorGradient& anchor,
                        const ParallelFor& parallel_for) {
    LookupKeys deposited = keys;
    deposited.order.gradient = number;
    return table->Deposit(std::move(deposited), std::move(hold), gradients, gradients_bf16, anchor,
                          parallel_for);
  };
  return receipt;
}

}  // namespace sok
