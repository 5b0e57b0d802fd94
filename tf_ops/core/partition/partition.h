// Finds the distinct keys of a batch and sorts them by their owner, and sums gradients by row. All
// functions are thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/base/types.h"

namespace sok {

// Returns the worker that holds a key: the key, as a signed number, modulo owners as in Python, so
// that key -1 belongs to the last worker.
inline uint32_t OwnerOf(Key key, uint32_t owners) {
  const int64_t remainder = static_cast<int64_t>(key) % static_cast<int64_t>(owners);
  return static_cast<uint32_t>(remainder < 0 ? remainder + owners : remainder);
}

struct Partition {
  std::vector<Key> keys;        // distinct, sorted by owner, in a fixed order
  std::vector<int32_t> splits;  // (owners) number of keys of each owner
};

// Finds the distinct keys. inverse (n) becomes positions: keys[i] == result.keys[inverse[i]]. n
// must be below 2^31, owners in [1, 65536]. The owner of a key is OwnerOf(key, owners).
Partition UniqueAndPartition(const Key* keys, size_t n, uint32_t owners, int32_t* inverse,
                             const ParallelFor& parallel_for);
// The same with owners that the caller computes: owner_of(key) must be below owners.
Partition UniqueAndPartition(const Key* keys, size_t n, uint32_t owners,
                             const std::function<uint32_t(Key key)>& owner_of, int32_t* inverse,
                             const ParallelFor& parallel_for);

// Sums gradients (n, dim) by row: row r of sums (distinct, dim) is the sum of gradients[i] with
// inverse[i] == r, in order of i and in float32.
template <typename T>
void SumByRow(const T* gradients, const int32_t* inverse, size_t n, size_t distinct, int dim,
              float* sums, const ParallelFor& parallel_for);

}  // namespace sok
