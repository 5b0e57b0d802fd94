// Random batches for tests that compare stores of rows with one another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "core/base/types.h"

namespace sok {

// Returns n keys of `places` places, by key_at(place): half of the batches have 20 or fewer
// different keys, so that some are full of duplicates.
template <typename KeyAt>
std::vector<Key> RandomKeys(size_t n, uint64_t places, const KeyAt& key_at, std::mt19937_64* rng) {
  const uint64_t distinct = (*rng)() % 2 == 0 ? 1 + (*rng)() % 20 : places;
  const uint64_t first = (*rng)() % (places - distinct + 1);
  std::vector<Key> keys(n);
  for (Key& key : keys) key = key_at(first + (*rng)() % distinct);
  return keys;
}

// Returns whole numbers of -8 to 8, whose sums are exact in any order.
inline std::vector<float> RandomIntegers(size_t n, std::mt19937_64* rng) {
  std::vector<float> values(n);
  for (float& x : values) x = static_cast<float>(static_cast<int>((*rng)() % 17) - 8);
  return values;
}

}  // namespace sok
