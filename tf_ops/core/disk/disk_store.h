// One group's rows on disk, behind a write-back cache in memory.
//
// A key's newest version lies in the cache if it is there, else in the spill, else in the database.
// What the cache holds is found by index, like the memory store's rows; a clock chooses what
// leaves, for the spill, a file whose places are in memory too; misses of a batch are read from
// there, the rest with one sorted MultiGet a shard. What is newer than the database goes there when
// the storage is flushed, or when the spill has no room for it. Where every call is durable, its
// rows are in the storage's journal as well until then.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <vector>

#include "core/disk/cache_rows.h"
#include "core/disk/durable_store.h"
#include "core/disk/journal.h"
#include "core/disk/spill.h"
#include "core/disk/storage_core.h"
#include "core/rows/apply_rows.h"
#include "core/rows/decoded_row.h"
#include "core/rows/hash_index.h"
#include "core/rows/shard_partition.h"

namespace sok {

class DiskStore final : public DurableStore {
 public:
  DiskStore(std::shared_ptr<StorageCore> core, int group, const GroupMeta& meta);
  ~DiskStore() override;

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
  uint64_t replacements() const override { return replacements_; }
  Result<std::optional<uint64_t>> EraseUnlessReplaced(uint64_t seen, const Key* keys, size_t n,
                                                      const ParallelFor& parallel_for) override;
  Result<std::optional<uint64_t>> EraseForNewcomers(uint64_t seen, const Key* keys, size_t n,
                                                    const ParallelFor& parallel_for) override;
  Status Replace(std::shared_ptr<const RowLayout> layout, const TableState& state, const Key* keys,
                 size_t n, uint32_t now, const WriteRow& write,
                 const ParallelFor& parallel_for) override;
  Status Set(const Key* keys, size_t n, uint64_t max_rows, uint32_t now, const WriteRow& write,
             const ParallelFor& parallel_for) override;
  Result<bool> Relayout(std::shared_ptr<const RowLayout> layout, const TableState& state,
                        const ParallelFor& parallel_for) override;
  bool IsLaidOut(const std::vector<Slot>& slots) const override;
  std::shared_ptr<const RowLayout> layout() const override;
  // With a TTL, rows that have expired count until something comes upon them.
  uint64_t size() const override { return static_cast<uint64_t>(std::max<int64_t>(0, rows_)); }
  Status LeaveOutExpired(uint32_t now) override;
  uint64_t made() const override { return made_; }
  uint64_t cache_hits() const override { return cache_hits_; }
  // These two say what the cache takes.
  uint64_t index_bytes() const override;
  uint64_t row_bytes() const override;
  Result<std::unique_ptr<Frozen>> Freeze() override;

  GroupMeta meta() const override;
  Status RecordMeta() override;
  uint64_t DirtyBytes() const override;
  Status ForEachDirty(const VisitDirty& fn) const override;
  uint32_t parts() const override { return shard_count(); }
  Result<uint64_t> SpillDirty(uint32_t part) override;
  std::unique_ptr<FrozenRows> FreezeDirty() override;
  void Thaw(bool published) override;
  Status RecordRemovals() override;
  bool can_spill() const override;
  void MarkClean() override;
  void MarkPublished() override;
  Status Settle() override;
  void DropSpilled() override;
  void DropCache(uint64_t rows, uint32_t counted_at) override;

 private:
  static constexpr int64_t kShardCost = 100000;  // nanoseconds, for ParallelFor

  struct Shard;
  class FrozenStore;
  // Says where the newest version of a row is that the database does not have.
  struct DirtyPlace {
    static constexpr uint32_t kCached = uint32_t{1} << 31;
    bool cached() const { return (where & kCached) != 0; }
    uint32_t shard() const { return where & ~kCached; }

    Key key;
    uint32_t where;   // kCached and the shard, or the segment of the spill
    uint32_t number;  // in the cache, or in the segment
  };

  static uint64_t Hash(Key key) { return HashIndex::Hash(key); }
  uint32_t ShardOf(uint64_t hash) const { return HashIndex::ShardOf(hash, shard_bits_); }
  uint32_t shard_count() const { return uint32_t{1} << shard_bits_; }
  bool Expired(const Shard& shard, uint32_t row, uint32_t now) const;
  // Returns true if size() counts a row: the last count of the rows has left out the rows that had
  // expired.
  bool IsCounted(const Shard& shard, uint32_t row) const;
  // When a change happens that was to happen at `now`: not before the last count of the rows, which
  // would not have seen it. Called with the gate held.
  uint32_t NotBeforeCount(uint32_t now) const;
  uint32_t layout_number() const { return layout_number_.load(std::memory_order_relaxed); }

