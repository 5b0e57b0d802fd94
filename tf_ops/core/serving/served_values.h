// The values of a row in the file: encodes them, and decodes them to float32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "core/base/float16.h"
#include "core/base/status.h"
#include "core/base/types.h"
#include "core/rows/row_coding.h"
#include "core/rows/row_copy.h"
#include "core/serving/serving_format.h"

namespace sok {

// A value of an integer row is scale * q + bias, in float32: the product is rounded, then the sum.
// q is in the range of int8, or in [-8, 7] for int4.
struct ScaleBias {
  Float16 scale, bias;
};

// Encodes a row of dim values. For integers, the range of q is stretched over the range from the
// smallest to the largest value, and the bias is the float16 nearest to the value that q = 0 means
// then. The scale is the smallest float16 with which every value is in the range, and q is the
// nearest integer. So the error of a value is at most half a scale. `scale_bias` is written only
// for integers, and `to` has ServedRowBytes. Errors: kInvalidArgument for a value that is not
// finite, or for which float16 is too small; the message names the key.
Status EncodeServedRow(ServingType type, Key key, const float* row, int dim, char* to,
                       ScaleBias* scale_bias);

namespace served_values_internal {

inline std::pair<float, float> DecodeScaleBias(const ScaleBias& halves) {
#if defined(__F16C__)
  int bits;
  std::memcpy(&bits, &halves, sizeof(bits));
  const __m128 both = _mm_cvtph_ps(_mm_cvtsi32_si128(bits));
  return {_mm_cvtss_f32(both), _mm_cvtss_f32(_mm_movehdup_ps(both))};
#else
  return {ToFloat(halves.scale), ToFloat(halves.bias)};
#endif
}

// `dim` may be a constant, so that the loop has a known length.
inline void DecodeInt8(const char* from, float scale, float bias, int dim, float* out) {
  const auto* const values = reinterpret_cast<const int8_t*>(from);
#pragma GCC ivdep
  for (int j = 0; j < dim; ++j) out[j] = scale * static_cast<float>(values[j]) + bias;
}

// The first value of a pair is in the low bits of the byte.
inline void DecodeInt4(const char* from, float scale, float bias, int dim, float* out) {
  const auto* const pairs = reinterpret_cast<const uint8_t*>(from);
#pragma GCC ivdep
  for (int j = 0; j < dim / 2; ++j) {
    out[2 * j] = scale * static_cast<float>((pairs[j] & 15) - 8) + bias;
    out[2 * j + 1] = scale * static_cast<float>((pairs[j] >> 4) - 8) + bias;
  }
  if (dim % 2 != 0) {
    out[dim - 1] = scale * static_cast<float>((pairs[dim / 2] & 15) - 8) + bias;
  }
}

// Calls fn(dim); for common sizes dim is a constant.
template <typename Fn>
inline void WithDim(int dim, const Fn& fn) {
  switch (dim) {
    case 16:
      return fn(std::integral_constant<int, 16>());
    case 32:
      return fn(std::integral_constant<int, 32>());
    case 64:
      return fn(std::integral_constant<int, 64>());
    default:
      return fn(dim);
  }
}

}  // namespace served_values_internal

// Decodes a row. `scale_bias` is read only for integers.
template <ServingType kType>
inline void DecodeServedRow(const char* row, const ScaleBias* scale_bias, int dim, float* out) {
  using namespace served_values_internal;
  if constexpr (kType == ServingType::kFloat32) {
    CopyRow(reinterpret_cast<const float*>(row), dim, out);
  } else if constexpr (kType == ServingType::kFloat16) {
    WithDim(dim, [&](auto n) { DecodeValues(RowType::kFloat16, row, n, out); });
  } else {
    const std::pair<float, float> decoded = DecodeScaleBias(*scale_bias);
    const float scale = decoded.first, bias = decoded.second;
    WithDim(dim, [&](auto n) {
      if constexpr (kType == ServingType::kInt8) {
        DecodeInt8(row, scale, bias, n, out);
      } else {
        DecodeInt4(row, scale, bias, n, out);
      }
    });
  }
}

// Calls fn with the type as a constant.
template <typename Fn>
inline auto WithServingType(ServingType type, const Fn& fn) {
  switch (type) {
    case ServingType::kFloat16:
      return fn(std::integral_constant<ServingType, ServingType::kFloat16>());
    case ServingType::kInt8:
      return fn(std::integral_constant<ServingType, ServingType::kInt8>());
    case ServingType::kInt4:
      return fn(std::integral_constant<ServingType, ServingType::kInt4>());
    default:
      return fn(std::integral_constant<ServingType, ServingType::kFloat32>());
  }
}

}  // namespace sok
