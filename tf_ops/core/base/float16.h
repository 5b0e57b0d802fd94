// The storage format of a float16 (IEEE 754 binary16), and conversions to float32 and back.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/base/bfloat16.h"

namespace sok {

struct Float16 {
  uint16_t bits;
};

namespace float16_internal {

inline float FloatOf(uint32_t bits) {
  float out;
  std::memcpy(&out, &bits, sizeof(out));
  return out;
}

inline uint32_t BitsOf(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

}  // namespace float16_internal

// This is exact. It uses no subnormal float32 in between: TensorFlow's threads treat subnormal
// numbers as 0.
inline float ToFloat(Float16 x) {
  using float16_internal::BitsOf, float16_internal::FloatOf;
  constexpr uint32_t kExponent = 0x7c00u << 13;  // all ones: infinity or NaN
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
  uint32_t bits = static_cast<uint32_t>(x.bits & 0x7fffu) << 13;
  const uint32_t exponent = bits & kExponent;
  bits += (127u - 15u) << 23;
  if (exponent == kExponent) {
    bits += (128u - 16u) << 23;
  } else if (exponent == 0) {  // 0 or subnormal: the leading 1 that was added goes again
    bits = BitsOf(FloatOf(bits + (1u << 23)) - FloatOf(113u << 23));
  }
  return FloatOf(bits | sign);
}

// Rounds to nearest, ties to even, as TensorFlow does; a number beyond the largest float16 becomes
// an infinity. A NaN stays a NaN.
template <>
inline Float16 FromFloat<Float16>(float x) {
  using float16_internal::BitsOf, float16_internal::FloatOf;
  constexpr uint32_t kOverflow = (127u + 16u) << 23;     // 2^16
  constexpr uint32_t kLeastNormal = (127u - 14u) << 23;  // 2^-14
  constexpr uint32_t kUnit = (127u - 1u) << 23;          // 0.5, whose last bit is 2^-24
  const uint32_t all = BitsOf(x);
  uint32_t bits = all & 0x7fffffffu;
  const auto sign = static_cast<uint16_t>((all & 0x80000000u) >> 16);
  uint32_t half;
  if (bits >= kOverflow) {
    half = bits > 0x7f800000u ? 0x7e00u : 0x7c00u;
  } else if (bits < kLeastNormal) {  // the sum rounds to multiples of the least float16
    half = BitsOf(FloatOf(bits) + FloatOf(kUnit)) - kUnit;
  } else {
    const uint32_t odd = (bits >> 13) & 1u;
    half = (bits - ((127u - 15u) << 23) + 0xfffu + odd) >> 13;
  }
  return {static_cast<uint16_t>(half | sign)};
}

}  // namespace sok
