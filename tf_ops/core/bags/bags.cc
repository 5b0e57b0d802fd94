#include "core/bags/bags.h"

#include <algorithm>
#include <atomic>

namespace sok {

Result<BagMode> BagModeNamed(const std::string& name) {
  if (name == "sum") return BagMode::kSum;
  if (name == "mean") return BagMode::kMean;
  if (name == "max") return BagMode::kMax;
  return InvalidArgument("expected the mode sum, mean or max, got " + name);
}

template <typename Index>
Result<std::vector<int64_t>> SplitsOfOffsets(const Index* offsets, int64_t n, int64_t entries,
                                             bool ends) {
  if (ends && n == 0) {
    return InvalidArgument("expected at least one offset with include_last_offset, got none");
  }
  if (n > 0 && offsets[0] != 0) {
    return InvalidArgument("expected the first offset to be 0, got " + std::to_string(offsets[0]));
  }
  if (n == 0 && entries > 0) {
    return InvalidArgument("expected offsets that cover " + std::to_string(entries) +
                           " ids, got none");
  }
  for (int64_t i = 0; i < n; ++i) {
    if (i > 0 && offsets[i] < offsets[i - 1]) {
      return InvalidArgument("expected offsets that do not decrease, got " +
                             std::to_string(offsets[i]) + " after " +
                             std::to_string(offsets[i - 1]) + " at position " + std::to_string(i));
    }
    if (offsets[i] > entries) {
      return InvalidArgument("expected offsets of at most " + std::to_string(entries) +
                             ", the number of ids, got " + std::to_string(offsets[i]) +
                             " at position " + std::to_string(i));
    }
  }
  if (ends && offsets[n - 1] != entries) {
    return InvalidArgument("expected the last offset to be " + std::to_string(entries) +
                           ", the number of ids, with include_last_offset, got " +
                           std::to_string(offsets[n - 1]));
  }
  std::vector<int64_t> splits(offsets, offsets + n);
  if (!ends) splits.push_back(entries);
  return splits;
}

template Result<std::vector<int64_t>> SplitsOfOffsets(const int32_t*, int64_t, int64_t, bool);
template Result<std::vector<int64_t>> SplitsOfOffsets(const int64_t*, int64_t, int64_t, bool);

Status SplitsOfRows(const int64_t* rows, int64_t n, int64_t num_rows, int64_t* splits) {
  int64_t row = 0;  // the last row whose beginning is known
  splits[0] = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (rows[i] < 0 || rows[i] >= num_rows) {
      return InvalidArgument("expected rows in [0, " + std::to_string(num_rows) + "), got " +
                             std::to_string(rows[i]) + " at position " + std::to_string(i));
    }
    if (rows[i] < row) {
      return InvalidArgument("expected rows that do not decrease, got " + std::to_string(rows[i]) +
                             " after " + std::to_string(row) + " at position " + std::to_string(i));
    }
    while (row < rows[i]) splits[++row] = i;
  }
  while (row < num_rows) splits[++row] = n;
  return Status();
}

Status CheckIds(const int64_t* ids, int64_t n, int64_t num_embeddings,
                const ParallelFor& parallel_for) {
  const auto limit = static_cast<uint64_t>(num_embeddings);
  std::atomic<bool> bad{false};
  parallel_for(n, 1, [&](int64_t begin, int64_t end) {
    // Finds the largest id without a branch: a negative id is a large number here.
    uint64_t largest = 0;
    for (int64_t i = begin; i < end; ++i)
      largest = std::max(largest, static_cast<uint64_t>(ids[i]));
    if (largest >= limit) bad = true;
  });
  if (!bad) return Status();
  const int64_t* first =
      std::find_if(ids, ids + n, [&](int64_t id) { return static_cast<uint64_t>(id) >= limit; });
  return InvalidArgument("expected ids in [0, " + std::to_string(num_embeddings) + "), got " +
                         std::to_string(*first) + " at position " + std::to_string(first - ids));
}

}  // namespace sok
