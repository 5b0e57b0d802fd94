// Commits of few keys, which no partition by shard would repay.
#include <algorithm>
#include <memory>
#include <vector>

#include "core/rows/apply_rows.h"
#include "core/rows/direct_index.h"
#include "core/rows/hash_index.h"
#include "core/rows/memory_store.h"
#include "core/rows/pipelined_find.h"

namespace sok {
namespace {

// The rows of a block of keys, whichever shards they are in, as RowUpdate takes rows.
class FewRows {
 public:
  static constexpr size_t kMost = 256;  // rows, which stay in the cache from the search to the step

  explicit FewRows(const RowLayout& layout) : layout_(layout) {}
  const RowLayout& layout() const { return layout_; }
  float* row(uint32_t i) const { return rows_[i]; }
  RowMeta* meta(uint32_t i) const { return metas_[i]; }
  void Set(size_t i, float* row, RowMeta* meta) {
    rows_[i] = row;
    metas_[i] = meta;
    __builtin_prefetch(meta, /*rw=*/1);
  }

 private:
  const RowLayout& layout_;
  float* rows_[kMost];
  RowMeta* metas_[kMost];
};

}  // namespace

template <typename Index>
template <typename Found, typename Absent>
void MemoryStore<Index>::TakeFound(const GradientBatch& batch, size_t begin, size_t end, int floats,
                                   const Found& found, const Absent& absent) const {
  for (size_t i = begin; i < end; ++i) {
    const uint64_t hash = Hash(batch.keys[i]);
    const Shard& shard = *shards_[ShardOf(hash)];
    uint32_t number = batch.found->numbers[i];
    // The row may have been made since.
    if (number == Index::kNone) number = shard.index.Find(batch.keys[i], hash);
    if (number == Index::kNone) {
      absent(i);
      continue;
    }
    const float* const row = shard.rows.row(number);
    PrefetchForCopy(row, floats);
    found(i, &shard, number, row);
  }
}

template <typename Index>
uint64_t MemoryStore<Index>::ApplyFew(const std::vector<GradientBatch>& batches,
                                      const RowOptimizer& optimizer, const CommitStep& step) {
  thread_local RowUpdate scratch;
  RowUpdate& update = scratch;
  const std::shared_ptr<const RowLayout> layout = this->layout();
  FewRows rows(*layout);
  ShardEntry entries[FewRows::kMost];
  uint32_t numbers[FewRows::kMost];
  const GradientBatch& batch = batches[0];
  const auto floats = static_cast<int>(layout->row_bytes() / sizeof(float));
  uint64_t touched = 0;
  const ExclusiveLocks lock(shards_);
  const bool known = batch.found != nullptr && batch.found->erasures == erasures_;
  for (size_t begin = 0; begin < batch.n; begin += FewRows::kMost) {
    const size_t end = std::min(batch.n, begin + FewRows::kMost);
    const auto found = [&](size_t i, const Shard* shard, uint32_t number, const float*) {
      if (shard->marks != nullptr) shard->marks->Changing(batch.keys[i], number, shard->rows);
      rows.Set(i - begin, shard->rows.row(number), shard->rows.meta(number));
      numbers[i - begin] = static_cast<uint32_t>(i - begin);
    };
    const auto absent = [&](size_t i) { numbers[i - begin] = Index::kNone; };
    if (known) {
      TakeFound(batch, begin, end, floats, found, absent);
    } else {
      FindRange<Index, Shard>(
          batch.keys, begin, end, /*given=*/nullptr, floats, [this](Key key) { return Hash(key); },
          [this](uint64_t hash) -> const Shard& { return *shards_[ShardOf(hash)]; }, found, absent);
    }
    for (size_t i = begin; i < end; ++i) {
      const uint32_t position =
          batch.positions == nullptr ? static_cast<uint32_t>(i) : batch.positions[i];
      entries[i - begin] = {batch.keys[i], 0, position};
    }
    touched +=
        update.Apply(rows, entries, numbers, end - begin, batches, dim_, optimizer, step).size();
  }
  return touched;
}

template uint64_t MemoryStore<HashIndex>::ApplyFew(const std::vector<GradientBatch>&,
                                                   const RowOptimizer&, const CommitStep&);
template uint64_t MemoryStore<DirectIndex>::ApplyFew(const std::vector<GradientBatch>&,
                                                     const RowOptimizer&, const CommitStep&);

}  // namespace sok
