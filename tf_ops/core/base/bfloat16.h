// The storage format of a bfloat16: the upper half of a float32.
#pragma once

#include <cstdint>
#include <cstring>

namespace sok {

struct BFloat16 {
  uint16_t bits;
};

inline float ToFloat(float x) { return x; }

inline float ToFloat(BFloat16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float out;
  std::memcpy(&out, &bits, sizeof(out));
  return out;
}

template <typename T>
T FromFloat(float x);

template <>
inline float FromFloat<float>(float x) {
  return x;
}

// Rounds to nearest, ties to even, as TensorFlow does. A NaN stays a NaN.
template <>
inline BFloat16 FromFloat<BFloat16>(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  if (x != x) return {static_cast<uint16_t>((bits >> 16) | 0x0040u)};
  bits += 0x7fffu + ((bits >> 16) & 1u);
  return {static_cast<uint16_t>(bits >> 16)};
}

}  // namespace sok