  template <typename T>
  Status GatherAs(const Key* keys, size_t n, T* out, const GatherOptions& options,
                  const FillEmbedding& fill, std::vector<uint32_t>* missing,
                  const ParallelFor& parallel_for);
  // Finds rows in the cache, and calls found(i, row, is_given) beside other readers; for given
  // rows, as in GatherOptions, as well. Returns the positions of the others.
  template <typename Found>
  std::vector<uint32_t> FindCached(const Key* keys, size_t n, const float* const* given,
                                   int prefetch_floats, uint32_t now,
                                   const ParallelFor& parallel_for, const Found& found) const;
  // Looks for the keys at positions `rest` in the database too. Calls visit(shard, entries, rows,
  // n) shard by shard; an entry's position is one in `rest`, and rows are as LoadEntries has them.
  template <typename Visit>
  Status ForEachRest(const Key* keys, const std::vector<uint32_t>& rest, uint32_t now,
                     const ParallelFor& parallel_for, const Visit& visit);
  // Calls fn(shard, entries, count) for every shard that a batch has keys in, alone in the shard,
  // and trims the shard then, unless room that was made is to be kept. Returns the first
  // error.
  using VisitShard = std::function<Status(Shard& shard, const ShardEntry* entries, size_t n)>;
  Status ForEachShard(const ShardPartition& partition, const ParallelFor& parallel_for,
                      const VisitShard& fn, bool keep_room = false);
  // The same for changes to rows that are kept in the cache, where fn fails before it has changed
  // any row of its shard: it says so if others have changed by then.
  Status ChangeEachShard(const ShardPartition& partition, const ParallelFor& parallel_for,
                         const VisitShard& fn);
  // Returns the record of a call and reserves its memory, so that changes begin only where there is
  // enough.
  std::vector<RowBatch> RecordOf(const ShardPartition& partition) const;

  // The rest is called with the gate and, exclusively, the shard held.

