// What a lookup hands to the deposit that belongs to it.
#pragma once

#include <memory>
#include <string>

#include "core/table.h"
#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/framework/variant_encode_decode.h"
#include "tensorflow/core/framework/variant_tensor_data.h"

namespace sok {

// The element of the variant tensor that SokEmbed>Lookup puts out. Two lookups never make equal
// receipts, so TensorFlow cannot merge two deposits into one.
struct Receipt {
  std::shared_ptr<Table> table;
  std::string table_name;
  LookupKeys keys;

  // A receipt has no meaning outside of its process.
  std::string TypeName() const { return "sok_embed::Receipt"; }
  void Encode(tensorflow::VariantTensorData*) const {}
  bool Decode(const tensorflow::VariantTensorData&) { return false; }
  std::string DebugString() const { return "receipt of a lookup in '" + table_name + "'"; }
};

}  // namespace sok
