#include "core/serving/served_values.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

namespace sok {
namespace {

constexpr double kMostFloat16 = 65504;

std::string RowOf(Key key) { return "the row of key " + ShownKey(key); }

Status NotFinite(Key key, int place, float value) {
  return InvalidArgument("Expected rows of finite values. Received: " + std::to_string(value) +
                         " at place " + std::to_string(place) + " of " + RowOf(key) +
                         ". Find the step that made it, or leave the key out.");
}

Status TooLarge(Key key, double value) {
  return InvalidArgument(
      "Expected values that float16 can hold, at most 65504 in size. Received: " +
      std::to_string(value) + " in " + RowOf(key) + ". Write the rows as float32.");
}

// Returns the smallest float16 that is not below `value`, which is at least 0.
Float16 Float16Above(double value) {
  float least = static_cast<float>(value);
  if (static_cast<double>(least) < value) {
    least = std::nextafter(least, std::numeric_limits<float>::infinity());
  }
  Float16 above = FromFloat<Float16>(least);
  if (ToFloat(above) < least) ++above.bits;
  return above;
}

// Encodes values as integers in [least, most].
template <typename Put>
Status EncodeScaled(Key key, const float* row, int dim, double least, double most,
                    ScaleBias* scale_bias, const Put& put) {
  const auto [lowest, highest] = std::minmax_element(row, row + dim);
  const double low = *lowest, high = *highest;
  const double middle = low - least * ((high - low) / (most - least));
  if (std::fabs(middle) > kMostFloat16) return TooLarge(key, middle);
  scale_bias->bias = FromFloat<Float16>(static_cast<float>(middle));
  const double bias = ToFloat(scale_bias->bias);
  const double needed = std::max({0.0, (high - bias) / most, (low - bias) / least});
  scale_bias->scale = Float16Above(needed);
  const double scale = ToFloat(scale_bias->scale);
  if (!(scale <= kMostFloat16)) return TooLarge(key, std::max(-low, high));
  for (int j = 0; j < dim; ++j) {
    const double q = scale > 0 ? std::nearbyint((row[j] - bias) / scale) : 0;
    put(j, static_cast<int>(std::clamp(q, least, most)));
  }
  return Status();
}

}  // namespace

Status EncodeServedRow(ServingType type, Key key, const float* row, int dim, char* to,
                       ScaleBias* scale_bias) {
  for (int j = 0; j < dim; ++j) {
    if (!std::isfinite(row[j])) return NotFinite(key, j, row[j]);
  }
  switch (type) {
    case ServingType::kFloat32:
      std::memcpy(to, row, static_cast<size_t>(dim) * sizeof(float));
      return Status();
    case ServingType::kFloat16:
      for (int j = 0; j < dim; ++j) {
        const auto half = FromFloat<Float16>(row[j]);
        if ((half.bits & 0x7fff) == 0x7c00) return TooLarge(key, row[j]);
        std::memcpy(to + 2 * j, &half, sizeof(half));
      }
      return Status();
    case ServingType::kInt8:
      return EncodeScaled(key, row, dim, -128, 127, scale_bias,
                          [&](int j, int q) { to[j] = static_cast<char>(q); });
    case ServingType::kInt4:
      std::memset(to, 0, ServedRowBytes(type, dim));
      return EncodeScaled(key, row, dim, -8, 7, scale_bias, [&](int j, int q) {
        to[j / 2] = static_cast<char>(to[j / 2] | (q + 8) << (j % 2 * 4));
      });
  }
  return Status();
}

}  // namespace sok
