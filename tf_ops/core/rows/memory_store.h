// Rows in memory, sharded by hash.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "core/base/page_memory.h"
#include "core/base/shared_mutex.h"
#include "core/rows/row_slabs.h"
#include "core/rows/row_store.h"
#include "core/rows/shard_marks.h"
#include "core/rows/shard_partition.h"

namespace sok {

// A RowStore in memory, whose methods are as thread-safe as RowStore says. Index is HashIndex or
// DirectIndex.
template <typename Index>
class MemoryStore final : public RowStore {
 public:
  MemoryStore(std::shared_ptr<const RowLayout> layout, const IndexConfig& config);

  Status Gather(const Key* keys, size_t n, float* out, const GatherOptions& options,
                const FillEmbedding& fill, std::vector<uint32_t>* missing,
                const ParallelFor& parallel_for) override;
  Status Gather(const Key* keys, size_t n, BFloat16* out, const GatherOptions& options,
                const FillEmbedding& fill, std::vector<uint32_t>* missing,
                const ParallelFor& parallel_for) override;
  Result<std::vector<uint32_t>> Missing(const Key* keys, size_t n,
                                        const ParallelFor& parallel_for) override;
  Status ReadMeta(const Key* keys, size_t n, RowMeta* metas, uint8_t* exists,
                  const ParallelFor& parallel_for) override;
  Status Upsert(const Key* keys, size_t n, uint64_t max_rows, uint32_t now, const WriteRow& write,
                const ParallelFor& parallel_for) override;
  void Partition(const std::vector<ShardPartition::Source>& sources,
                 const ParallelFor& parallel_for, ShardPartition* partition) const override;
  Result<uint64_t> Apply(const std::vector<GradientBatch>& batches, const RowOptimizer& optimizer,
                         const CommitStep& step, const ParallelFor& parallel_for) override;
  Result<uint64_t> Erase(const Key* keys, size_t n, const ParallelFor& parallel_for) override;
  Status Replace(std::shared_ptr<const RowLayout> layout, const TableState& state, const Key* keys,
                 size_t n, uint32_t now, const WriteRow& write,
                 const ParallelFor& parallel_for) override;
  void Clear();
  Result<bool> Relayout(std::shared_ptr<const RowLayout> layout, const TableState& state,
                        const ParallelFor& parallel_for) override;
  bool IsLaidOut(const std::vector<Slot>& slots) const override;
  std::shared_ptr<const RowLayout> layout() const override;
  uint64_t size() const override { return size_.load(std::memory_order_relaxed); }
  uint64_t erasures() const override { return erasures_; }
  uint64_t made() const override { return made_.load(std::memory_order_relaxed); }
  uint64_t index_bytes() const override;
  uint64_t row_bytes() const override;
  Result<std::unique_ptr<Frozen>> Freeze() override;
  uint32_t parts() const override { return shard_count(); }
  Status ListKeys(uint32_t part, std::vector<Key>* keys) const override;
  Result<std::unique_ptr<RowCapture>> BeginCapture(const CaptureOptions& options) override;

 private:
  struct alignas(64) Shard {
    Shard(Index index, RowSlabs rows) : index(std::move(index)), rows(std::move(rows)) {}
    mutable SharedMutex mu;
    Index index;
    RowSlabs rows;
    std::unique_ptr<ShardMarks> marks;  // null before the first capture
  };
  class FrozenStore;
  class StoreCapture;

  uint32_t ShardOf(uint64_t hash) const { return Index::ShardOf(hash, config_.shard_bits); }
  uint64_t Hash(Key key) const { return Index::Hash(key, config_); }
  uint32_t shard_count() const { return uint32_t{1} << config_.shard_bits; }

  template <typename T>
  void GatherAs(const Key* keys, size_t n, T* out, const GatherOptions& options,
                const FillEmbedding& fill, std::vector<uint32_t>* missing,
                const ParallelFor& parallel_for) const;
  // The part of GatherAs for rows in fewer bytes; appends positions without a row. Every shard must
  // be locked.
  template <typename T>
  void GatherCoded(const Key* keys, size_t begin, size_t end, T* out, const GatherOptions& options,
                   std::vector<uint32_t>* absent) const;
  // Calls found(i, number, row) or absent(i) for i in [begin, end); `given` is as in GatherOptions.
  // Every shard must be locked.
  template <typename Found, typename Absent>
  void Find(const Key* keys, size_t begin, size_t end, const float* const* given,
            int prefetch_floats, const Found& found, const Absent& absent) const;
  // Applies one batch of distinct keys. All shards are locked meanwhile.
  uint64_t ApplyFew(const std::vector<GradientBatch>& batches, const RowOptimizer& optimizer,
                    const CommitStep& step);
  // Does what FindRange does, for keys [begin, end) whose rows are known: calls found(i, shard,
  // number, row) or absent(i).
  template <typename Found, typename Absent>
  void TakeFound(const GradientBatch& batch, size_t begin, size_t end, int floats,
                 const Found& found, const Absent& absent) const;
  uint64_t CountNew(const ShardPartition& partition, const ParallelFor& parallel_for) const;

  // Waits, before any lock is taken, while the copies of a capture have no room.
  void WaitForCapture() const;
  // Forgets what changes were noted; the next captures are of all rows. The shards' locks are free.
  void ForgetChanges();

  const IndexConfig config_;
  const int dim_;
  // Decodes embeddings alone, since slots come and go. None: embeddings are floats.
  const std::optional<RowCoding> coding_;
  std::vector<std::unique_ptr<Shard>> shards_;
  std::atomic<uint64_t> size_{0}, made_{0};
  std::atomic<uint64_t> erasures_{0};  // changes with the lock of a shard
  std::mutex limit_mu_;                // one Upsert at a time where there is a limit to keep
  ShardPartition apply_partition_;     // scratch of Apply
  std::atomic<bool> capturing_{false};
  // The numbers of the states that changes are noted since, for each reader; 0: none.
  std::array<std::atomic<uint64_t>, CaptureOptions::kReaders> marks_{};
  mutable std::mutex layout_mu_;  // guards the three below
  bool all_laid_out_ = true;      // false: some shards' rows have another layout than this
  std::shared_ptr<const RowLayout> layout_;
  std::shared_ptr<Arena> arena_;
};

}  // namespace sok
