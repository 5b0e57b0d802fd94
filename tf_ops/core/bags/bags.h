// Bags of ids, and how a bag's elements become one vector.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/bfloat16.h"
#include "core/base/float16.h"
#include "core/base/status.h"
#include "core/base/types.h"

namespace sok {

enum class BagMode { kSum, kMean, kMax };

// "sum", "mean" or "max".
Result<BagMode> BagModeNamed(const std::string& name);

// Entry e of bag b is ids[e], for e in [splits[b], splits[b + 1]).
struct Bags {
  const int64_t* ids = nullptr;     // (splits[bags]) in [0, num_embeddings)
  const int64_t* splits = nullptr;  // (bags + 1) non-decreasing from 0
  int64_t bags = 0;
  int64_t padding = -1;  // the id whose entries take no part, or -1

  int64_t entries() const { return splits[bags]; }
  bool padded(int64_t entry) const { return ids[entry] == padding; }
  // Returns how many entries of a bag take part.
  int64_t Count(int64_t bag) const {
    int64_t count = splits[bag + 1] - splits[bag];
    if (padding < 0) return count;
    for (int64_t e = splits[bag]; e < splits[bag + 1]; ++e) count -= padded(e);
    return count;
  }
};

// Returns the splits of `entries` ids into bags.
//   offsets (n): where each bag begins; with ends, one more that says where the last one ends.
// kInvalidArgument unless they begin with 0, do not decrease, and lie within the entries; with
// ends, the last must be the number of entries.
template <typename Index>  // int32_t or int64_t
Result<std::vector<int64_t>> SplitsOfOffsets(const Index* offsets, int64_t n, int64_t entries,
                                             bool ends);

// Fills the splits of entries that are sorted by row.
//   rows (n): in [0, num_rows), non-decreasing; kInvalidArgument if they are not.
//   splits (num_rows + 1)
Status SplitsOfRows(const int64_t* rows, int64_t n, int64_t num_rows, int64_t* splits);

// kInvalidArgument for an id outside of [0, num_embeddings), naming the first one.
Status CheckIds(const int64_t* ids, int64_t n, int64_t num_embeddings,
                const ParallelFor& parallel_for);

// The type that a sum of T is computed in.
template <typename T>
struct SumOf {
  using type = float;
};
template <>
struct SumOf<double> {
  using type = double;
};

// Widen converts an element of the weight to the type of its sums, and Narrow converts a sum to the
// type of the output.
inline double Widen(double x) { return x; }
inline float Widen(float x) { return x; }
inline float Widen(BFloat16 x) { return ToFloat(x); }
inline float Widen(Float16 x) { return ToFloat(x); }

template <typename Out, typename Sum>
Out Narrow(Sum x) {
  return FromFloat<Out>(x);
}
template <>
inline double Narrow<double, double>(double x) {
  return x;
}

}  // namespace sok
