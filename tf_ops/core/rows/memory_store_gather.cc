// Lookups: rows are found and copied out.
#include <algorithm>
#include <mutex>
#include <vector>

#include "core/rows/direct_index.h"
#include "core/rows/hash_index.h"
#include "core/rows/memory_store.h"
#include "core/rows/pipelined_find.h"
#include "core/rows/row_copy.h"

namespace sok {
namespace {

constexpr int64_t kLookupCost = 15;  // nanoseconds a key, for ParallelFor

}  // namespace

template <typename Index>
template <typename Found, typename Absent>
void MemoryStore<Index>::Find(const Key* keys, size_t begin, size_t end, const float* const* given,
                              int prefetch_floats, const Found& found, const Absent& absent) const {
  FindRange<Index, Shard>(
      keys, begin, end, given, prefetch_floats, [this](Key key) { return Hash(key); },
      [this](uint64_t hash) -> const Shard& { return *shards_[ShardOf(hash)]; },
      [&](size_t i, const Shard*, uint32_t number, const float* row) { found(i, number, row); },
      absent);
}

template <typename Index>
template <typename T>
void MemoryStore<Index>::GatherCoded(const Key* keys, size_t begin, size_t end, T* out,
                                     const GatherOptions& options,
                                     std::vector<uint32_t>* absent) const {
  const RowCoding coding = *coding_;
  const int dim = dim_;
  const uint32_t* const places = options.places;
  FindRange<Index, Shard>(
      keys, begin, end, options.given, static_cast<int>(coding.embedding_bytes() / sizeof(float)),
      [this](Key key) { return Hash(key); },
      [this](uint64_t hash) -> const Shard& { return *shards_[ShardOf(hash)]; },
      [&](size_t i, const Shard* shard, uint32_t number, const float* row) {
        if (options.numbers != nullptr) options.numbers[i] = number;
        T* const to = out + (places == nullptr ? i : places[i]) * dim;
        if (shard == nullptr) {  // a row that is given: floats
          CopyRow(row, dim, to);
        } else {
          coding.DecodeEmbedding(reinterpret_cast<const char*>(row), to);
        }
      },
      [absent](size_t i) { absent->push_back(static_cast<uint32_t>(i)); });
}

template <typename Index>
template <typename T>
void MemoryStore<Index>::GatherAs(const Key* keys, size_t n, T* out, const GatherOptions& options,
                                  const FillEmbedding& fill, std::vector<uint32_t>* missing,
                                  const ParallelFor& parallel_for) const {
  const int dim = dim_;
  // Long rows fill the lines of the output faster than these come by themselves.
  constexpr int kLongRow = 32;
  constexpr size_t kAhead = 16;
  const uint32_t* const places = options.places;
  const auto place = [places](size_t i) -> size_t { return places == nullptr ? i : places[i]; };
  std::mutex missing_mu;
  parallel_for(n, kLookupCost + dim / 4, [&](int64_t begin, int64_t end) {
    const auto last = static_cast<size_t>(end - 1);
    std::vector<uint32_t> absent;
    absent.reserve(std::min<int64_t>(end - begin, 4096));  // it seldom grows below
    {
      const SharedLocks lock(shards_);
      const auto find = [&](const auto& found) {
        Find(keys, begin, end, options.given, dim, found,
             [&](size_t i) { absent.push_back(static_cast<uint32_t>(i)); });
      };
      const auto copy = [=](size_t i, const float* row) {
        CopyRow(row, dim, out + place(i) * dim);
      };
      const auto find_all = [&](const auto& note) {
        if (dim < kLongRow) {
          find([=](size_t i, uint32_t number, const float* row) {
            note(i, number);
            copy(i, row);
          });
        } else {
          find([=](size_t i, uint32_t number, const float* row) {
            note(i, number);
            PrefetchOutput(out + place(std::min(i + kAhead, last)) * dim, dim);
            copy(i, row);
          });
        }
      };
      uint32_t* const numbers = options.numbers;
      if (coding_.has_value()) {
        GatherCoded(keys, begin, end, out, options, &absent);
      } else if (numbers == nullptr) {
        find_all([](size_t, uint32_t) {});
      } else {
        find_all([numbers](size_t i, uint32_t number) { numbers[i] = number; });
      }
      if (numbers != nullptr) {
        for (uint32_t i : absent) numbers[i] = Index::kNone;
      }
    }
    if (absent.empty()) return;
    if (fill) {
      std::vector<float> start(dim);
      std::vector<char> coded(coding_.has_value() ? coding_->bytes() : 0);
      for (uint32_t i : absent) {
        fill(keys[i], start.data());
        // The row that training would make has these bits.
        if (coding_.has_value()) coding_->RoundEmbedding(start.data(), coded.data());
        CopyRow(start.data(), dim, out + place(i) * dim);
      }
    }
    if (missing == nullptr) return;
    std::lock_guard<std::mutex> guard(missing_mu);
    missing->insert(missing->end(), absent.begin(), absent.end());
  });
}

template <typename Index>
Status MemoryStore<Index>::Gather(const Key* keys, size_t n, float* out,
                                  const GatherOptions& options, const FillEmbedding& fill,
                                  std::vector<uint32_t>* missing, const ParallelFor& parallel_for) {
  GatherAs(keys, n, out, options, fill, missing, parallel_for);
  return Status();
}

template <typename Index>
Status MemoryStore<Index>::Gather(const Key* keys, size_t n, BFloat16* out,
                                  const GatherOptions& options, const FillEmbedding& fill,
                                  std::vector<uint32_t>* missing, const ParallelFor& parallel_for) {
  GatherAs(keys, n, out, options, fill, missing, parallel_for);
  return Status();
}

template <typename Index>
Result<std::vector<uint32_t>> MemoryStore<Index>::Missing(const Key* keys, size_t n,
                                                          const ParallelFor& parallel_for) {
  std::vector<uint32_t> missing;
  std::mutex missing_mu;
  parallel_for(n, kLookupCost, [&](int64_t begin, int64_t end) {
    std::vector<uint32_t> absent;
    {
      const SharedLocks lock(shards_);
      Find(
          keys, begin, end, /*given=*/nullptr, 0, [](size_t, uint32_t, const float*) {},
          [&](size_t i) { absent.push_back(static_cast<uint32_t>(i)); });
    }
    std::lock_guard<std::mutex> guard(missing_mu);
    missing.insert(missing.end(), absent.begin(), absent.end());
  });
  return missing;
}

#define SOK_INSTANTIATE(Index)                                                                    \
  template Status MemoryStore<Index>::Gather(const Key*, size_t, float*, const GatherOptions&,    \
                                             const FillEmbedding&, std::vector<uint32_t>*,        \
                                             const ParallelFor&);                                 \
  template Status MemoryStore<Index>::Gather(const Key*, size_t, BFloat16*, const GatherOptions&, \
                                             const FillEmbedding&, std::vector<uint32_t>*,        \
                                             const ParallelFor&);                                 \
  template Result<std::vector<uint32_t>> MemoryStore<Index>::Missing(const Key*, size_t,          \
                                                                     const ParallelFor&)
SOK_INSTANTIATE(HashIndex);
SOK_INSTANTIATE(DirectIndex);
#undef SOK_INSTANTIATE

}  // namespace sok
