#include "core/adaptive/decimal_fingerprint.h"

#include "core/base/vector_clones.h"

namespace sok {
namespace {

constexpr size_t kChunk = 32;
using farm::kE16, farm::kE8, farm::kZeros;

// Computes FingerprintOfDigits of numbers of at least 17 digits, with a sign where negative is 1,
// in loops that compilers turn into vector instructions. Results for shorter numbers are
// meaningless.
SOK_VECTOR_CLONES void LongFingerprints(const uint64_t* numbers, const uint64_t* negative,
                                        uint64_t* fingerprints) {
  uint32_t high[kChunk], middle[kChunk], low[kChunk];
  for (size_t i = 0; i < kChunk; ++i) {
    const uint64_t top = numbers[i] / kE16, rest = numbers[i] - top * kE16, next = rest / kE8;
    high[i] = static_cast<uint32_t>(top);
    middle[i] = static_cast<uint32_t>(next);
    low[i] = static_cast<uint32_t>(rest - next * kE8);
  }
  uint64_t words[kChunk], nexts[kChunk], tails[kChunk];
  for (size_t i = 0; i < kChunk; ++i) words[i] = farm::EightDigits(high[i]);
  for (size_t i = 0; i < kChunk; ++i) nexts[i] = farm::EightDigits(middle[i]);
  for (size_t i = 0; i < kChunk; ++i) tails[i] = farm::EightDigits(low[i]);
  for (size_t i = 0; i < kChunk; ++i) {
    // There are one to three digits before the last sixteen.
    const uint64_t length = 17 + uint64_t{high[i] >= 10} + uint64_t{high[i] >= 100} + negative[i];
    const uint64_t start = 8 * (24 - length);
    const uint64_t word = (words[i] | kZeros) ^ ((negative[i] * farm::kMinusFromZero) << start);
    const uint64_t next = nexts[i] | kZeros, tail = tails[i] | kZeros;
    fingerprints[i] =
        farm::UpTo32(word >> start | next << (64 - start), next >> start | tail << (64 - start),
                     next, tail, static_cast<int>(length));
  }
}

}  // namespace

void FingerprintsOfDigits(const int64_t* ids, size_t n, uint64_t* fingerprints) {
  size_t i = 0;
  for (; n - i >= kChunk; i += kChunk) {
    uint64_t numbers[kChunk], negative[kChunk];
    size_t few = 0;  // how many numbers have few digits
    for (size_t j = 0; j < kChunk; ++j) {
      const auto bits = static_cast<uint64_t>(ids[i + j]);
      negative[j] = bits >> 63;
      numbers[j] = (bits ^ (0 - negative[j])) + negative[j];
      few += numbers[j] < kE16;
    }
    const bool mostly_long = few < kChunk / 4;
    if (mostly_long) LongFingerprints(numbers, negative, fingerprints + i);
    for (size_t j = 0; few > 0 && j < kChunk; ++j) {
      if (mostly_long && numbers[j] >= kE16) continue;
      fingerprints[i + j] = FingerprintOfDigits(ids[i + j]);
    }
  }
  for (; i < n; ++i) fingerprints[i] = FingerprintOfDigits(ids[i]);
}

}  // namespace sok
