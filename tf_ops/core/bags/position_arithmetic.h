// The arithmetic of a PositionMap, for the host and for a GPU, which read its numbers byte for
// byte. The formulas stand in position_map.h.
#pragma once

#include <cstdint>

#include "core/base/hash.h"
#include "core/base/remainder.h"

namespace sok {

enum class PositionHash { kMixed, kOriginal, kModulo };

struct PositionArithmetic {
  static constexpr uint64_t kGolden = 0x9e3779b97f4a7c15ull;
  static constexpr uint64_t kSignSalt = 0xd1b54a32d192ed03ull;

  // Returns what the hashes of an id begin with.
  uint64_t KeyOf(uint64_t id) const { return Mix64(id ^ seed_key); }

  static uint64_t SignWord(uint64_t key, int word) {
    return Mix64((key ^ kSignSalt) + (static_cast<uint64_t>(word) + 1) * kGolden);
  }

  // Returns x % size. x is below 2 * size, or any number where a block is longer than the weight.
  uint64_t Wrap(uint64_t x) const {
    if (x < size) return x;
    return x - size < size ? x - size : remainder(x);
  }

  static uint64_t Original(uint64_t id, uint64_t k) {
    constexpr uint64_t kIdFactor = 9824516537ull;
    constexpr uint64_t kDimFactor = 57857966300227ull;
    constexpr uint64_t kTerm = 104729ull;
    constexpr uint64_t kPrime = 117130198221199ull;
    return (id * kIdFactor + k * kDimFactor + kTerm) % kPrime;
  }

  // Returns the position of the first element of a block. `key` is KeyOf(id).
  uint64_t Base(uint64_t id, uint64_t key, int k) const {
    const uint64_t block = static_cast<uint64_t>(k);
    if (hash == PositionHash::kMixed) return MulHi(Mix64(key + (block + 1) * kGolden), size);
    if (hash == PositionHash::kOriginal) return remainder(Original(id, block));
    return remainder(id * static_cast<uint64_t>(dim) + block * static_cast<uint64_t>(block_size));
  }

  uint64_t Position(uint64_t id, uint64_t key, int d) const {
    const int k = d / block_size;
    return Wrap(Base(id, key, k) + static_cast<uint64_t>(d - k * block_size));
  }

  bool Minus(uint64_t key, int d) const {
    return sign && (SignWord(key, d / 64) >> (d % 64) & 1) != 0;
  }

  PositionHash hash;
  bool sign;
  int dim;
  int block_size;  // at most dim
  uint64_t seed_key;
  uint64_t size;
  Remainder remainder;  // divides by the size
};

}  // namespace sok
