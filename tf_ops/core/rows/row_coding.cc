#include "core/rows/row_coding.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <vector>

#include "core/base/random_rounding.h"

namespace sok {
namespace {

using float16_internal::BitsOf;
using float16_internal::FloatOf;

// Rounds values to nearest.
struct Nearest {
  template <typename To>
  To Value(float x, uint32_t /*place*/) const {
    return FromFloat<To>(x);
  }
  // Rounds to a whole number.
  float Whole(float x, uint32_t /*place*/) const { return std::nearbyint(x); }
  // Rounds a positive float32, by its bits, to 16 bits of significand.
  uint32_t Scale(uint32_t bits) const { return (bits + 0x7fu + ((bits >> 8) & 1u)) & ~0xffu; }
};

// Rounds values at random.
struct AtRandom {
  template <typename To>
  To Value(float x, uint32_t place) const;
  // The sum is exact for a whole number of at most 127, which stays.
  float Whole(float x, uint32_t place) const {
    const auto share = static_cast<float>(static_cast<int32_t>(draws(place) >> 16));
    return std::floor(x + (share + 0.5f) * 0x1p-16f);
  }
  uint32_t Scale(uint32_t bits) const { return (bits + (draws(UINT32_MAX) >> 24)) & ~0xffu; }

  RoundingDraws draws;
};

template <>
inline float AtRandom::Value<float>(float x, uint32_t /*place*/) const {
  return x;
}
template <>
inline BFloat16 AtRandom::Value<BFloat16>(float x, uint32_t place) const {
  return RandomBFloat16(x, draws(place));
}
template <>
inline Float16 AtRandom::Value<Float16>(float x, uint32_t place) const {
  return RandomFloat16(x, draws(place));
}

template <typename To, typename Rounding>
void EncodeEach(const Rounding& rounding, const float* values, int n, uint32_t place, char* to) {
  auto* const out = reinterpret_cast<To*>(to);
#pragma GCC ivdep
  for (int j = 0; j < n; ++j) {
    out[j] = rounding.template Value<To>(values[j], place + static_cast<uint32_t>(j));
  }
}

// The least scale that rows have; below it they are 0, so that nothing depends on what a thread
// does with subnormal numbers.
constexpr float kLeastScale = 0x1p-100f;

// Returns the scale of a row of this greatest magnitude, given by its bits.
template <typename Rounding>
float ScaleOf(const Rounding& rounding, uint32_t most) {
  if (most >= 0x7f800000u) return FloatOf(0x7fc00000u);  // a NaN, so that all of the row is
  const uint32_t bits = rounding.Scale(BitsOf(FloatOf(most) / 127.0f));
  const float scale = FloatOf(bits) * 127.0f > FLT_MAX ? FloatOf(bits - 0x100u) : FloatOf(bits);
  return scale < kLeastScale ? 0.0f : scale;
}

// Returns the bits of the greatest magnitude.
int32_t GreatestOf(const float* values, int n) {
  int32_t most = 0;
  for (int j = 0; j < n; ++j) {
    most = std::max(most, static_cast<int32_t>(BitsOf(values[j]) & 0x7fffffffu));
  }
  return most;
}

template <typename Rounding>
void EncodeInt8(const Rounding& rounding, const float* values, int n, uint32_t place, char* to) {
  const int32_t most = GreatestOf(values, n);
  const float scale = ScaleOf(rounding, static_cast<uint32_t>(most));
  std::memcpy(to, &scale, sizeof(scale));
  auto* const out = reinterpret_cast<int8_t*>(to + sizeof(scale));
  if (!(scale > 0.0f)) {
    std::memset(out, 0, static_cast<size_t>(n));
    return;
  }
#pragma GCC ivdep
  for (int j = 0; j < n; ++j) {
    const float whole = rounding.Whole(values[j] / scale, place + static_cast<uint32_t>(j));
    const float least =
        static_cast<int32_t>(BitsOf(values[j]) & 0x7fffffffu) == most ? 127.0f : 0.0f;
    const float size = std::min(std::max(std::fabs(whole), least), 127.0f);
    out[j] = static_cast<int8_t>(static_cast<int32_t>(std::copysign(size, values[j])));
  }
}

constexpr int32_t kFloat8Of240 = 0x77;  // the greatest magnitude of a row, as a byte

// Writes values by a scale. Returns the greatest magnitude that was written, as a byte.
template <typename Rounding>
int32_t EncodeFloat8By(float scale, const Rounding& rounding, const float* values, int n,
                       uint32_t place, uint8_t* out) {
  int32_t greatest = 0;
#pragma GCC ivdep
  for (int j = 0; j < n; ++j) {
    const float value = values[j] / scale;
    const auto biased = static_cast<int32_t>(BitsOf(value) >> 23 & 0xffu) - 120;  // by 7, as E4M3
    const int32_t exponent = std::max(biased, 1);
    // The step between two numbers of this exponent becomes 1.
    const float steps = value * FloatOf(static_cast<uint32_t>(127 + 10 - exponent) << 23);
    const float whole = std::fabs(rounding.Whole(steps, place + static_cast<uint32_t>(j)));
    // Numbers below the least exponent, whose steps are less than 8, have the exponent 0.
    const int32_t magnitude = (exponent - 1) * 8 + static_cast<int32_t>(whole);
    greatest = std::max(greatest, magnitude);
    out[j] = static_cast<uint8_t>(std::min(magnitude, kFloat8Of240) |
                                  static_cast<int32_t>(BitsOf(value) >> 31 << 7));
  }
  return greatest;
}

template <typename Rounding>
void EncodeFloat8(const Rounding& rounding, const float* values, int n, uint32_t place, char* to) {
  const auto most = static_cast<uint32_t>(GreatestOf(values, n));
  float scale = FloatOf(0x7fc00000u);  // a NaN, so that all of the row is
  if (most < 0x7f800000u) {
    const uint32_t exponent = most >> 23;
    scale = exponent > 7 ? FloatOf((exponent - 7) << 23) : 0.0f;
    if (scale < kLeastScale) scale = 0.0f;
  }
  auto* const out = reinterpret_cast<uint8_t*>(to + sizeof(scale));
  if (!(scale > 0.0f)) {
    std::memset(out, 0, static_cast<size_t>(n));
  } else if (EncodeFloat8By(scale, rounding, values, n, place, out) > kFloat8Of240 &&
             scale < 0x1p120f) {
    // A number was rounded up to 256 times the scale. By twice the scale it is 128, and the draws
    // round all others as before.
    scale *= 2.0f;
    EncodeFloat8By(scale, rounding, values, n, place, out);
  }
  std::memcpy(to, &scale, sizeof(scale));
}

template <typename Rounding>
void Encode(const Rounding& rounding, RowType type, const float* values, int n, uint32_t place,
            char* to) {
  // The bytes that fill up the last 4 go to files too: they must not be those of another row.
  if (n > 0) std::memset(to + CodedBytes(type, n) - 4, 0, 4);
  switch (type) {
    case RowType::kFloat32:
      return EncodeEach<float>(rounding, values, n, place, to);
    case RowType::kBFloat16:
      return EncodeEach<BFloat16>(rounding, values, n, place, to);
    case RowType::kFloat16:
      return EncodeEach<Float16>(rounding, values, n, place, to);
    case RowType::kInt8:
      return EncodeInt8(rounding, values, n, place, to);
    case RowType::kFloat8E4M3:
      return EncodeFloat8(rounding, values, n, place, to);
  }
}

}  // namespace

void RowCoding::EncodeNearest(const float* floats, char* row) const {
  Encode(Nearest(), form_.row, floats, dim_, 0, row);
  Encode(Nearest(), form_.slots, floats + dim_, slot_floats_, 0, row + slots_at_);
}

void RowCoding::RoundEmbedding(float* embedding, char* row) const {
  Encode(Nearest(), form_.row, embedding, dim_, 0, row);
  DecodeEmbedding(row, embedding);
}

void RowCoding::RoundForFormula(float* floats, Key key, uint32_t update) const {
  std::vector<char> row(bytes_);
  EncodeAtRandom(floats, key, uint64_t{update} << 1 | 1, row.data());
  Decode(row.data(), floats);
}

void RowCoding::EncodeAtRandom(const float* floats, Key key, uint64_t number, char* row) const {
  const AtRandom random{RoundingDraws(Mix64(form_.seed + Mix64(key + Mix64(number))))};
  Encode(random, form_.row, floats, dim_, 0, row);
  Encode(random, form_.slots, floats + dim_, slot_floats_, static_cast<uint32_t>(dim_),
         row + slots_at_);
}

}  // namespace sok
