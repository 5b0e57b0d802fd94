#include <algorithm>
#include <atomic>
#include <cstring>

#include "core/base/hash.h"
#include "core/serving/served_rows.h"
#include "core/serving/served_values.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace sok {
namespace {

constexpr size_t kBlock = 16, kStages = 4;
constexpr uint32_t kNone = UINT32_MAX;  // more than kMostRows
constexpr uint32_t kMostScanned = 32;   // keys of a bucket; in larger ones the hash is searched for
constexpr size_t kMostFetched = 1024;   // bytes of a row; the processor prefetches the rest
constexpr int64_t kNanosecondsAKey = 30;

void PrefetchLines(const void* from, size_t bytes) {
  ForEachLine(static_cast<const char*>(from), static_cast<int>(bytes),
              [](const void* line) { __builtin_prefetch(line); });
}

// Returns the place of a key in [begin, end), or kNone.
uint32_t Scan(const Key* keys, Key key, uint32_t begin, uint32_t end) {
  uint32_t i = begin;
#if defined(__AVX2__)
  const __m256i wanted = _mm256_set1_epi64x(static_cast<long long>(key));
  for (; i + 4 <= end; i += 4) {
    const auto four = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(keys + i));
    const int same = _mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpeq_epi64(four, wanted)));
    if (same != 0) return i + static_cast<uint32_t>(__builtin_ctz(static_cast<unsigned>(same)));
  }
#endif
  for (; i < end; ++i) {
    if (keys[i] == key) return i;
  }
  return kNone;
}

}  // namespace

// Buckets have about 8 keys, but someone who chooses the keys can put all into one bucket.
uint32_t ServedRows::Search(Key key, uint32_t begin, uint32_t end) const {
  if (end - begin > kMostScanned) {
    const uint64_t hash = Mix64(key);
    const Key* const at =
        std::lower_bound(keys_ + begin, keys_ + end, hash,
                         [](Key other, uint64_t wanted) { return Mix64(other) < wanted; });
    begin = static_cast<uint32_t>(at - keys_);
    end = std::min(end, begin + 1);
  }
  return Scan(keys_, key, begin, end);
}

// Calls fetch(number) for the number of each row that is found, so that it may prefetch the row;
// then found(i, number) or absent(i) for each i in [begin, end). Returns false if offsets are
// wrong.
//
// The blocks of keys pass through four stages, each stage one block later than the stage before, so
// that reads of offsets, of keys and of rows are always in progress.
template <typename Fetch, typename Found, typename Absent>
bool ServedRows::Find(const Key* keys, size_t begin, size_t end, const Fetch& fetch,
                      const Found& found, const Absent& absent) const {
  struct Block {
    size_t begin, size;
    uint32_t bucket[kBlock];
    uint32_t first[kBlock], last[kBlock];  // of the bucket; later `first` is the number of the row
  };
  Block ring[kStages];
  const size_t blocks = (end - begin + kBlock - 1) / kBlock;
  for (size_t b = 0; b < blocks + kStages - 1; ++b) {
    if (b < blocks) {
      Block& block = ring[b % kStages];
      block.begin = begin + b * kBlock;
      block.size = std::min(kBlock, end - block.begin);
      for (size_t j = 0; j < block.size; ++j) {
        const uint64_t hash = Mix64(keys[block.begin + j]);
        block.bucket[j] = static_cast<uint32_t>(BucketOf(hash, header_.bucket_bits));
        __builtin_prefetch(offsets_ + block.bucket[j]);
      }
    }
    if (b >= 1 && b - 1 < blocks) {
      Block& block = ring[(b - 1) % kStages];
      bool right = true;
      for (size_t j = 0; j < block.size; ++j) {
        const uint32_t first = offsets_[block.bucket[j]], last = offsets_[block.bucket[j] + 1];
        right &= first <= last && last <= header_.rows;
        block.first[j] = first;
        block.last[j] = last;
        PrefetchLines(keys_ + first, std::min<size_t>(last - first, 16) * sizeof(Key));
      }
      if (!right) return false;
    }
    if (b >= 2 && b - 2 < blocks) {
      Block& block = ring[(b - 2) % kStages];
      for (size_t j = 0; j < block.size; ++j) {
        block.first[j] = Search(keys[block.begin + j], block.first[j], block.last[j]);
        if (block.first[j] != kNone) fetch(block.first[j]);
      }
    }
    if (b >= 3) {
      const Block& block = ring[(b - 3) % kStages];
      for (size_t j = 0; j < block.size; ++j) {
        if (block.first[j] != kNone) {
          found(block.begin + j, block.first[j]);
        } else {
          absent(block.begin + j);
        }
      }
    }
  }
  return true;
}

