// The calls of DiskStore that make and change rows, and the records of all calls in the journal.
#include <algorithm>
#include <new>
#include <shared_mutex>
#include <string>
#include <unordered_set>
#include <utility>

#include "core/base/status_macros.h"
#include "core/disk/disk_store.h"
#include "core/disk/disk_store_shard.h"
#include "core/rows/decoded_row.h"
#include "core/rows/pipelined_find.h"

namespace sok {

Status DiskStore::CountNew(const ShardPartition& partition, uint32_t now,
                           const ParallelFor& parallel_for, uint64_t* count) {
  std::atomic<uint64_t> added{0};
  Status status =
      ForEachShard(partition, parallel_for, [&](Shard& shard, const ShardEntry* entries, size_t m) {
        std::vector<uint32_t> rows(m);
        Status loaded = LoadEntries(shard, entries, m, now, /*keep=*/0, rows.data());
        std::unordered_set<Key> absent;
        for (size_t i = 0; i < m; ++i) {
          if (rows[i] == CacheRows::kNone) absent.insert(entries[i].key);
        }
        added += absent.size();
        return loaded;
      });
  *count = added;
  return status;
}

bool DiskStore::MayHaveExpired(uint32_t now) {
  const uint32_t ttl = core_->expiry->ttl();
  if (ttl == 0) return false;
  // A count walks over all rows, so it is made at most every sixteenth of the TTL.
  return now >= uint64_t{counted_at_} + std::max<uint32_t>(1, ttl / 16);
}

Status DiskStore::CheckFits(const ShardPartition& partition, uint64_t max_rows, uint32_t now,
                            const ParallelFor& parallel_for) {
  if (max_rows == 0 || size() + partition.total() <= max_rows) return Status();
  uint64_t added = 0;
  SOK_RETURN_IF_ERROR(CountNew(partition, now, parallel_for, &added));
  // A table that was opened with a smaller limit than before may hold more.
  const bool fits = added == 0 || size() + added <= max_rows;
  return fits ? Status() : TableFull(size(), max_rows, added);
}

Status DiskStore::CountAnew(size_t added, uint64_t max_rows, uint32_t now) {
  if (max_rows == 0 || size() + added <= max_rows) return Status();
  return LeaveOutExpired(now);
}

Status DiskStore::LeaveOutExpired(uint32_t now) {
  return MayHaveExpired(now) ? Freeze().status() : Status();
}

Status DiskStore::Upsert(const Key* keys, size_t n, uint64_t max_rows, uint32_t now,
                         const WriteRow& write, const ParallelFor& parallel_for) {
  SOK_RETURN_IF_ERROR(CountAnew(n, max_rows, now));
  SOK_ASSIGN_OR_RETURN(const auto gate, core_->Enter(/*to_write=*/true));
  now = NotBeforeCount(now);
  ShardPartition partition;
  Partition({{keys, n}}, parallel_for, &partition);
  std::unique_lock<std::mutex> limit(limit_mu_, std::defer_lock);
  if (max_rows > 0) limit.lock();
  SOK_RETURN_IF_ERROR(CheckFits(partition, max_rows, now, parallel_for));
  const uint64_t seen = changes_;
  std::vector<std::vector<Key>> made(shard_count());
  Status status = OrNoMemory([&] { return UpsertAll(partition, now, write, parallel_for, &made); });
  if (status.ok()) return status;
  // The rows that were made before the error are taken back, unless another call may have changed
  // one of them meanwhile.
  uint64_t stay = 0;
  RowBatch gone;
  for (uint32_t s = 0; s < shard_count(); ++s) {
    if (made[s].empty()) continue;
    std::lock_guard<SharedMutex> lock(shards_[s]->mu);
    stay += changes_ == seen ? UnmakeIn(*shards_[s], made[s], &gone) : made[s].size();
  }
  return WithRowsThatStay(status, stay);
}

Status DiskStore::UpsertAlone(const Key* keys, size_t n, uint32_t now, const WriteRow& write,
                              const ParallelFor& parallel_for) {
  ShardPartition partition;
  Partition({{keys, n}}, parallel_for, &partition);
  std::vector<std::vector<Key>> made(shard_count());
  return UpsertAll(partition, now, write, parallel_for, &made);
}

Status DiskStore::UpsertAll(const ShardPartition& partition, uint32_t now, const WriteRow& write,
                            const ParallelFor& parallel_for, std::vector<std::vector<Key>>* made) {
  return ForEachShard(
      partition, parallel_for, [&](Shard& shard, const ShardEntry* entries, size_t m) {
        std::vector<uint32_t> rows(m), not_removed;
        DecodedRow decoded(shard.rows);
        Status status = LoadEntries(shard, entries, m, now, kRowPinned, rows.data(), &not_removed);
        const auto absent =
            static_cast<uint32_t>(std::count(rows.begin(), rows.end(), CacheRows::kNone));
        if (status.ok()) status = MakeRoom(shard, absent);
        if (status.ok()) status = shard.index.Reserve(absent);
        std::vector<Key>& made_here = (*made)[shard.number];
        if (status.ok()) {
          status = OrNoMemory([&] {
            made_here.reserve(absent);
            if (shard.keeps) shard.kept_besides.reserve(shard.kept_besides.size() + m);
            return Status();
          });
        }
        if (status.ok()) {
          WriteEntries(shard, entries, m, now, write, &decoded, rows.data(), &made_here);
          if (shard.keeps) shard.KeepMade(rows);
        }
        for (const auto* pinned : {&rows, &not_removed}) {
          for (uint32_t row : *pinned) shard.rows.Unmark(row, kRowPinned);
        }
        return status;
      });
}

void DiskStore::WriteEntries(Shard& shard, const ShardEntry* entries, size_t n, uint32_t now,
                             const WriteRow& write, DecodedRow<CacheRows>* decoded, uint32_t* rows,
                             std::vector<Key>* made) {
  CacheRows& cached = shard.rows;
  uint64_t added = 0;
  bool had_rows = false;
  for (size_t i = 0; i < n; ++i) {
    const Key key = entries[i].key;
    bool is_new = false;
    had_rows |= rows[i] != CacheRows::kNone;
    if (rows[i] == CacheRows::kNone) {
      // The row may exist by now: an earlier entry of this call or a lookup has made it, or it has
      // expired.
      rows[i] = shard.index.Find(key, Hash(key));
      is_new = rows[i] == CacheRows::kNone || Expired(shard, rows[i], now);
      if (rows[i] == CacheRows::kNone) {
        rows[i] = cached.Allocate(key);
        shard.index.Insert(key, Hash(key), rows[i]);
        cached.Mark(rows[i], kRowNew);
        ++rows_;
      } else if (is_new && !IsCounted(shard, rows[i])) {
        ++rows_;
      }
    }
    const uint32_t row = rows[i];
    if (is_new) {
      *cached.meta(row) = RowMeta{0, now};
      ++added;
      if (made != nullptr) made->push_back(key);
    }
    write(entries[i].position, is_new ? decoded->Start(row) : decoded->Read(row), is_new);
    decoded->Write(row);
    cached.MarkChanged(row);
  }
  if (added > 0) shard.absent.clear();
  // Set may have met rows that lookups have made since it looked.
  if (had_rows || made == nullptr) ++changes_;
  made_.fetch_add(added, std::memory_order_relaxed);
}

Status DiskStore::KeepAll(const ShardPartition& partition, uint32_t now,
                          const ParallelFor& parallel_for) {
  const auto keep = [&](Shard& shard, const ShardEntry* entries, size_t n) {
    shard.found.assign(n, CacheRows::kNone);
    shard.keeps = true;
    return LoadEntries(shard, entries, n, now, kRowKept, shard.found.data(), &shard.kept_besides);
  };
  Status status = OrNoMemory([&] { return ForEachShard(partition, parallel_for, keep); });
  if (!status.ok()) ReleaseAll(partition);
  return status;
}

std::vector<RowBatch> DiskStore::RecordOf(const ShardPartition& partition) const {
  std::vector<RowBatch> record(shard_count());
  if (core_->journal == nullptr) return record;
  for (uint32_t s = 0; s < shard_count(); ++s) {
    record[s].Reserve(partition.size(s) * RecordBytes());
  }
  return record;
}

Status DiskStore::ChangeEachShard(const ShardPartition& partition, const ParallelFor& parallel_for,
                                  const VisitShard& fn) {
  std::atomic<bool> changed{false};
  const auto change = [&](Shard& shard, const ShardEntry* entries, size_t n) {
    Status status = fn(shard, entries, n);
    if (status.ok()) changed = true;
    return status;
  };
  try {
    Status status = ForEachShard(partition, parallel_for, change);
    if (status.ok() || !changed) return status;
  } catch (const std::bad_alloc&) {
  }
  // No record can describe what has changed.
  if (core_->journal != nullptr) core_->journal->Break();
  ReleaseAll(partition);
  return ErrorOrLiteral(
      Code::kResourceExhausted,
      "memory ended in the midst of a call: some of its rows are changed and others are not; to "
      "have none of it, end the process without a flush and open what was flushed last",
      [this] {
        return Status(
            Code::kResourceExhausted,
            "memory ended in the midst of a call on group {group} of '{path}': some of "
            "its rows are changed and others are not; to have none of it, end the process "
            "without a flush and open what was flushed last",
            {{"group", group_}, {"path", core_->path}});
      });
}

void DiskStore::ReleaseAll(const ShardPartition& partition) {
  for (uint32_t s = 0; s < shard_count(); ++s) {
    if (partition.size(s) == 0) continue;
    std::lock_guard<SharedMutex> lock(shards_[s]->mu);
    shards_[s]->Release();
  }
}

Status DiskStore::Set(const Key* keys, size_t n, uint64_t max_rows, uint32_t now,
                      const WriteRow& write, const ParallelFor& parallel_for) {
  std::lock_guard<std::mutex> writing(write_mu_);
  SOK_RETURN_IF_ERROR(CountAnew(n, max_rows, now));
  SOK_ASSIGN_OR_RETURN(auto call, BeginCall(n));
  now = NotBeforeCount(now);
  ShardPartition partition;
  Partition({{keys, n}}, parallel_for, &partition);
  std::unique_lock<std::mutex> limit(limit_mu_, std::defer_lock);
  if (max_rows > 0) limit.lock();
  Status status = CheckFits(partition, max_rows, now, parallel_for);
  std::vector<RowBatch> changed = RecordOf(partition);
  ++changes_;
  if (status.ok()) status = KeepAll(partition, now, parallel_for);
  if (!status.ok()) return status;
  // All shards get memory for their new rows before any row changes.
  const auto make_room = [this](Shard& shard) {
    const auto absent = std::count(shard.found.begin(), shard.found.end(), CacheRows::kNone);
    if (!shard.decoded.has_value()) shard.decoded.emplace(shard.rows);
    Status made = MakeRoomBeyondBudget(shard, static_cast<size_t>(absent));
    return made.ok() ? shard.index.Reserve(static_cast<uint32_t>(absent)) : made;
  };
  status = OrNoMemory([&] {
    return ForEachShard(
        partition, parallel_for,
        [&](Shard& shard, const ShardEntry*, size_t) { return make_room(shard); },
        /*keep_room=*/true);
  });
  if (!status.ok()) {
    ReleaseAll(partition);
    return status;
  }
  status = ChangeEachShard(
      partition, parallel_for, [&](Shard& shard, const ShardEntry* entries, size_t m) {
        const Status ready = make_room(shard);  // lookups may have used the memory meanwhile
        if (ready.ok()) {
          WriteEntries(shard, entries, m, now, write, &*shard.decoded, shard.found.data(),
                       /*made=*/nullptr);
          if (core_->journal != nullptr) {
            AddDistinct(shard, &shard.found, &changed[NumberOf(entries)]);
          }
        }
        shard.Release();
        return ready;
      });
  return status.ok() ? Record(std::move(call.room), std::move(changed)) : status;
}

Result<uint64_t> DiskStore::Apply(const std::vector<GradientBatch>& batches,
                                  const RowOptimizer& optimizer, const CommitStep& step,
                                  const ParallelFor& parallel_for) {
  std::lock_guard<std::mutex> writing(write_mu_);
  const ShardPartition& partition = PartitionOf(*this, batches, parallel_for, &apply_partition_);
  SOK_ASSIGN_OR_RETURN(auto call, BeginCall(partition.total()));
  std::vector<RowBatch> changed = RecordOf(partition);

  // First every row is read into the cache, so that after an error all rows are as they were. Rows
  // that are kept there keep their numbers: only spilling and Erase remove rows.
  ++changes_;
  SOK_RETURN_IF_ERROR(KeepAll(partition, step.now, parallel_for));
  // Rows that had not expired when the call began may have expired while it waited for a count of
  // rows. They are updated all the same.
  CommitStep counted = step;
  counted.now = NotBeforeCount(step.now);
  std::atomic<uint64_t> count{0};
  TableState after = step.state;
  Status status = ChangeEachShard(
      partition, parallel_for, [&](Shard& shard, const ShardEntry* entries, size_t n) {
        thread_local RowUpdate update;
        CacheRows& cached = shard.rows;
        if (counted.now != step.now) CountRevived(&shard);
        const std::vector<uint32_t>& rows =
            update.Apply(cached, entries, shard.found.data(), n, batches, dim_, optimizer, counted);
        for (uint32_t row : rows) cached.MarkChanged(row);
        if (core_->journal != nullptr) AddRows(shard, rows, &changed[NumberOf(entries)]);
        count += rows.size();
        shard.Release();
        return Status();
      });
  SetState(std::move(after));
  if (step.applied != nullptr) *step.applied = true;
  if (status.ok()) status = Record(std::move(call.room), std::move(changed));
  if (!status.ok()) return status;
  return count.load();
}

void DiskStore::CountRevived(Shard* shard) {
  std::vector<uint32_t> rows = shard->found;
  SortDistinct(&rows);
  for (uint32_t row : rows) rows_ += IsCounted(*shard, row) ? 0 : 1;
}

void DiskStore::AddRows(const Shard& shard, const std::vector<uint32_t>& rows,
                        RowBatch* batch) const {
  batch->Reserve(rows.size() * RecordBytes());
  for (uint32_t row : rows) AddToBatch(shard, row, batch);
}

void DiskStore::AddDistinct(const Shard& shard, std::vector<uint32_t>* rows,
                            RowBatch* batch) const {
  SortDistinct(rows);
  AddRows(shard, *rows, batch);
}

size_t DiskStore::RecordBytes() const {
  return RowBatch::kBytesBesideValues + layout()->value_bytes();
}

Result<DiskStore::Call> DiskStore::BeginCall(size_t rows) {
  for (bool published = false;; published = true) {
    SOK_ASSIGN_OR_RETURN(auto gate, core_->Enter(/*to_write=*/true));
    if (core_->journal == nullptr) return Call{std::move(gate), {}};
    auto room = core_->journal->Reserve(rows * RecordBytes() + unrecorded_.bytes());
    if (room.ok()) return Call{std::move(gate), std::move(room.value())};
    const bool disk_full = room.status().code() == Code::kResourceExhausted;
    if (published || !disk_full || core_->journal->empty()) return room.status();
    // The disk may be full because of the journal.
    gate.unlock();
    const auto alone = core_->TakeAlone();
    SOK_RETURN_IF_ERROR(core_->CheckOpen());
    if (!core_->flush || !core_->flush().ok()) return room.status();
  }
}

Status DiskStore::CheckRoom(size_t rows) { return BeginCall(rows).status(); }

Status DiskStore::Record(Journal::Room room, std::vector<RowBatch> rows) {
  if (core_->journal == nullptr) return Status();
  const Status status = OrNoMemory([&] {
    if (unrecorded_.rows() > 0) rows.insert(rows.begin(), std::move(unrecorded_));
    unrecorded_.Clear();  // the next publication has the removals instead
    return core_->journal->Append(std::move(room), {{GroupMetaName(group_), meta().ToJson()}},
                                  rows);
  });
  if (status.ok()) return status;
  // Later records must not build on rows that are in no record.
  core_->journal->Break();
  return NotOnDisk(status);
}

Status DiskStore::RecordRemovals() {
  if (unrecorded_.rows() == 0) return Status();
  SOK_ASSIGN_OR_RETURN(auto room, core_->journal->Reserve(unrecorded_.bytes()));
  return Record(std::move(room), {});
}

Status DiskStore::NotOnDisk(const Status& why) {
  return ErrorOrLiteral(
      why.code(),
      "the rows are changed and kept in memory, but not on disk yet, and memory has ended; flush "
      "then, and do not repeat the call",
      [&why] {
        return why.Within("the rows are changed and kept in memory, but not on disk yet: ",
                          "; flush then, and do not repeat the call");
      });
}

Status DiskStore::RecordMeta() {
  if (core_->journal == nullptr) return Status();
  SOK_ASSIGN_OR_RETURN(auto room, core_->journal->Reserve(0));
  const Status status = OrNoMemory([&] {
    return core_->journal->Append(std::move(room), {{GroupMetaName(group_), meta().ToJson()}}, {});
  });
  if (status.ok()) return status;
  return status.Within("the table is not open, and no row has changed: ",
                       "; open it again once the disk can be used");
}

}  // namespace sok
