// Finds the distinct keys of a batch and sorts them by their owner, and sums gradients by row. All
// functions are thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/base/types.h"

namespace sok {

// Returns the worker that holds a key: the key, as a signed number, modulo owners, rounded down, so
// that -1 belongs to the last worker.
inline uint32_t OwnerOf(Key key, uint32_t owners) {
  const int64_t remainder = static_cast<int64_t>(key) % static_cast<int64_t>(owners);
  return static_cast<uint32_t>(remainder < 0 ? remainder + owners : remainder);
}

struct Partition {
  std::vector<Key> keys;        // distinct, those of owner 0 first, in a fixed order
  std::vector<int32_t> splits;  // (owners) how many of the keys belong to each
};

// Finds the distinct keys. inverse (n) becomes positions: keys[i] == result.keys[inverse[i]]. n is
// below 2^31, owners is in [1, 65536]. The owner of a key is OwnerOf(key, owners).
Partition UniqueAndPartition(const Key* keys, size_t n, uint32_t owners, int32_t* inverse,
                             const ParallelFor& parallel_for);
// The same with another division of the keys: owner_of(key) is below owners.
Partition UniqueAndPartition(const Key* keys, size_t n, uint32_t owners,
                             const std::function<uint32_t(Key key)>& owner_of, int32_t* inverse,
                             const ParallelFor& parallel_for);

// Sums gradients (n, dim) by the row that each is of: sums (distinct, dim), each over the
// gradients[i] with inverse[i] equal to its position, in order of i and in float32.
template <typename T>
void SumByRow(const T* gradients, const int32_t* inverse, size_t n, size_t distinct, int dim,
              float* sums, const ParallelFor& parallel_for);

}  // namespace sok
