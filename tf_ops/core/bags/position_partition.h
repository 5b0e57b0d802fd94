// Groups contributions by ranges of positions, so that each range has one writer.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/bags/contributions.h"
#include "core/bags/scratch.h"
#include "core/base/grouping.h"
#include "core/base/types.h"

namespace sok {

// Each chunk of the batch is counting-sorted by itself. So a shard's contributions come in the
// order of the batch, whichever thread has worked on which chunk. The object can be used again, and
// keeps its memory.
template <typename Sum>
class PositionPartition {
 public:
  using Record = PositionValue<Sum>;

  // Shard s holds positions [s << shift, (s + 1) << shift). shift is at most 32.
  PositionPartition(int64_t size, int shift)
      : shift_(shift), shards_(static_cast<uint32_t>(((size - 1) >> shift) + 1)) {}

  uint32_t shards() const { return shards_; }

  void Build(const Contributions<Sum>& contributions, int64_t begin, int64_t end,
             const ParallelFor& parallel_for) {
    const int64_t dim = contributions.dim();
    const int64_t units = std::max<int64_t>(1, kChunkElements / dim);
    const int64_t capacity = units * dim;
    chunks_ = (end - begin + units - 1) / units;
    Reserve(chunks_ * capacity);
    starts_.resize(chunks_ * (shards_ + 1));
    capacity_ = capacity;
    parallel_for(chunks_, 4 * capacity, [&](int64_t first, int64_t last) {
      const auto positions = std::unique_ptr<uint64_t[]>(new uint64_t[capacity]);
      for (int64_t chunk = first; chunk < last; ++chunk) {
        const int64_t from = begin + chunk * units;
        SortChunk(contributions, chunk, from, std::min(from + units, end), positions.get());
      }
    });
  }

  // Calls fn(record) for the contributions of a shard, in the order of the batch.
  template <typename Fn>
  void ForEach(uint32_t shard, Fn&& fn) const {
    for (int64_t chunk = 0; chunk < chunks_; ++chunk) {
      const uint32_t* starts = &starts_[chunk * (shards_ + 1)];
      const Record* records = records_.data() + chunk * capacity_;
      for (uint32_t i = starts[shard]; i < starts[shard + 1]; ++i) fn(records[i]);
    }
  }

  int64_t Count(uint32_t shard) const {
    int64_t count = 0;
    for (int64_t chunk = 0; chunk < chunks_; ++chunk) {
      const uint32_t* starts = &starts_[chunk * (shards_ + 1)];
      count += starts[shard + 1] - starts[shard];
    }
    return count;
  }

 private:
  static constexpr int64_t kChunkElements = 16384;

  void Reserve(int64_t n) {
    if (n <= reserved_) return;
    records_.Resize(n);
    reserved_ = n;
  }

  void SortChunk(const Contributions<Sum>& contributions, int64_t chunk, int64_t begin, int64_t end,
                 uint64_t* positions) {
    const int64_t n = contributions.Positions(begin, end, positions);
    CountingSort sort(&starts_[chunk * (shards_ + 1)], shards_);
    for (int64_t i = 0; i < n; ++i) sort.Count(positions[i] >> shift_);
    sort.Start();
    Record* records = records_.data() + chunk * capacity_;
    const uint64_t mask = (uint64_t{1} << shift_) - 1;
    contributions.Values(begin, end, [&, next = positions](const Sum* values, int count) mutable {
      for (int i = 0; i < count; ++i) {
        const uint64_t position = next[i];
        records[sort.Take(position >> shift_)] = {static_cast<uint32_t>(position & mask),
                                                  values[i]};
      }
      next += count;
    });
    sort.Finish();
  }

  const int shift_;
  const uint32_t shards_;
  int64_t chunks_ = 0;
  int64_t capacity_ = 0;  // records of a chunk
  int64_t reserved_ = 0;
  Scratch<Record> records_;       // (chunks, capacity)
  std::vector<uint32_t> starts_;  // (chunks, shards + 1)
};

}  // namespace sok
