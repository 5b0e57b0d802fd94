// What changes rows of RocksdbStore.
#include <algorithm>
#include <shared_mutex>
#include <string>
#include <unordered_set>
#include <utility>

#include "core/stores/pipelined_find.h"
#include "core/stores/rocksdb_store.h"
#include "core/stores/rocksdb_store_shard.h"

namespace sok {

Status RocksdbStore::CountNew(const ShardPartition& partition, uint32_t now,
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

bool RocksdbStore::MayHaveExpired(uint32_t now) {
  const uint32_t ttl = core_->expiry->ttl();
  if (ttl == 0) return false;
  // A count walks over all rows: not more often than every sixteenth of a row's life.
  return now >= uint64_t{counted_at_} + std::max<uint32_t>(1, ttl / 16);
}

Status RocksdbStore::Upsert(const Key* keys, size_t n, uint64_t max_rows, uint32_t now,
                            const WriteRow& write, const ParallelFor& parallel_for) {
  if (max_rows > 0 && size() + n > max_rows && MayHaveExpired(now)) {
    auto counted = Freeze();
    if (!counted.ok()) return counted.status();
  }
  std::shared_lock<SharedMutex> gate(core_->gate);
  if (Status status = CheckWritable(); !status.ok()) return status;
  ShardPartition partition;
  Partition({{keys, n}}, parallel_for, &partition);
  std::unique_lock<std::mutex> limit(limit_mu_, std::defer_lock);
  if (max_rows > 0) limit.lock();
  if (max_rows > 0 && size() + n > max_rows) {
    uint64_t added = 0;
    Status status = CountNew(partition, now, parallel_for, &added);
    if (!status.ok()) return status;
    if (size() + added > max_rows) return TableFull(size(), max_rows, added);
  }
  return UpsertAll(partition, now, write, parallel_for);
}

Status RocksdbStore::UpsertAlone(const Key* keys, size_t n, uint32_t now, const WriteRow& write,
                                 const ParallelFor& parallel_for) {
  ShardPartition partition;
  Partition({{keys, n}}, parallel_for, &partition);
  return UpsertAll(partition, now, write, parallel_for);
}

Status RocksdbStore::UpsertAll(const ShardPartition& partition, uint32_t now, const WriteRow& write,
                               const ParallelFor& parallel_for) {
  return ForEachShard(
      partition, parallel_for, [&](Shard& shard, const ShardEntry* entries, size_t m) {
        std::vector<uint32_t> rows(m);
        Status status = LoadEntries(shard, entries, m, now, kRowPinned, rows.data());
        const auto absent =
            static_cast<uint32_t>(std::count(rows.begin(), rows.end(), CacheRows::kNone));
        if (status.ok()) status = MakeRoom(shard, absent);
        if (status.ok()) status = shard.index.Reserve(absent);
        CacheRows& cached = shard.rows;
        if (!status.ok()) {
          for (uint32_t row : rows) cached.Unmark(row, kRowPinned);
          return status;
        }
        const std::vector<float>& start = cached.layout().slot_start();
        for (size_t i = 0; i < m; ++i) {
          const Key key = entries[i].key;
          bool is_new = false;
          if (rows[i] == CacheRows::kNone) {
            // An earlier entry of this call may have made the row, or it is there and has expired.
            rows[i] = shard.index.Find(key, Hash(key));
            is_new = rows[i] == CacheRows::kNone || Expired(shard, rows[i], now);
            if (rows[i] == CacheRows::kNone) {
              rows[i] = cached.Allocate(key);
              shard.index.Insert(key, Hash(key), rows[i]);
              cached.set_state(rows[i], kRowLive | kRowNew);
              ++unwritten_;
            }
          }
          const uint32_t row = rows[i];
          if (is_new) {
            std::copy(start.begin(), start.end(), cached.row(row) + dim_);
            *cached.meta(row) = RowMeta{0, now};
          }
          write(entries[i].position, {cached.row(row), cached.meta(row)}, is_new);
          cached.MarkChanged(row);
        }
        for (uint32_t row : rows) cached.Unmark(row, kRowPinned);
        return status;
      });
}

Result<uint64_t> RocksdbStore::Apply(const std::vector<GradientBatch>& batches,
                                     const RowOptimizer& optimizer, const CommitStep& step,
                                     const ParallelFor& parallel_for) {
  std::lock_guard<std::mutex> writing(write_mu_);
  std::shared_lock<SharedMutex> gate(core_->gate);
  if (Status status = CheckWritable(); !status.ok()) return status;
  std::vector<ShardPartition::Source> sources;
  for (const GradientBatch& batch : batches)
    sources.push_back({batch.keys, batch.n, batch.positions});
  Partition(sources, parallel_for, &apply_partition_);
  const ShardPartition& partition = apply_partition_;

  // First every row into the cache, so that an error finds all of them as they were. What is kept
  // there keeps its number: only eviction and Erase take rows out.
  Status status =
      ForEachShard(partition, parallel_for, [&](Shard& shard, const ShardEntry* entries, size_t n) {
        shard.found.assign(n, CacheRows::kNone);
        return LoadEntries(shard, entries, n, step.now, kRowKept, shard.found.data());
      });
  const bool apply = status.ok();
  std::vector<RowBatch> written(shard_count());
  std::vector<std::vector<uint32_t>> touched(shard_count());
  std::atomic<uint64_t> count{0};
  const Status done =
      ForEachShard(partition, parallel_for, [&](Shard& shard, const ShardEntry* entries, size_t n) {
        thread_local RowUpdate update;
        CacheRows& cached = shard.rows;
        if (apply) {
          const std::vector<uint32_t>& rows =
              update.Apply(cached, entries, shard.found.data(), n, batches, dim_, optimizer, step);
          for (uint32_t row : rows) cached.MarkChanged(row);
          if (core_->write_through) {
            const uint32_t s = ShardOf(Hash(entries[0].key));
            touched[s] = rows;
            for (uint32_t row : rows) {
              AddToBatch(shard, row, &written[s]);
              cached.Mark(row, kRowWriting);
            }
          }
          count += rows.size();
        }
        for (uint32_t row : shard.found) cached.Unmark(row, kRowKept);
        return Status();
      });
  if (!status.ok()) return status;
  {
    std::lock_guard<std::mutex> guard(meta_mu_);
    state_ = step.state;
  }
  if (core_->write_through) status = WriteThrough(written, touched);
  if (!status.ok()) return status;
  if (!done.ok()) return done;
  return count.load();
}

Status RocksdbStore::WriteThrough(const std::vector<RowBatch>& batches,
                                  const std::vector<std::vector<uint32_t>>& touched) {
  RowBatch all;
  int64_t fresh = 0;
  for (const RowBatch& batch : batches) all.Add(batch);
  for (uint32_t s = 0; s < shard_count(); ++s) {
    std::lock_guard<SharedMutex> lock(shards_[s]->mu);
    for (uint32_t row : touched[s]) fresh += (shards_[s]->rows.state(row) & kRowNew) != 0;
  }
  Status status = WritePublished(all, fresh);
  if (status.ok()) unwritten_ -= fresh;
  for (uint32_t s = 0; s < shard_count(); ++s) {
    Shard& shard = *shards_[s];
    std::lock_guard<SharedMutex> lock(shard.mu);
    for (uint32_t row : touched[s]) {
      const uint16_t state = shard.rows.state(row);
      if ((state & kRowWriting) == 0) continue;
      if (status.ok()) {
        SetClean(shard, row);
        shard.spill->Remove(shard.rows.key(row));  // an older version
      }
      shard.rows.Unmark(row, kRowWriting | kRowChanged);
      if ((state & kRowChanged) != 0) shard.rows.Mark(row, kRowDirty);
    }
  }
  if (status.ok()) return status;
  return Status(status.code(), "the rows are changed and kept in memory, but not on disk yet: " +
                                   status.message() + "; flush then, and do not repeat the call");
}

Result<uint64_t> RocksdbStore::Erase(const Key* keys, size_t n, const ParallelFor& parallel_for) {
  std::lock_guard<std::mutex> writing(write_mu_);
  std::shared_lock<SharedMutex> gate(core_->gate);
  if (Status status = CheckWritable(); !status.ok()) return status;
  const uint32_t now = core_->expiry->Now();
  ShardPartition partition;
  Partition({{keys, n}}, parallel_for, &partition);
  std::atomic<uint64_t> erased{0};
  Status status =
      ForEachShard(partition, parallel_for, [&](Shard& shard, const ShardEntry* entries, size_t m) {
        std::vector<uint32_t> rows(m);
        Status done = LoadEntries(shard, entries, m, now, /*keep=*/0, rows.data());
        if (!done.ok()) return done;
        std::sort(rows.begin(), rows.end());
        rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
        if (!rows.empty() && rows.back() == CacheRows::kNone) rows.pop_back();
        RowBatch gone;
        int64_t fresh = 0;
        for (uint32_t row : rows) {
          gone.Remove(RowKey(group_, shard.rows.key(row)));
          fresh += (shard.rows.state(row) & kRowNew) != 0;
        }
        const auto count = static_cast<int64_t>(rows.size());
        done = Write(gone, fresh - count);
        if (!done.ok()) return done;
        unwritten_ -= fresh;
        for (uint32_t row : rows) {
          shard.spill->Remove(shard.rows.key(row));
          shard.Forget(row);
        }
        erased += rows.size();
        return done;
      });
  if (!status.ok()) return status;
  return erased.load();
}

Result<bool> RocksdbStore::Relay(std::shared_ptr<const RowLayout> layout,
                                 const ParallelFor& /*parallel_for*/) {
  std::lock_guard<SharedMutex> gate(core_->gate);
  if (Status status = CheckWritable(); !status.ok()) return status;
  const bool reshape = !layout->SameShape(*this->layout());
  if (reshape) {
    // Rows of the old layout go to the database, where the layout's number tells them apart.
    Status status = Settle();
    if (!status.ok()) return status;
  }
  SetLayout(std::move(layout));
  if (reshape && core_->write_through) {
    Status status = WriteMeta();
    if (!status.ok()) return status;
  }
  return reshape;
}

void RocksdbStore::SetLayout(std::shared_ptr<const RowLayout> layout) {
  const bool reshape = !layout->SameShape(*this->layout());
  for (const auto& shard : shards_) {
    std::lock_guard<SharedMutex> lock(shard->mu);
    if (reshape) {
      shard->Reset(layout);
    } else {
      shard->rows.set_layout(layout);
    }
  }
  std::lock_guard<std::mutex> guard(meta_mu_);
  if (reshape) {
    ++layout_number_;
    state_.rule.clear();  // until the first commit in the new layout
    state_.steps = 0;
  }
  state_.slots = layout->slots();
  layout_ = std::move(layout);
}

Status RocksdbStore::Persist(const Key* keys, size_t n, const ParallelFor& parallel_for) {
  if (!core_->write_through) return Status();
  std::lock_guard<std::mutex> writing(write_mu_);
  std::shared_lock<SharedMutex> gate(core_->gate);
  if (Status status = CheckWritable(); !status.ok()) return status;
  ShardPartition partition;
  Partition({{keys, n}}, parallel_for, &partition);
  std::vector<RowBatch> batches(shard_count());
  std::vector<std::vector<uint32_t>> changed(shard_count());
  Status status =
      ForEachShard(partition, parallel_for, [&](Shard& shard, const ShardEntry* entries, size_t m) {
        const uint32_t s = ShardOf(Hash(entries[0].key));
        for (size_t i = 0; i < m; ++i) {
          const uint32_t row = shard.index.Find(entries[i].key, Hash(entries[i].key));
          if (row == CacheRows::kNone) continue;  // it has left for the spill, and waits there
          const uint16_t state = shard.rows.state(row);
          if ((state & kRowDirty) == 0 || (state & kRowWriting) != 0) continue;
          AddToBatch(shard, row, &batches[s]);
          shard.rows.Mark(row, kRowWriting);
          changed[s].push_back(row);
        }
        return Status();
      });
  return status.ok() ? WriteThrough(batches, changed) : status;
}

}  // namespace sok
