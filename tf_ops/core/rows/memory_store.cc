#include "core/rows/memory_store.h"

#include <algorithm>
#include <shared_mutex>
#include <string>
#include <thread>
#include <unordered_set>
#include <utility>

#include "core/base/status_macros.h"
#include "core/rows/apply_rows.h"
#include "core/rows/decoded_row.h"
#include "core/rows/direct_index.h"
#include "core/rows/hash_index.h"
#include "core/rows/pipelined_find.h"
#include "core/rows/store_capture.h"

namespace sok {
namespace {

constexpr int64_t kShardCost = 100000;

constexpr int kMostShardBits = 10;

constexpr size_t kMostRemoved = 4096;  // of a shard, beside twice its rows

// There are four shards for each core, so that threads seldom wait for the last shard of another.
// There are not more, since only the index of a large shard gets huge pages.
int ShardBits(uint32_t wanted = 0) {
  if (wanted == 0) {
    wanted = std::clamp(4 * std::thread::hardware_concurrency(), 8u, 256u);
  }
  int bits = 1;  // a hash is not shifted by all of its bits
  while (bits < kMostShardBits && (1u << bits) < wanted) ++bits;
  return bits;
}

// Returns true for a commit of distinct keys that are so few that one thread updates them faster
// than several could start.
bool IsFew(const std::vector<GradientBatch>& batches) {
  constexpr size_t kFew = 2048;
  return batches.size() == 1 && batches[0].distinct && batches[0].summed == nullptr &&
         batches[0].n <= kFew;
}

}  // namespace

template <typename Index>
class MemoryStore<Index>::FrozenStore final : public Frozen {
 public:
  explicit FrozenStore(const MemoryStore& store) : store_(store), lock_(store.shards_) {
    for (const auto& shard : store_.shards_) size_ += shard->index.size();
  }
  uint64_t size() const override { return size_; }
  Status ForEach(const std::function<void(Key, RowRef)>& fn) const override {
    for (const auto& shard : store_.shards_) {
      DecodedRow decoded(shard->rows);
      shard->index.ForEach([&](Key key, uint32_t row) { fn(key, decoded.Read(row)); });
    }
    return Status();
  }
  Status ForEachIn(uint64_t begin, uint64_t end,
                   const std::function<void(Key, RowRef)>& fn) const override {
    uint64_t at = 0;  // the rows of the shards before
    for (const auto& shard : store_.shards_) {
      const uint64_t size = shard->index.size();
      if (at < end && begin < at + size) {
        DecodedRow decoded(shard->rows);
        uint64_t i = at;
        shard->index.ForEach([&](Key key, uint32_t row) {
          if (i >= begin && i < end) fn(key, decoded.Read(row));
          ++i;
        });
      }
      at += size;
    }
    return Status();
  }

