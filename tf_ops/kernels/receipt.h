// What a lookup hands to the deposit that belongs to it.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "core/bfloat16.h"
#include "core/table.h"
#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/framework/variant_encode_decode.h"
#include "tensorflow/core/framework/variant_tensor_data.h"

namespace sok {

// The element of the variant tensor that a lookup puts out. Two lookups never make equal receipts,
// so TensorFlow cannot merge two deposits into one.
struct Receipt {
  std::string table_name;
  size_t n = 0;  // rows of the gradients
  int dim = 0;
  // Hands gradients (n, dim) over; exactly one of the pointers is set, and `hold` keeps it alive.
  std::function<void(std::shared_ptr<const void> hold, const float* gradients,
                     const BFloat16* gradients_bf16)>
      deposit;

  // A receipt has no meaning outside of its process.
  std::string TypeName() const { return "sok_embed::Receipt"; }
  void Encode(tensorflow::VariantTensorData*) const {}
  bool Decode(const tensorflow::VariantTensorData&) { return false; }
  std::string DebugString() const { return "receipt of a lookup in '" + table_name + "'"; }
};

// Of a lookup of n embeddings, for those of which that are gradients of `keys`.
inline Receipt ReceiptOf(const std::shared_ptr<Table>& table, const std::string& name, size_t n,
                         LookupKeys keys) {
  return {name, n, table->dim(),
          [table, keys = std::move(keys)](std::shared_ptr<const void> hold, const float* gradients,
                                          const BFloat16* gradients_bf16) {
            table->Deposit(keys, std::move(hold), gradients, gradients_bf16);
          }};
}

}  // namespace sok
