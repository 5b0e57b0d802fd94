// One group's rows on disk, behind a write-back cache in memory.
//
// A key's newest version lies in the cache if it is there, else in the spill, else in the database.
// An index finds cached rows, like the rows of the memory store. A clock chooses rows that leave
// the cache for the spill, a file; the places of its rows are in memory too. Rows of a batch that
// are not cached are read from the spill, and the rest from the database, with one sorted MultiGet
// for each shard. Rows that are newer than the database are written to it when the storage is
// flushed, or when the spill has no room for them. If every call is durable, the storage's journal
// has its rows until then.
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
  Status ReadAhead(const Key* keys, size_t n, const ParallelFor& parallel_for) override;
  AheadCounts ahead() const override { return {read_ahead_, left_behind_}; }
  Status ReadMeta(const Key* keys, size_t n, RowMeta* metas, uint8_t* exists,
                  const ParallelFor& parallel_for) override;
  Status Upsert(const Key* keys, size_t n, uint64_t max_rows, uint32_t now, const WriteRow& write,
                const ParallelFor& parallel_for) override;
  void Partition(const std::vector<ShardPartition::Source>& sources,
                 const ParallelFor& parallel_for, ShardPartition* partition) const override;
  Result<uint64_t> Apply(const std::vector<GradientBatch>& batches, const RowOptimizer& optimizer,
                         const CommitStep& step, const ParallelFor& parallel_for) override;
  Result<uint64_t> Erase(const Key* keys, size_t n, const ParallelFor& parallel_for) override;
  Status CheckRoom(size_t rows) override;
  Result<uint64_t> Unmake(const Key* keys, size_t n, const ParallelFor& parallel_for) override;
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
  // With a TTL, rows that have expired count until a call meets them.
  uint64_t size() const override { return static_cast<uint64_t>(std::max<int64_t>(0, rows_)); }
  Status LeaveOutExpired(uint32_t now) override;
  uint64_t made() const override { return made_; }
  uint64_t cache_hits() const override { return cache_hits_; }
  // These two return the memory that the cache takes.
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
  struct AheadRows;
  class FrozenStore;
  // The place of the newest version of a row that the database does not have.
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
  // Returns true if size() counts a row. The last count of rows has left out rows that had expired.
  bool IsCounted(const Shard& shard, uint32_t row) const;
  // Returns the time of a change that began at `now`: `now`, or the time of the last count of rows
  // if that is later, since the count has not seen the change. Called with the gate held.
  uint32_t NotBeforeCount(uint32_t now) const;
  uint32_t layout_number() const { return layout_number_.load(std::memory_order_relaxed); }

  template <typename T>
  Status GatherAs(const Key* keys, size_t n, T* out, const GatherOptions& options,
                  const FillEmbedding& fill, std::vector<uint32_t>* missing,
                  const ParallelFor& parallel_for);
  // Finds rows in the cache, while other readers may run, and calls found(i, row, is_given) for
  // each; also for given rows, as in GatherOptions. Returns the positions of the other keys.
  template <typename Found>
  std::vector<uint32_t> FindCached(const Key* keys, size_t n, const float* const* given,
                                   int prefetch_floats, uint32_t now,
                                   const ParallelFor& parallel_for, const Found& found) const;
  // Looks for the keys at positions `rest` in the database too. Calls visit(shard, entries, rows,
  // n) shard by shard. An entry's position is an index of `rest`, and rows are as in LoadEntries.
  template <typename Visit>
  Status ForEachRest(const Key* keys, const std::vector<uint32_t>& rest, uint32_t now,
                     const ParallelFor& parallel_for, const Visit& visit);
  // Calls visit(shard, entries, count, has_turn) for every shard in which a batch has keys. Returns
  // the first error. `has_turn` is for Trim.
  Status VisitShards(const ShardPartition& partition, const ParallelFor& parallel_for,
                     const std::function<Status(Shard& shard, const ShardEntry* entries, size_t n,
                                                bool has_turn)>& visit);
  // Calls fn(shard, entries, count) for every shard in which a batch has keys, with the shard
  // locked. Afterwards trims the shard, unless keep_room. Returns the first error.
  using VisitShard = std::function<Status(Shard& shard, const ShardEntry* entries, size_t n)>;
  Status ForEachShard(const ShardPartition& partition, const ParallelFor& parallel_for,
                      const VisitShard& fn, bool keep_room = false);
  // Does the same for changes to rows that are kept in the cache. fn must fail before it changes
  // any row of its shard. The error says if rows of other shards have changed by then.
  Status ChangeEachShard(const ShardPartition& partition, const ParallelFor& parallel_for,
                         const VisitShard& fn);
  // Returns the record of a call, with its memory reserved, so that memory cannot end after changes
  // have begun.
  std::vector<RowBatch> RecordOf(const ShardPartition& partition) const;

  // The functions below are called with the gate held, and the shard locked exclusively.

  // Finds the cached row of each entry, and reads it from the database if need be; kNone if there
  // is none or it has expired. Unless it fails, rows that were found get the flag `keep`, a
  // RowState or 0. So do the rows in `not_removed`, which have expired and which RemoveExpired
  // could not remove.
  Status LoadEntries(Shard& shard, const ShardEntry* entries, size_t n, uint32_t now, uint16_t keep,
                     uint32_t* rows, std::vector<uint32_t>* not_removed = nullptr);
  // Reads keys, ascending and distinct, that are not cached, into the cache.
  Status LoadKeys(Shard& shard, const std::vector<Key>& keys);
  // Finds the keys of entries that are not cached, as many as there is room for, and reads the rows
  // of those that are in the spill. From here on the shard notes which rows leave the cache.
  Status FindAhead(Shard& shard, const ShardEntry* entries, size_t n, AheadRows* ahead);
  // Puts the rows that were read into the cache, unless they have got there or changed meanwhile.
  Status TakeAhead(Shard& shard, AheadRows* read);
  // Makes `wanted` places for rows free: by growing, by taking a block of another shard, or by
  // spilling rows.
  Status MakeRoom(Shard& shard, size_t wanted);
  // Makes `wanted` places for rows free, beyond the budget and without the disk. Error:
  // kResourceExhausted.
  Status MakeRoomBeyondBudget(Shard& shard, size_t wanted);
  Status NoMemory(const Shard& shard) const;
  // Takes rows out of the cache, to the spill or the database.
  Status SpillRows(Shard& shard, const std::vector<uint32_t>& rows);
  // Orders rows by key and writes them to the spill, and sets *spilled to true. If the spill has no
  // room, writes the dirty ones to the database instead, and sets *spilled to false.
  Status SpillOrWrite(Shard& shard, std::vector<Spill::Row>* rows, bool* spilled);
  Spill::Row SpillRowOf(const Shard& shard, uint32_t row) const;
  // Reserves room in the spill for more rows. Returns false if there is none.
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
  // Returns the number of the shard of some entries.
  uint32_t NumberOf(const ShardEntry* entries) const { return ShardOf(Hash(entries->key)); }
  // Writes rows to the database, pending.
  Status Write(const RowBatch& batch) { return core_->database->WritePending(batch); }
  // Counts the rows in shard.found that had expired and that a step brings back.
  void CountRevived(Shard* shard);
  Status CountNew(const ShardPartition& partition, uint32_t now, const ParallelFor& parallel_for,
                  uint64_t* count);
  // Checks that the keys fit in beside max_rows, where there is such a limit.
  Status CheckFits(const ShardPartition& partition, uint64_t max_rows, uint32_t now,
                   const ParallelFor& parallel_for);
  // The parts of a call that changes all of its rows or none. KeepAll reads every row that exists
  // into the cache, keeps it there, and puts its number into shard.found. After an error no row is
  // kept.
  Status KeepAll(const ShardPartition& partition, uint32_t now, const ParallelFor& parallel_for);
  // Serial: a thread pool may not accept work after memory has ended.
  void ReleaseAll(const ShardPartition& partition);
  // Leaves each row once in shard.found. With a journal, removals[s] becomes the record of removals
  // in shard s: of rows that exist, and with a TTL of the other keys too, since their rows may have
  // expired.
  Status CollectRemovals(const ShardPartition& partition, const ParallelFor& parallel_for,
                         std::vector<RowBatch>* removals);
  // Moves the expired rows that RemoveExpired could not remove, and that are kept, into
  // shard.found. Returns how many.
  size_t TakeExpired(Shard* shard, uint32_t now);
  // Removes the rows in shard.found, each there once, from the database. The caller holds all of
  // their shards. Serial: a pool might first run pieces of other calls, which wait for those
  // shards.
  Status EraseKept(const ShardPartition& partition);
  // The gate and, if there is a journal, room in it: a call that changes rows holds both.
  struct Call {
    StorageCore::Entrance gate;
    Journal::Room room;
  };
  Result<Call> BeginCall(size_t rows);
  // Erases rows, unless replacements() is not `seen`. If `unrecorded`, the next record has the
  // removals.
  Result<std::optional<uint64_t>> EraseAll(uint64_t seen, const Key* keys, size_t n,
                                           bool unrecorded, const ParallelFor& parallel_for);
  // Returns the error of a call that has changed rows and could not make the change durable.
  static Status NotOnDisk(const Status& why);
  // If calls are durable, writes the record of a call that has changed these rows, together with
  // unrecorded_.
  Status Record(Journal::Room room, std::vector<RowBatch> rows);
  // Gives back memory that a large batch took beyond the budget, and some more if it is the shard's
  // turn.
  Status Trim(Shard& shard, bool has_turn);
  // Does the same. Rows that cannot be written now stay.
  void TrimIfPossible(Shard& shard, bool has_turn) {
    static_cast<void>(OrNoMemory([&] { return Trim(shard, has_turn); }));
  }
  // Copies a row of the database, as a row of the cache has it.
  Status ReadStored(Key key, std::string_view bytes, const RowLayout& layout, char* values,
                    RowMeta* meta) const;
  // Removes rows that have expired, so that later calls do not meet them. Returns the rows that
  // could not be removed because of an error of the disk; they still count as expired.
  std::vector<uint32_t> RemoveExpired(Shard& shard, std::vector<uint32_t> expired);
  // Changes the layout. Empties the spill and, if rows have another size, the cache; nothing may be
  // dirty. Needs no memory: `slots` is a copy of the layout's slots.
  void SetLayout(std::shared_ptr<const RowLayout> layout, std::vector<Slot> slots);
  // The part of Settle that may be repeated.
  Status SettleOnce();
  // Calls `write` for entries whose rows are in the cache, through `decoded`. Makes the rows that
  // are kNone, for which there must be room, and sets their numbers. `made`, unless null, gets the
  // keys of these; it must have room for them. Takes no memory.
  void WriteEntries(Shard& shard, const ShardEntry* entries, size_t n, uint32_t now,
                    const WriteRow& write, DecodedRow<CacheRows>* decoded, uint32_t* rows,
                    std::vector<Key>* made);
  // made[s] gets the keys of the rows that were made in shard s, also after an error.
  Status UpsertAll(const ShardPartition& partition, uint32_t now, const WriteRow& write,
                   const ParallelFor& parallel_for, std::vector<std::vector<Key>>* made);
  // Takes back rows of a shard that a call has made. Adds the removals to `gone` that the database
  // got. Returns how many rows stay: those that another call is about to change, and those that the
  // database has and could not remove. Called with the gate held, and the shard locked exclusively.
  uint64_t UnmakeIn(Shard& shard, const std::vector<Key>& keys, RowBatch* gone);
  // Called with the gate held exclusively.
  void SetState(TableState state);
  // Sorts the places, and calls fn for their rows.
  Status VisitPlaces(std::vector<DirtyPlace>* places, size_t row_bytes, const VisitDirty& fn) const;
  // Reads the spilled ones of these rows into records: the row of places[i] into record i.
  Status ReadSpilled(const DirtyPlace* places, size_t n, size_t record_bytes,
                     std::vector<char>* records) const;
  // Hides every row of the database by a pending tombstone.
  Status HideAll();
  // Publishes pending and dirty rows; no other group may have any.
  Status Publish();
  Status UpsertAlone(const Key* keys, size_t n, uint32_t now, const WriteRow& write,
                     const ParallelFor& parallel_for);
  // Counts rows anew, without expired ones, if `added` more would exceed max_rows.
  Status CountAnew(size_t added, uint64_t max_rows, uint32_t now);
  // Returns true if size() may include rows that have expired, and it is time to count again.
  bool MayHaveExpired(uint32_t now);

  const std::shared_ptr<StorageCore> core_;
  const int group_;
  const int dim_;
  const int shard_bits_;
  const GroupMeta start_;                  // the parts that do not change
  const std::optional<RowCoding> coding_;  // of the embedding alone, which all layouts share
  std::vector<std::unique_ptr<Shard>> shards_;
  std::atomic<int64_t> rows_;  // in cache, spill and database together, each row once
  std::atomic<uint64_t> made_{0}, cache_hits_{0};
  std::atomic<uint64_t> read_ahead_{0}, left_behind_{0};  // see AheadCounts
  std::atomic<uint32_t> counted_at_;       // when rows that had expired were last left out
  std::atomic<uint64_t> replacements_{0};  // changes only while the gate is held exclusively
  std::atomic<uint32_t> layout_number_;
  std::atomic<uint64_t> changes_{0};  // calls that may have changed or removed rows that were made
  std::mutex limit_mu_;               // one Upsert at a time if there is a limit of rows
  std::mutex ahead_mu_;               // one ReadAhead at a time
  // Lets one call at a time change all of its rows or none. Guards shard.found and, with the gate,
  // unrecorded_.
  std::mutex write_mu_;
  RowBatch unrecorded_;             // removals that are in no record yet; the next begins with them
  ShardPartition apply_partition_;  // reused by calls of Apply
  std::atomic<uint32_t> trims_{0};  // calls that may give memory back
  mutable std::mutex meta_mu_;      // guards the two below
  std::shared_ptr<const RowLayout> layout_;
  TableState state_;
};

}  // namespace sok