 private:
  const MemoryStore& store_;
  SharedLocks<std::vector<std::unique_ptr<Shard>>> lock_;
  uint64_t size_ = 0;
};

template <typename Index>
MemoryStore<Index>::MemoryStore(std::shared_ptr<const RowLayout> layout, const IndexConfig& config)
    : config_(config),
      dim_(layout->dim()),
      coding_(layout->coding() == nullptr ? std::nullopt : std::optional(*layout->coding())),
      layout_(std::move(layout)),
      arena_(std::make_shared<Arena>()) {
  for (uint32_t s = 0; s < shard_count(); ++s) {
    shards_.push_back(std::make_unique<Shard>(Index(config_, s), RowSlabs(layout_, arena_)));
  }
}

template <typename Index>
void MemoryStore<Index>::Partition(const std::vector<ShardPartition::Source>& sources,
                                   const ParallelFor& parallel_for,
                                   ShardPartition* partition) const {
  partition->Build(
      sources, shard_count(), [this](Key key) { return ShardOf(Hash(key)); }, parallel_for);
}

template <typename Index>
uint64_t MemoryStore<Index>::CountNew(const ShardPartition& partition,
                                      const ParallelFor& parallel_for) const {
  std::atomic<uint64_t> count{0};
  parallel_for(shard_count(), kShardCost, [&](int64_t first, int64_t last) {
    for (int64_t s = first; s < last; ++s) {
      const Shard& shard = *shards_[s];
      const ShardEntry* entries = partition.begin(s);
      const size_t n = partition.size(s);
      std::unordered_set<Key> absent;
      std::shared_lock<SharedMutex> lock(shard.mu);
      for (size_t i = 0; i < n; ++i) {
        const Key key = entries[i].key;
        if (shard.index.Find(key, Hash(key)) == Index::kNone) absent.insert(key);
      }
      count += absent.size();
    }
  });
  return count;
}

template <typename Index>
Status MemoryStore<Index>::ReadMeta(const Key* keys, size_t n, RowMeta* metas, uint8_t* exists,
                                    const ParallelFor& parallel_for) {
  ShardPartition partition;
  Partition({{keys, n}}, parallel_for, &partition);
  parallel_for(shard_count(), kShardCost, [&](int64_t first, int64_t last) {
    std::vector<uint32_t> rows;
    for (int64_t s = first; s < last; ++s) {
      const Shard& shard = *shards_[s];
      const ShardEntry* entries = partition.begin(s);
      rows.resize(partition.size(s));
      std::shared_lock<SharedMutex> lock(shard.mu);
      FindEntries(
          shard.index, entries, rows.size(), [this](Key key) { return Hash(key); }, rows.data());
      for (size_t i = 0; i < rows.size(); ++i) {
        const uint32_t position = entries[i].position;
        exists[position] = rows[i] != Index::kNone;
        metas[position] = exists[position] != 0 ? *shard.rows.meta(rows[i]) : RowMeta{};
      }
    }
  });
  return Status();
}

template <typename Index>
Status MemoryStore<Index>::Upsert(const Key* keys, size_t n, uint64_t max_rows, uint32_t now,
                                  const WriteRow& write, const ParallelFor& parallel_for) {
  WaitForCapture();
  ShardPartition partition;
  Partition({{keys, n}}, parallel_for, &partition);
  std::unique_lock<std::mutex> admission(limit_mu_, std::defer_lock);
  if (max_rows > 0) admission.lock();
  if (max_rows > 0 && size() + n > max_rows) {
    const uint64_t added = CountNew(partition, parallel_for);
    if (added > 0 && size() + added > max_rows) {
      return TableFull(size(), max_rows, added);
    }
  }
  Status failure;
  std::mutex failure_mu;
  parallel_for(shard_count(), kShardCost, [&](int64_t first, int64_t last) {
    std::vector<uint32_t> rows;
    for (int64_t s = first; s < last; ++s) {
      Shard& shard = *shards_[s];
      const ShardEntry* entries = partition.begin(s);
      const size_t m = partition.size(s);
      if (m == 0) continue;
      rows.resize(m);
      std::lock_guard<SharedMutex> lock(shard.mu);
      FindEntries(
          shard.index, entries, m, [this](Key key) { return Hash(key); }, rows.data());
      const auto absent = static_cast<uint32_t>(std::count(rows.begin(), rows.end(), Index::kNone));
      Status status = shard.index.Reserve(absent);
      if (status.ok()) status = shard.rows.Reserve(absent);
      if (!status.ok()) {
        std::lock_guard<std::mutex> guard(failure_mu);
        failure = status;
        return;
      }
      DecodedRow decoded(shard.rows);
      uint64_t made = 0;
      for (size_t i = 0; i < m; ++i) {
        const Key key = entries[i].key;
        // An earlier entry of this call may have made the row.
        if (rows[i] == Index::kNone) rows[i] = shard.index.Find(key, Hash(key));
        const bool is_new = rows[i] == Index::kNone;
        if (is_new) {
          rows[i] = shard.rows.Allocate();
          shard.index.Insert(key, Hash(key), rows[i]);
          *shard.rows.meta(rows[i]) = RowMeta{0, now};
          size_.fetch_add(1, std::memory_order_relaxed);
          ++made;
        }
        if (shard.marks != nullptr) shard.marks->Changing(key, rows[i], shard.rows);
        write(entries[i].position, is_new ? decoded.Start(rows[i]) : decoded.Read(rows[i]), is_new);
        decoded.Write(rows[i]);
      }
      made_.fetch_add(made, std::memory_order_relaxed);
    }
  });
  return failure;
}

template <typename Index>
Result<uint64_t> MemoryStore<Index>::Apply(const std::vector<GradientBatch>& batches,
                                           const RowOptimizer& optimizer, const CommitStep& step,
                                           const ParallelFor& parallel_for) {
  WaitForCapture();
  if (IsFew(batches)) {
    const uint64_t rows = ApplyFew(batches, optimizer, step);
    if (step.applied != nullptr) *step.applied = true;
    return rows;
  }
  const ShardPartition& partition = PartitionOf(*this, batches, parallel_for, &apply_partition_);
  std::atomic<uint64_t> touched{0};
  parallel_for(shard_count(), kShardCost, [&](int64_t first, int64_t last) {
    thread_local RowUpdate update;
    thread_local std::vector<uint32_t> numbers;
    for (int64_t s = first; s < last; ++s) {
      Shard& shard = *shards_[s];
      const size_t n = partition.size(s);
      if (n == 0) continue;
      numbers.resize(n);
      std::lock_guard<SharedMutex> lock(shard.mu);
      FindEntries(
          shard.index, partition.begin(s), n, [this](Key key) { return Hash(key); },
          numbers.data());
      if (shard.marks != nullptr) {
        const ShardEntry* const entries = partition.begin(s);
        shard.marks->ChangingMany(
            numbers.data(), n, [entries](size_t i) { return entries[i].key; }, shard.rows);
      }
      touched += update
                     .Apply(shard.rows, partition.begin(s), numbers.data(), n, batches, dim_,
                            optimizer, step)
                     .size();
    }
  });
  if (step.applied != nullptr) *step.applied = true;
  return touched.load();
}

template <typename Index>
Result<uint64_t> MemoryStore<Index>::Erase(const Key* keys, size_t n,
                                           const ParallelFor& parallel_for) {
  WaitForCapture();
  ShardPartition partition;
  Partition({{keys, n}}, parallel_for, &partition);
  std::atomic<uint64_t> erased{0};
  parallel_for(shard_count(), kShardCost, [&](int64_t first, int64_t last) {
    for (int64_t s = first; s < last; ++s) {
      Shard& shard = *shards_[s];
      uint32_t gone = 0;
      std::lock_guard<SharedMutex> lock(shard.mu);
      erasures_ += partition.size(s) > 0;
      for (size_t i = 0; i < partition.size(s); ++i) {
        const Key key = partition.begin(s)[i].key;
        const uint32_t row = shard.index.Erase(key, Hash(key));
        if (row == Index::kNone) continue;
        if (shard.marks != nullptr) shard.marks->BeforeErase(key, row, shard.rows);
        shard.rows.Free(row);
        ++gone;
      }
      shard.index.Trim(gone);
      size_.fetch_sub(gone, std::memory_order_relaxed);
      erased += gone;
      // If rows come and go for long, a list of the removed keys would outgrow the table.
      if (shard.marks != nullptr &&
          shard.marks->removed() > kMostRemoved + 2 * shard.index.size()) {
        for (auto& mark : marks_) mark = 0;
        shard.marks->StopNoting();
      }
    }
  });
  return erased.load();
}

template <typename Index>
void MemoryStore<Index>::Clear() {
  ForgetChanges();
  std::lock_guard<std::mutex> guard(layout_mu_);
  arena_ = std::make_shared<Arena>();
  for (uint32_t s = 0; s < shard_count(); ++s) {
    Shard& shard = *shards_[s];
    std::lock_guard<SharedMutex> lock(shard.mu);
    size_.fetch_sub(shard.index.size(), std::memory_order_relaxed);
    if (shard.marks != nullptr) shard.marks->ChangingAll(shard.index, shard.rows);
    shard.index = Index(config_, s);
    shard.rows = RowSlabs(layout_, arena_);
    ++erasures_;
  }
}

template <typename Index>
Status MemoryStore<Index>::Replace(std::shared_ptr<const RowLayout> layout, const TableState& state,
                                   const Key* keys, size_t n, uint32_t now, const WriteRow& write,
                                   const ParallelFor& parallel_for) {
  Clear();
  SOK_RETURN_IF_ERROR(Relayout(std::move(layout), state, parallel_for).status());
  return Upsert(keys, n, /*max_rows=*/0, now, write, parallel_for);
}

template <typename Index>
Result<bool> MemoryStore<Index>::Relayout(std::shared_ptr<const RowLayout> layout,
                                          const TableState& /*state*/,
                                          const ParallelFor& parallel_for) {
  // Each shard is asked separately: a Relayout that ran out of memory leaves some of them as they
  // were.
  bool reshape = false;
  for (const auto& shard : shards_) {
    std::shared_lock<SharedMutex> lock(shard->mu);
    reshape |= !layout->SameShape(shard->rows.layout());
  }
  if (reshape) ForgetChanges();
  std::lock_guard<std::mutex> guard(layout_mu_);
  auto arena = reshape ? std::make_shared<Arena>() : arena_;
  Status failure;
  std::mutex failure_mu;
  parallel_for(shard_count(), reshape ? kShardCost : 100, [&](int64_t first, int64_t last) {
    for (int64_t s = first; s < last; ++s) {
      Shard& shard = *shards_[s];
      std::lock_guard<SharedMutex> lock(shard.mu);
      if (!reshape) {
        shard.rows.set_layout(layout);
        continue;
      }
      if (shard.marks != nullptr) shard.marks->ChangingAll(shard.index, shard.rows);
      Result<RowSlabs> relaid = shard.rows.WithLayout(layout, arena);
      if (!relaid.ok()) {
        std::lock_guard<std::mutex> failure_guard(failure_mu);
        failure = relaid.status();
        return;
      }
      shard.rows = std::move(relaid.value());
    }
  });
  all_laid_out_ = failure.ok();
  if (!failure.ok()) return failure;
  layout_ = std::move(layout);
  arena_ = std::move(arena);
  return reshape;
}

template <typename Index>
bool MemoryStore<Index>::IsLaidOut(const std::vector<Slot>& slots) const {
  std::lock_guard<std::mutex> guard(layout_mu_);
  return all_laid_out_ && layout_->slots() == slots;
}

template <typename Index>
std::shared_ptr<const RowLayout> MemoryStore<Index>::layout() const {
  std::lock_guard<std::mutex> guard(layout_mu_);
  return layout_;
}

template <typename Index>
uint64_t MemoryStore<Index>::index_bytes() const {
  const SharedLocks lock(shards_);
  uint64_t bytes = 0;
  for (const auto& shard : shards_) bytes += shard->index.bytes();
  return bytes;
}

template <typename Index>
uint64_t MemoryStore<Index>::row_bytes() const {
  const SharedLocks lock(shards_);
  std::unordered_set<const Arena*> arenas;  // more than one after a Relayout that ran out of memory
  uint64_t bytes = 0, untouched = 0;
  for (const auto& shard : shards_) {
    const Arena& arena = shard->rows.arena();
    if (arenas.insert(&arena).second) bytes += arena.resident_bytes();
    untouched += shard->rows.untouched_bytes();
  }
  return bytes - untouched;
}

template <typename Index>
Result<std::unique_ptr<RowStore::Frozen>> MemoryStore<Index>::Freeze() {
  return std::unique_ptr<Frozen>(std::make_unique<FrozenStore>(*this));
}

template <typename Index>
Status MemoryStore<Index>::ListKeys(uint32_t part, std::vector<Key>* keys) const {
  const Shard& shard = *shards_[part];
  std::shared_lock<SharedMutex> lock(shard.mu);
  keys->reserve(keys->size() + shard.index.size());
  shard.index.ForEach([&](Key key, uint32_t) { keys->push_back(key); });
  return Status();
}

template <typename Index>
Result<std::unique_ptr<RowCapture>> MemoryStore<Index>::BeginCapture(
    const CaptureOptions& options) {
  return StoreCapture::Begin(*this, options);
}

template <typename Index>
void MemoryStore<Index>::WaitForCapture() const {
  if (!capturing_.load(std::memory_order_relaxed)) return;
  CaptureBudget::OfProcess().WaitForRoom([this] { return !capturing_.load(); });
}

template <typename Index>
void MemoryStore<Index>::ForgetChanges() {
  for (auto& mark : marks_) mark = 0;
  for (const auto& shard : shards_) {
    std::lock_guard<SharedMutex> lock(shard->mu);
    if (shard->marks != nullptr) shard->marks->StopNoting();
  }
}

template class MemoryStore<HashIndex>;
template class MemoryStore<DirectIndex>;

std::unique_ptr<RowStore> MakeHashStore(std::shared_ptr<const RowLayout> layout, uint32_t shards) {
  IndexConfig config;
  config.shard_bits = ShardBits(shards);
  return std::make_unique<MemoryStore<HashIndex>>(std::move(layout), config);
}

std::unique_ptr<RowStore> MakeDirectStore(std::shared_ptr<const RowLayout> layout,
                                          IndexConfig config) {
  config.shard_bits = ShardBits();
  return std::make_unique<MemoryStore<DirectIndex>>(std::move(layout), config);
}

}  // namespace sok
