// Sixteen control bytes of an open-addressing table, compared at once.
//
// The layout is that of Google's "Swiss tables" (Benzaquen, Kulukundis, 2017): a byte a slot, which
// holds seven bits of the key's hash, or says that the slot is empty or was erased.
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace sok {

constexpr int kGroupWidth = 16;
constexpr uint8_t kEmpty = 0x80;
constexpr uint8_t kErased = 0xfe;

class ControlGroup {
 public:
  explicit ControlGroup(const uint8_t* bytes) {
#ifdef __SSE2__
    bytes_ = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
#else
    std::memcpy(bytes_, bytes, kGroupWidth);
#endif
  }

  // A bit for each of the 16 bytes.
  uint32_t Match(uint8_t byte) const {
#ifdef __SSE2__
    return static_cast<uint32_t>(
        _mm_movemask_epi8(_mm_cmpeq_epi8(bytes_, _mm_set1_epi8(static_cast<char>(byte)))));
#else
    uint32_t mask = 0;
    for (int i = 0; i < kGroupWidth; ++i) mask |= uint32_t{bytes_[i] == byte} << i;
    return mask;
#endif
  }

  uint32_t MatchEmpty() const { return Match(kEmpty); }

  // Empty and erased bytes are those with the highest bit set.
  uint32_t MatchFree() const {
#ifdef __SSE2__
    return static_cast<uint32_t>(_mm_movemask_epi8(bytes_));
#else
    uint32_t mask = 0;
    for (int i = 0; i < kGroupWidth; ++i) mask |= uint32_t(bytes_[i] >> 7) << i;
    return mask;
#endif
  }

 private:
#ifdef __SSE2__
  __m128i bytes_;
#else
  uint8_t bytes_[kGroupWidth];
#endif
};

}  // namespace sok
