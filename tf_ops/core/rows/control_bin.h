// Sixteen control bytes of an open-addressing index, compared at once.
//
// The layout is that of Google's "Swiss tables" (Benzaquen, Kulukundis, 2017): each cell of the
// index has a byte, which holds a tag of the key's hash, or says that the cell is empty or was
// erased. Empty is 0 here, so that fresh pages of the system are empty bins already and need no
// pass of their own, and all other values but one are tags: with half as many, twice as many
// searches would read the entry of another key first.
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace sok {

constexpr int kBinWidth = 16;
constexpr uint8_t kEmpty = 0;
constexpr uint8_t kErased = 1;
constexpr uint8_t kLeastTag = 2;  // the byte of a cell with a key is this or more

class ControlBin {
 public:
  explicit ControlBin(const uint8_t* bytes) {
#ifdef __SSE2__
    bytes_ = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
#else
    std::memcpy(bytes_, bytes, kBinWidth);
#endif
  }

  // Returns a bit for each of the 16 bytes: whether it is equal to `byte`.
  uint32_t Match(uint8_t byte) const {
#ifdef __SSE2__
    return static_cast<uint32_t>(
        _mm_movemask_epi8(_mm_cmpeq_epi8(bytes_, _mm_set1_epi8(static_cast<char>(byte)))));
#else
    uint32_t mask = 0;
    for (int i = 0; i < kBinWidth; ++i) mask |= uint32_t{bytes_[i] == byte} << i;
    return mask;
#endif
  }

  uint32_t MatchEmpty() const { return Match(kEmpty); }

  // Returns a bit for each cell: whether it has a key.
  uint32_t MatchFull() const {
#ifdef __SSE2__
    return static_cast<uint32_t>(
        _mm_movemask_epi8(_mm_cmpeq_epi8(_mm_max_epu8(bytes_, _mm_set1_epi8(kLeastTag)), bytes_)));
#else
    uint32_t mask = 0;
    for (int i = 0; i < kBinWidth; ++i) mask |= uint32_t{bytes_[i] >= kLeastTag} << i;
    return mask;
#endif
  }

  // Returns a bit for each cell: whether it is empty or was erased.
  uint32_t MatchFree() const { return MatchFull() ^ ((1u << kBinWidth) - 1); }

 private:
#ifdef __SSE2__
  __m128i bytes_;
#else
  uint8_t bytes_[kBinWidth];
#endif
};

}  // namespace sok
