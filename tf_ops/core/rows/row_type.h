// The types that a table keeps its rows in.
#pragma once

#include <cstdint>
#include <string>

#include "core/base/status.h"

namespace sok {

enum class RowType : uint8_t { kFloat32, kBFloat16, kFloat16, kInt8, kFloat8E4M3 };

// The names of the types, by their numbers.
constexpr const char* kRowTypeNames[] = {"float32", "bfloat16", "float16", "int8", "float8_e4m3"};

inline const char* RowTypeName(RowType type) { return kRowTypeNames[static_cast<int>(type)]; }

// The form of a row in memory and in a storage. Rows are float32 everywhere else: in lookups, in
// the arithmetic of a step, in checkpoints and dumps.
struct RowForm {
  RowType row = RowType::kFloat32;    // of the embedding
  RowType slots = RowType::kFloat32;  // kFloat32 or kBFloat16
  // Seeds the draws by which a step is rounded. Tables of equal seeds round alike, on all workers.
  uint64_t seed = 0;

  bool plain() const { return row == RowType::kFloat32 && slots == RowType::kFloat32; }

  // Errors: kInvalidArgument for names that are not those of the types that rows and slots have.
  static Result<RowForm> Make(const std::string& row, const std::string& slots);
};

}  // namespace sok