template <typename Absent>
Status ServedRows::Take(const Key* keys, size_t n, float* out, const ParallelFor& parallel_for,
                        const Absent& absent) const {
  std::atomic<bool> right{true};
  const int dim = header_.dim;
  const auto width = static_cast<size_t>(dim);
  const auto* const scales = reinterpret_cast<const ScaleBias*>(scale_bias_);
  const size_t fetched = std::min(row_bytes_, kMostFetched);
  const int64_t cost = kNanosecondsAKey + static_cast<int64_t>(row_bytes_ / 16);
  WithServingType(header_.type, [&](auto type) {
    constexpr ServingType kType = type;
    parallel_for(static_cast<int64_t>(n), cost, [&](int64_t begin, int64_t end) {
      const auto fetch = [&](uint32_t number) {
        if constexpr (HasScale(kType)) __builtin_prefetch(scales + number);
        PrefetchLines(row(number), fetched);
      };
      const auto found = [&](size_t i, uint32_t number) {
        DecodeServedRow<kType>(row(number), scales + number, dim, out + i * width);
      };
      if (!Find(keys, static_cast<size_t>(begin), static_cast<size_t>(end), fetch, found, absent)) {
        right.store(false, std::memory_order_relaxed);
      }
    });
  });
  return right.load() ? Status() : WrongOffsets();
}

Status ServedRows::Lookup(const Key* keys, size_t n, float* out,
                          const ParallelFor& parallel_for) const {
  const auto width = static_cast<size_t>(header_.dim);
  return Take(keys, n, out, parallel_for, [&](size_t i) { FillMissing(keys[i], out + i * width); });
}

Status ServedRows::LayOver(const Key* keys, size_t n, float* out,
                           const ParallelFor& parallel_for) const {
  return Take(keys, n, out, parallel_for, [](size_t) {});
}

void ServedRows::FillMissing(Key key, float* out) const {
  if (missing_.has_value()) {
    missing_->Fill(key, out, header_.dim);
  } else {
    std::fill_n(out, static_cast<size_t>(header_.dim), 0.0f);
  }
}

Status ServedRows::Contains(const Key* keys, size_t n, uint8_t* out,
                            const ParallelFor& parallel_for) const {
  std::atomic<bool> right{true};
  parallel_for(static_cast<int64_t>(n), kNanosecondsAKey, [&](int64_t begin, int64_t end) {
    const bool whole = Find(
        keys, static_cast<size_t>(begin), static_cast<size_t>(end), [](uint32_t) {},
        [&](size_t i, uint32_t) { out[i] = 1; }, [&](size_t i) { out[i] = 0; });
    if (!whole) right.store(false, std::memory_order_relaxed);
  });
  return right.load() ? Status() : WrongOffsets();
}

void ServedRows::Read(uint64_t begin, size_t n, float* out, const ParallelFor& parallel_for) const {
  const auto* const scales = reinterpret_cast<const ScaleBias*>(scale_bias_);
  WithServingType(header_.type, [&](auto type) {
    constexpr ServingType kType = type;
    parallel_for(static_cast<int64_t>(n), static_cast<int64_t>(row_bytes_ / 8 + 1),
                 [&](int64_t from, int64_t to) {
                   for (auto i = static_cast<uint64_t>(from); i < static_cast<uint64_t>(to); ++i) {
                     DecodeServedRow<kType>(row(begin + i), scales + begin + i, header_.dim,
                                            out + i * static_cast<size_t>(header_.dim));
                   }
                 });
  });
}

}  // namespace sok
