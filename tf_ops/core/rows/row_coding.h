// Rows in fewer bytes than float32 has: the bytes of a row, and its way to float32 and back.
//
// An int8 row has a float32 in front, the scale by which its numbers are multiplied. The scale has
// 16 bits of significand, so that these products are exact; the greatest number of a row is 127 or
// -127. Hence a row that was decoded is encoded to the same bytes again.
//
// A float8_e4m3 row has a float32 scale in front too, a power of two. The greatest number of a row
// is at least 128 and at most 240, so that a row that was decoded gets the same scale again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "core/base/bfloat16.h"
#include "core/base/float16.h"
#include "core/base/hash.h"
#include "core/base/types.h"
#include "core/rows/row_type.h"

namespace sok {

namespace row_coding_internal {

// Returns the value at place j of an array that need not be aligned.
template <typename From>
From ValueAt(const char* from, int j) {
  From value;
  std::memcpy(&value, from + static_cast<size_t>(j) * sizeof(From), sizeof(value));
  return value;
}

template <typename From, typename T>
void DecodeEach(const char* from, int n, T* out) {
#pragma GCC ivdep
  for (int j = 0; j < n; ++j) out[j] = FromFloat<T>(ToFloat(ValueAt<From>(from, j)));
}

#if defined(__F16C__)
template <>
inline void DecodeEach<Float16, float>(const char* from, int n, float* out) {
  int j = 0;
  for (; j + 8 <= n; j += 8) {
    const auto halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from) + j / 8);
    _mm256_storeu_ps(out + j, _mm256_cvtph_ps(halves));
  }
  for (; j < n; ++j) out[j] = ToFloat(ValueAt<Float16>(from, j));
}
#endif

// Returns the number that a byte stands for as an 8-bit float of 4 bits of exponent, with a bias of
// 7, and 3 bits of fraction, of which 0x7f and 0xff are NaN, and none is infinite: E4M3 of the OCP
// 8-bit Floating Point Specification (2023).
constexpr float Float8Value(unsigned byte) {
  const unsigned exponent = byte >> 3 & 15u, fraction = byte & 7u;
  if (exponent == 15u && fraction == 7u) return __builtin_nanf("");
  float value = static_cast<float>(exponent == 0 ? fraction : 8u + fraction) / 512.0f;
  for (unsigned e = 1; e < exponent; ++e) value *= 2.0f;
  return (byte & 0x80u) != 0 ? -value : value;
}

struct Float8Values {
  constexpr Float8Values() {
    for (unsigned byte = 0; byte < 256; ++byte) of_byte[byte] = Float8Value(byte);
  }
  float of_byte[256] = {};
};
inline constexpr Float8Values kFloat8;

// Decodes values of a byte each that are multiplied by the scale in front of them.
template <typename T, typename ValueOf>
void DecodeScaled(const char* from, int n, T* out, const ValueOf& value_of) {
  float scale;
  std::memcpy(&scale, from, sizeof(scale));
  const auto* const values = reinterpret_cast<const uint8_t*>(from + sizeof(scale));
#pragma GCC ivdep
  for (int j = 0; j < n; ++j) out[j] = FromFloat<T>(scale * value_of(values[j]));
}

}  // namespace row_coding_internal

// Returns the bytes of n values, a multiple of 4.
inline size_t CodedBytes(RowType type, int n) {
  const auto values = static_cast<size_t>(n);
  switch (type) {
    case RowType::kFloat32:
      return 4 * values;
    case RowType::kInt8:
    case RowType::kFloat8E4M3:
      return 4 + (values + 3) / 4 * 4;
    default:
      return (2 * values + 3) / 4 * 4;
  }
}

// Decodes n values, to T: float or BFloat16. `from` need not be aligned.
template <typename T>
inline void DecodeValues(RowType type, const char* from, int n, T* out) {
  using namespace row_coding_internal;
  switch (type) {
    case RowType::kFloat32:
      return DecodeEach<float>(from, n, out);
    case RowType::kBFloat16:
      return DecodeEach<BFloat16>(from, n, out);
    case RowType::kFloat16:
      return DecodeEach<Float16>(from, n, out);
    case RowType::kInt8:
      return DecodeScaled(
          from, n, out, [](uint8_t byte) { return static_cast<float>(static_cast<int8_t>(byte)); });
    case RowType::kFloat8E4M3:
      return DecodeScaled(from, n, out, [](uint8_t byte) { return kFloat8.of_byte[byte]; });
  }
}

// The coding of the rows of a table. All methods are const and write only to what they are given.
class RowCoding {
 public:
  RowCoding(const RowForm& form, int dim, int slot_floats)
      : form_(form),
        dim_(dim),
        slot_floats_(slot_floats),
        slots_at_(CodedBytes(form.row, dim)),
        bytes_(slots_at_ + CodedBytes(form.slots, slot_floats)) {}

  size_t bytes() const { return bytes_; }  // of a row
  size_t embedding_bytes() const { return slots_at_; }
  size_t floats() const { return static_cast<size_t>(dim_) + static_cast<size_t>(slot_floats_); }

  template <typename T>
  void DecodeEmbedding(const char* row, T* embedding) const {
    DecodeValues(form_.row, row, dim_, embedding);
  }
  void DecodeSlots(const char* row, float* slots) const {
    DecodeValues(form_.slots, row + slots_at_, slot_floats_, slots);
  }
  // Decodes the embedding and, behind it, the slots. Here and above a row need not be aligned.
  void Decode(const char* row, float* floats) const {
    DecodeEmbedding(row, floats);
    DecodeSlots(row, floats + dim_);
  }

  // Encodes a row of floats() values, each rounded to nearest. A row that came from Decode gets the
  // bytes that it had.
  void EncodeNearest(const float* floats, char* row) const;
  // Rounds an embedding as EncodeNearest does, in place. `row` is scratch of bytes().
  void RoundEmbedding(float* embedding, char* row) const;

  // Encodes a row after an update, with each value rounded at random, by draws of the seed, the key
  // and the number of the row's update. Values that the types have stay as they are.
  void EncodeUpdated(const float* floats, Key key, uint32_t update, char* row) const {
    EncodeAtRandom(floats, key, uint64_t{update} << 1, row);
  }
  // Rounds a row at random, in place, by other draws: a formula has made it of an updated one.
  void RoundForFormula(float* floats, Key key, uint32_t update) const;

 private:
  void EncodeAtRandom(const float* floats, Key key, uint64_t number, char* row) const;

  RowForm form_;
  int dim_, slot_floats_;
  size_t slots_at_, bytes_;
};

}  // namespace sok
