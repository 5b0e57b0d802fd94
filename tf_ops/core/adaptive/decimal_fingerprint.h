// FarmHash's 64-bit fingerprint of an integer's decimal digits, without writing them down.
//
// TensorFlow's hash-bucket columns hash an integer as the string that tf.as_string makes of it. The
// fingerprint is Fingerprint64 of FarmHash (Pike, Alakuijala 2014, farmhashna::Hash64), which reads
// a string of 1 to 3, 4 to 7, 8 to 16 or 17 to 32 bytes by words from its two ends. An integer has
// at most 20 characters, so that three words hold them, and the unaligned reads become shifts.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sok {
namespace farm {

constexpr uint64_t kK0 = 0xc3a5c85c97cb3127ull;
constexpr uint64_t kK1 = 0xb492b66fbe98f273ull;
constexpr uint64_t kK2 = 0x9ae16a3b2f90404full;

constexpr uint64_t kE8 = 100000000;
constexpr uint64_t kE16 = kE8 * kE8;
constexpr uint64_t kZeros = 0x3030303030303030ull;  // eight times '0'
constexpr uint64_t kMinus = '-';
constexpr uint64_t kMinusFromZero = kMinus ^ '0';

inline uint64_t Rotate(uint64_t x, int bits) { return (x >> bits) | (x << (64 - bits)); }

inline uint64_t Mix(uint64_t u, uint64_t v, uint64_t factor) {
  uint64_t a = (u ^ v) * factor;
  a ^= a >> 47;
  uint64_t b = (v ^ a) * factor;
  b ^= b >> 47;
  return b * factor;
}

inline uint64_t FactorOf(int length) { return kK2 + static_cast<uint64_t>(length) * 2; }

// The fingerprint of up to three characters takes the first, the middle and the last one.
inline uint64_t UpTo3(uint8_t first, uint8_t middle, uint8_t last, int length) {
  const uint32_t y = first + (uint32_t{middle} << 8);
  const uint32_t z = static_cast<uint32_t>(length) + (uint32_t{last} << 2);
  const uint64_t mixed = (y * kK2) ^ (z * kK0);
  return (mixed ^ (mixed >> 47)) * kK2;
}

// The fingerprint of 4 to 7 characters takes the first four and the last four.
inline uint64_t UpTo7(uint32_t head, uint32_t tail, int length) {
  return Mix(static_cast<uint64_t>(length) + (uint64_t{head} << 3), tail, FactorOf(length));
}

// The fingerprint of 8 to 16 characters takes the first eight and the last eight.
inline uint64_t UpTo16(uint64_t head, uint64_t tail, int length) {
  const uint64_t factor = FactorOf(length), a = head + kK2;
  return Mix(Rotate(tail, 37) * factor + a, (Rotate(a, 25) + tail) * factor, factor);
}

// The fingerprint of 17 to 32 characters takes four words of eight: the first two and the last two.
inline uint64_t UpTo32(uint64_t head, uint64_t second, uint64_t last_but_one, uint64_t tail,
                       int length) {
  const uint64_t factor = FactorOf(length), a = head * kK1;
  return Mix(Rotate(a + second, 43) + Rotate(tail * factor, 30) + last_but_one * kK2,
             a + Rotate(second + kK2, 18) + tail * factor, factor);
}

// Returns the eight digits of a number below 10^8, one a byte, the first one in the lowest byte. It
// splits the number into halves of four digits, of two, and of one. The factors are reciprocals of
// 100 and 10, exact in these ranges.
inline uint64_t EightDigits(uint32_t number) {
  uint64_t digits = number / 10000 | (uint64_t{number % 10000} << 32);
  const uint64_t hundreds = ((digits * 10486) >> 20) & 0x0000007f0000007full;
  digits = hundreds | ((digits - hundreds * 100) << 16);
  const uint64_t tens = ((digits * 103) >> 10) & 0x000f000f000f000full;
  return tens | ((digits - tens * 10) << 8);
}

// Returns the eight bytes that start `bits` bits after the start of `word`; `next` is the word
// after it.
inline uint64_t Behind(uint64_t word, uint64_t next, int bits) {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(next) << 64 | word) >> bits);
}

}  // namespace farm

inline uint64_t FingerprintOfDigits(int64_t id) {
  using farm::kE16, farm::kE8, farm::kZeros;
  const bool negative = id < 0;
  const uint64_t number = negative ? 0 - static_cast<uint64_t>(id) : static_cast<uint64_t>(id);
  // The string stands at the end of one, two or three words, after zeros, the last of which becomes
  // the sign. `start` is the number of bits before it.
  const uint64_t sign = negative ? farm::kMinusFromZero : 0;
  const uint64_t low = farm::EightDigits(static_cast<uint32_t>(number % kE8));
  const uint64_t tail = low | kZeros;
  if (number < kE8) {
    const int length =
        8 - __builtin_ctzll(low | uint64_t{1} << 56) / 8 + negative;  // 0 has one digit
    if (length == 9) return farm::UpTo16(tail << 8 | farm::kMinus, tail, length);
    const int start = 8 * (8 - length);
    const uint64_t word = tail ^ (sign << start);
    if (length == 8) return farm::UpTo16(word, word, length);
    const uint64_t text = word >> start;
    if (length >= 4) {
      return farm::UpTo7(static_cast<uint32_t>(text), static_cast<uint32_t>(word >> 32), length);
    }
    return farm::UpTo3(static_cast<uint8_t>(text), static_cast<uint8_t>(text >> (length / 2 * 8)),
                       static_cast<uint8_t>(word >> 56), length);
  }
  const uint64_t middle = farm::EightDigits(static_cast<uint32_t>(number / kE8 % kE8));
  if (number < kE16) {
    const int length = 16 - __builtin_ctzll(middle) / 8 + negative;
    uint64_t word = middle | kZeros;
    if (length == 17) {
      return farm::UpTo32(word << 8 | farm::kMinus, farm::Behind(word, tail, 56), word, tail,
                          length);
    }
    const int start = 8 * (16 - length);
    word ^= sign << start;
    return farm::UpTo16(farm::Behind(word, tail, start), tail, length);
  }
  const uint64_t high = farm::EightDigits(static_cast<uint32_t>(number / kE16));
  const int length = 24 - __builtin_ctzll(high) / 8 + negative;
  const int start = 8 * (24 - length);
  const uint64_t word = (high | kZeros) ^ (sign << start), next = middle | kZeros;
  return farm::UpTo32(farm::Behind(word, next, start), farm::Behind(next, tail, start), next, tail,
                      length);
}

// Computes the fingerprints of n ids. Ids of many digits, such as hashes of 63 and 64 bits, are
// computed many at a time.
void FingerprintsOfDigits(const int64_t* ids, size_t n, uint64_t* fingerprints);

}  // namespace sok
