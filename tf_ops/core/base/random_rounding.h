// Rounds float32 to fewer bits at random: up with a probability that is the distance from the
// number below, so that the mean of many roundings is the number itself. Steps of training that are
// smaller than half of the last bit would be lost otherwise. The draws are a function of a row's
// state and of the place in the row, so every thread and every worker rounds alike.
//
// The functions have no branches, so that loops over them vectorise, and they depend on no
// subnormal float32: TensorFlow's threads treat subnormal numbers as 0.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/base/bfloat16.h"
#include "core/base/float16.h"
#include "core/base/hash.h"

namespace sok {

// The random numbers of one row and one rounding of it.
class RoundingDraws {
 public:
  explicit RoundingDraws(uint64_t state)
      : low_(static_cast<uint32_t>(state)), high_(static_cast<uint32_t>(state >> 32)) {}

  // Returns 32 bits for place j. The constants come from "lowbias32" by C. Wellons.
  uint32_t operator()(uint32_t j) const {
    uint32_t x = low_ + j * 0x9e3779b9u;
    x ^= x >> 16;
    x *= 0x21f0aaadu;
    x ^= high_;
    x ^= x >> 15;
    x *= 0x735a2d97u;
    return x ^ (x >> 15);
  }

 private:
  uint32_t low_, high_;
};

inline BFloat16 RandomBFloat16(float x, uint32_t draw) {
  const uint32_t bits = float16_internal::BitsOf(x);
  const uint32_t rounded = (bits + (draw >> 16)) >> 16;  // an infinity stays
  return {static_cast<uint16_t>(x != x ? (bits >> 16) | 0x0040u : rounded)};
}

// Rounds to nearest beyond the largest float16, as FromFloat<Float16> does.
inline Float16 RandomFloat16(float x, uint32_t draw) {
  using float16_internal::BitsOf, float16_internal::FloatOf;
  constexpr uint32_t kLargest = ((127u + 15u) << 23) | (0x3ffu << 13);  // 65504
  constexpr uint32_t kLeastInfinite = kLargest + 0x1000u;               // 65520
  constexpr uint32_t kLeastNormal = (127u - 14u) << 23;                 // 2^-14
  const uint32_t all = BitsOf(x);
  const uint32_t bits = all & 0x7fffffffu;
  const uint32_t normal = (bits - ((127u - 15u) << 23) + (draw >> 19)) >> 13;
  // In units of the smallest float16. The sum is exact, so that a multiple of the unit stays
  // unchanged.
  const float units = FloatOf(bits < kLeastNormal ? bits : 0u) * 0x1p24f;
  const float share = (static_cast<float>(static_cast<int32_t>(draw >> 19)) + 0.5f) * 0x1p-13f;
  const auto subnormal = static_cast<uint32_t>(static_cast<int32_t>(units + share));
  uint32_t half = bits < kLeastNormal ? subnormal : normal;
  half = bits > kLargest ? 0x7bffu : half;
  half = bits >= kLeastInfinite ? 0x7c00u : half;
  half = bits > 0x7f800000u ? 0x7e00u : half;
  return {static_cast<uint16_t>(half | (all & 0x80000000u) >> 16)};
}

}  // namespace sok
