// The parts that messages of keys and messages of rows are made of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/collection/placement.h"

namespace sok {

// Bytes of the text of an error that a worker sends to others; longer texts are cut.
inline constexpr size_t kMostText = 1024;

// Writes a text into words, and fills the last word up with zeros.
template <typename Word>
void PutText(std::string_view text, Word* words) {
  std::memcpy(words, text.data(), text.size());
}

template <typename Word>
constexpr size_t WordsOf(size_t bytes) {
  return (bytes + sizeof(Word) - 1) / sizeof(Word);
}

inline std::string NameOf(size_t worker) { return "worker " + std::to_string(worker); }

// Returns the sizes of segments as int32. `what` is their unit, for the message. Error:
// kInvalidArgument if a size does not fit.
inline Result<std::vector<int32_t>> AsSplits(const std::vector<size_t>& sizes, const char* what) {
  std::vector<int32_t> splits;
  for (size_t size : sizes) {
    if (size > size_t{INT32_MAX}) {
      return InvalidArgument("expected messages between workers of fewer than 2^31 " +
                             std::string(what) + ", got " + std::to_string(size) +
                             "; use a smaller batch");
    }
    splits.push_back(static_cast<int32_t>(size));
  }
  return splits;
}

// Returns, for each table, whether it lies on all workers.
inline std::vector<bool> OnAll(const std::vector<TablePlacement>& placements) {
  std::vector<bool> on_all;
  for (const TablePlacement& each : placements) {
    on_all.push_back(each.kind == TablePlacement::kOnAll);
  }
  return on_all;
}

}  // namespace sok