  // The cached row of each entry, read from the database where need be; kNone if there is none or
  // it has expired. Rows that were found get the flag `keep`, a RowState or 0, unless it fails, and
  // so do those in `not_removed`: rows that have expired and that RemoveExpired has left.
  Status LoadEntries(Shard& shard, const ShardEntry* entries, size_t n, uint32_t now, uint16_t keep,
                     uint32_t* rows, std::vector<uint32_t>* not_removed = nullptr);
  // Reads keys, ascending and distinct, that are not cached, into the cache.
  Status LoadKeys(Shard& shard, const std::vector<Key>& keys);
  // Makes `wanted` rows free: by growing, at another's expense, or by eviction.
  Status MakeRoom(Shard& shard, size_t wanted);
  // Makes `wanted` rows free without the disk; only memory may end.
  Status MakeRoomBeyondBudget(Shard& shard, size_t wanted);
  Status NoMemory(const Shard& shard) const;
  // Takes rows out of the cache, to the spill or the database.
  Status SpillRows(Shard& shard, const std::vector<uint32_t>& rows);
  // Orders rows by key and writes them to the spill, or, without room there, those that are dirty
  // to the database, and sets *spilled accordingly.
  Status SpillOrWrite(Shard& shard, std::vector<Spill::Row>* rows, bool* spilled);
  Spill::Row SpillRowOf(const Shard& shard, uint32_t row) const;
  // Finds room in the spill for more rows, or returns false.
  Result<bool> ReserveSpill(Shard& shard, size_t rows);
  Status SpillBlock(Shard& shard);
  RowHeader HeaderOf(const Shard& shard, uint32_t row) const;
  void AddSpillRow(const Spill::Head& head, const char* values, size_t n, RowBatch* batch) const;
  void AddToBatch(const Shard& shard, uint32_t row, RowBatch* batch) const;
  void AddRows(const Shard& shard, const std::vector<uint32_t>& rows, RowBatch* batch) const;
  // Orders the rows, and leaves each of them once.
  void AddDistinct(const Shard& shard, std::vector<uint32_t>* rows, RowBatch* batch) const;
  // Returns the number of bytes of a row in a RowBatch.
  size_t RecordBytes() const;
  // The number of the shard that entries are in.
  uint32_t NumberOf(const ShardEntry* entries) const { return ShardOf(Hash(entries->key)); }
  // Writes rows to the database, pending.
  Status Write(const RowBatch& batch) { return core_->database->WritePending(batch); }
  // Counts the rows in shard.found that a step gives another life.
  void CountRevived(Shard* shard);
  Status CountNew(const ShardPartition& partition, uint32_t now, const ParallelFor& parallel_for,
                  uint64_t* count);
  // Checks that the keys fit in beside max_rows, where there is such a limit.
  Status CheckFits(const ShardPartition& partition, uint64_t max_rows, uint32_t now,
                   const ParallelFor& parallel_for);
  // The parts of a call that changes rows as a whole or not at all. First every row that is there
  // into the cache, kept there, its number in shard.found; on an error none is kept.
  Status KeepAll(const ShardPartition& partition, uint32_t now, const ParallelFor& parallel_for);
  // Serial: where memory has ended, a thread pool may not take work.
  void ReleaseAll(const ShardPartition& partition);
  // Leaves each row once in shard.found. With a journal, removals[s] becomes the record of how
  // those of shard s go, and with a TTL that of the other keys too, whose rows may have expired.
  Status CollectRemovals(const ShardPartition& partition, const ParallelFor& parallel_for,
                         std::vector<RowBatch>* removals);
  // Moves kept rows that have expired, which RemoveExpired has left, into shard.found. Returns how
  // many.
  size_t TakeExpired(Shard* shard, uint32_t now);
  // Removes the rows in shard.found, each there once, from the database, for who holds all of their
  // shards. Serial: pieces of other calls, on a pool that would be waited for, want those shards.
  Status EraseKept(const ShardPartition& partition);
  // A call that changes rows holds these: the gate, and room in the journal, if there is one.
  struct Call {
    StorageCore::Entrance gate;
    Journal::Room room;
  };
  Result<Call> BeginCall(size_t rows);
  // Erases rows, unless some were replaced. If `unrecorded`, the next record has the removals.
  Result<std::optional<uint64_t>> EraseAll(uint64_t seen, const Key* keys, size_t n,
                                           bool unrecorded, const ParallelFor& parallel_for);
  // The error of a call that changed rows and could not make that durable.
  static Status NotOnDisk(const Status& why);
  // Makes the call that changed these rows durable, where calls are, with unrecorded_.
  Status Record(Journal::Room room, std::vector<RowBatch> rows);
  // Gives back what a large batch took beyond the budget, and if the shard has its turn some more.
  Status Trim(Shard& shard, bool has_turn);
  // Removes rows that have expired, so that they are met no more; what the disk does not let go now
  // stays, and is expired all the same. Returns those.
  std::vector<uint32_t> RemoveExpired(Shard& shard, std::vector<uint32_t> expired);
  // Empties the cache if the shape is another, and the spill; nothing may be dirty then. Needs no
  // memory: `slots` is a copy of the layout's.
  void SetLayout(std::shared_ptr<const RowLayout> layout, std::vector<Slot> slots);
  // A part of Settle that may be made twice.
  Status SettleOnce();
  // Calls `write` for entries whose rows are in the cache, by way of `decoded`, making those that
  // are kNone, for which there is room. Sets them. Takes no memory.
  void WriteEntries(Shard& shard, const ShardEntry* entries, size_t n, uint32_t now,
                    const WriteRow& write, DecodedRow<CacheRows>* decoded, uint32_t* rows);
  Status UpsertAll(const ShardPartition& partition, uint32_t now, const WriteRow& write,
                   const ParallelFor& parallel_for);
  // Called with the gate held exclusively.
  void SetState(TableState state);
  // Calls fn for the rows of these places, which it sorts.
  Status VisitPlaces(std::vector<DirtyPlace>* places, size_t row_bytes, const VisitDirty& fn) const;
  // Reads those of the rows that are spilled into records, the row of places[i] into record i.
  Status ReadSpilled(const DirtyPlace* places, size_t n, size_t record_bytes,
                     std::vector<char>* records) const;
  // Has every row of the database hidden, pending.
  Status HideAll();
  // Publishes what is pending and what is dirty, when no other group has any of either.
  Status Publish();
  Status UpsertAlone(const Key* keys, size_t n, uint32_t now, const WriteRow& write,
                     const ParallelFor& parallel_for);
  // Leaves rows that have expired out of size() before they keep new ones out.
  Status CountAnew(size_t added, uint64_t max_rows, uint32_t now);
  // Returns true if size() may count rows that have expired and it is time to look.
  bool MayHaveExpired(uint32_t now);

  const std::shared_ptr<StorageCore> core_;
  const int group_;
  const int dim_;
  const int shard_bits_;
  const GroupMeta start_;                  // the parts that do not change
  const std::optional<RowCoding> coding_;  // of the embedding alone, which all layouts share
  std::vector<std::unique_ptr<Shard>> shards_;
  std::atomic<int64_t> rows_;  // wherever they are; a row that moves is counted once
  std::atomic<uint64_t> made_{0}, cache_hits_{0};
  std::atomic<uint32_t> counted_at_;       // when rows that had expired were last left out
  std::atomic<uint64_t> replacements_{0};  // changes while the gate is held alone
  std::atomic<uint32_t> layout_number_;
  std::mutex limit_mu_;  // one Upsert at a time where there is a limit to keep
  // One call at a time that changes rows as a whole. Guards shard.found and, with the gate,
  // unrecorded_.
  std::mutex write_mu_;
  RowBatch unrecorded_;  // removals that no record has yet: the next one begins with them
  ShardPartition apply_partition_;  // scratch of Apply
  std::atomic<uint32_t> trims_{0};  // calls that may give memory back
  mutable std::mutex meta_mu_;      // guards the two below
  std::shared_ptr<const RowLayout> layout_;
  TableState state_;
};

}  // namespace sok
