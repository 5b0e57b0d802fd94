// The calls of DiskStore that remove rows.
#include <algorithm>
#include <utility>

#include "core/base/status_macros.h"
#include "core/disk/disk_store.h"
#include "core/disk/disk_store_shard.h"
#include "core/rows/pipelined_find.h"

namespace sok {
namespace {

// The most bytes of removals that wait for a record of the journal. Lookups may remove many rows
// before another call writes a record.
constexpr size_t kMostUnrecorded = size_t{4} << 20;

}  // namespace

Result<uint64_t> DiskStore::Erase(const Key* keys, size_t n, const ParallelFor& parallel_for) {
  for (;;) {  // again if a dump has replaced the rows meanwhile
    SOK_ASSIGN_OR_RETURN(auto erased, EraseUnlessReplaced(replacements_, keys, n, parallel_for));
    if (erased.has_value()) return *erased;
  }
}

Status DiskStore::CollectRemovals(const ShardPartition& partition, const ParallelFor& parallel_for,
                                  std::vector<RowBatch>* removals) {
  removals->resize(shard_count());
  // A row that has expired does not exist for callers, and may have been removed by an earlier
  // call. But with a longer TTL, or an earlier clock, it would be found in the journal or among
  // published rows.
  const bool may_have_expired = core_->expiry->ttl() > 0;
  return ForEachShard(
      partition, parallel_for,
      [&](Shard& shard, const ShardEntry* entries, size_t n) {
        SortDistinct(&shard.found);
        if (core_->journal == nullptr) return Status();
        RowBatch& of_shard = (*removals)[NumberOf(entries)];
        of_shard.Reserve((may_have_expired ? n : shard.found.size()) *
                         RowBatch::kBytesBesideValues);
        if (may_have_expired) {
          for (size_t i = 0; i < n; ++i) of_shard.Remove(RowKey(group_, entries[i].key));
        } else {
          for (uint32_t row : shard.found) of_shard.Remove(RowKey(group_, shard.rows.key(row)));
        }
        return Status();
      },
      /*keep_room=*/true);
}

Result<std::optional<uint64_t>> DiskStore::EraseUnlessReplaced(uint64_t seen, const Key* keys,
                                                               size_t n,
                                                               const ParallelFor& parallel_for) {
  return EraseAll(seen, keys, n, /*unrecorded=*/false, parallel_for);
}

Result<std::optional<uint64_t>> DiskStore::EraseForNewcomers(uint64_t seen, const Key* keys,
                                                             size_t n,
                                                             const ParallelFor& parallel_for) {
  return EraseAll(seen, keys, n, /*unrecorded=*/true, parallel_for);
}

Result<std::optional<uint64_t>> DiskStore::EraseAll(uint64_t seen, const Key* keys, size_t n,
                                                    bool unrecorded,
                                                    const ParallelFor& parallel_for) {
  std::lock_guard<std::mutex> writing(write_mu_);
  SOK_ASSIGN_OR_RETURN(auto call, BeginCall(n));
  if (replacements_ != seen) return std::optional<uint64_t>();
  if (unrecorded && unrecorded_.bytes() > kMostUnrecorded) {
    // Records the removals by earlier lookups. On an error the next call publishes them.
    static_cast<void>(Record(std::move(call.room), {}));
  }
  ShardPartition partition;
  Partition({{keys, n}}, parallel_for, &partition);
  const uint32_t now = core_->expiry->Now();
  ++changes_;
  SOK_RETURN_IF_ERROR(KeepAll(partition, now, parallel_for));
  std::vector<RowBatch> removals;
  Status status = OrNoMemory([&] {
    Status collected = CollectRemovals(partition, parallel_for, &removals);
    size_t bytes = unrecorded_.bytes();
    for (const RowBatch& of_shard : removals) bytes += of_shard.bytes();
    if (unrecorded) unrecorded_.Reserve(bytes);
    return collected;
  });
  if (!status.ok()) {
    ReleaseAll(partition);
    return status;
  }
  uint64_t erased = 0;
  uint64_t expired = 0;
  {
    // A lookup may write spilled rows to the database. It must not do so between the removal of the
    // rows there and here, or a row that it writes would stay.
    std::vector<std::unique_lock<SharedMutex>> alone;
    status = OrNoMemory([&] {
      alone.reserve(shard_count());
      for (uint32_t s = 0; s < shard_count(); ++s) {
        if (partition.size(s) > 0) alone.emplace_back(shards_[s]->mu);
      }
      for (uint32_t s = 0; s < shard_count(); ++s) {
        if (partition.size(s) > 0) expired += TakeExpired(shards_[s].get(), now);
      }
      return EraseKept(partition);
    });
    // The database has the removals by now, so the cache must follow without an error.
    for (uint32_t s = 0; s < shard_count() && status.ok(); ++s) {
      if (partition.size(s) == 0) continue;
      Shard& shard = *shards_[s];
      for (uint32_t row : shard.found) {
        rows_ -= IsCounted(shard, row) ? 1 : 0;
        shard.spill->Remove(shard.rows.key(row));
        shard.Forget(row);
      }
      erased += shard.found.size();
      shard.found.clear();
      shard.Release();
    }
  }
  if (!status.ok()) {
    ReleaseAll(partition);
    return status;
  }
  const bool recorded = std::any_of(removals.begin(), removals.end(),
                                    [](const RowBatch& of_shard) { return of_shard.rows() > 0; });
  if (unrecorded) {
    for (const RowBatch& of_shard : removals) unrecorded_.AddAll(of_shard);
  } else if (recorded) {
    status = Record(std::move(call.room), std::move(removals));
  }
  if (!status.ok()) return status;
  return std::optional<uint64_t>(erased - expired);
}

Result<uint64_t> DiskStore::Unmake(const Key* keys, size_t n, const ParallelFor& parallel_for) {
  std::lock_guard<std::mutex> writing(write_mu_);
  SOK_ASSIGN_OR_RETURN(const auto gate, core_->Enter(/*to_write=*/true));
  ShardPartition partition;
  Partition({{keys, n}}, parallel_for, &partition);
  uint64_t stay = 0;
  RowBatch gone;
  for (uint32_t s = 0; s < shard_count(); ++s) {
    if (partition.size(s) == 0) continue;
    std::vector<Key> made;
    const ShardEntry* const entries = partition.begin(s);
    for (size_t i = 0; i < partition.size(s); ++i) made.push_back(entries[i].key);
    std::lock_guard<SharedMutex> lock(shards_[s]->mu);
    stay += UnmakeIn(*shards_[s], made, &gone);
  }
  // A flush may have published the rows since they were made. Then the next record removes them.
  if (core_->journal != nullptr) unrecorded_.AddAll(gone);
  return stay;
}

uint64_t DiskStore::UnmakeIn(Shard& shard, const std::vector<Key>& keys, RowBatch* gone) {
  uint64_t left = 0;  // rows that have gone
  const auto forget = [&](Key key, uint32_t row) {
    shard.NoteLeft(key);
    shard.spill->Remove(key);
    if (row != CacheRows::kNone) shard.Forget(row);
    --rows_;
    --made_;
    ++left;
  };
  // These are removed after the others, since that may fail, as in EraseKept.
  const bool in_doubt = core_->database->writes_in_doubt() > 0;
  const Status status = OrNoMemory([&] {
    std::vector<Key> stored, elsewhere;
    std::vector<char> values(shard.spill->record_bytes());
    for (const Key key : keys) {
      const uint32_t row = shard.index.Find(key, Hash(key));
      if (row != CacheRows::kNone && !shard.rows.IsEvictable(row)) continue;
      bool is_new = false;
      if (row != CacheRows::kNone) {
        is_new = (shard.rows.state(row) & kRowNew) != 0;
      } else if (const uint32_t place = shard.spill->Find(key); place != Spill::kNone) {
        Spill::Head head;
        if (!shard.spill->Read(place, &head, values.data()).ok()) continue;
        is_new = head.is_new != 0 && shard.spill->dirty(place);
      } else {
        elsewhere.push_back(key);
        continue;
      }
      if (is_new && !in_doubt) {
        forget(key, row);
      } else {
        stored.push_back(key);
      }
    }
    std::sort(elsewhere.begin(), elsewhere.end());
    std::vector<RowKey> wanted;
    for (const Key key : elsewhere) wanted.emplace_back(group_, key);
    const size_t in_memory = stored.size();
    SOK_RETURN_IF_ERROR(
        core_->database->Read(wanted.data(), wanted.size(),
                              [&](size_t i, std::string_view) { stored.push_back(elsewhere[i]); }));
    left += elsewhere.size() - (stored.size() - in_memory);  // others have removed these
    RowBatch removals;
    for (const Key key : stored) removals.Remove(RowKey(group_, key));
    gone->Reserve(gone->bytes() + removals.bytes());
    SOK_RETURN_IF_ERROR(Write(removals));
    gone->AddAll(removals);
    for (const Key key : stored) forget(key, shard.index.Find(key, Hash(key)));
    return Status();
  });
  static_cast<void>(status);  // rows that could not be removed are counted
  return keys.size() - left;
}

size_t DiskStore::TakeExpired(Shard* shard, uint32_t now) {
  std::vector<uint32_t>& besides = shard->kept_besides;
  const size_t before = shard->found.size();
  const auto not_removed = std::stable_partition(
      besides.begin(), besides.end(), [&](uint32_t row) { return !Expired(*shard, row, now); });
  shard->found.insert(shard->found.end(), not_removed, besides.end());
  besides.erase(not_removed, besides.end());
  return shard->found.size() - before;
}

Status DiskStore::EraseKept(const ShardPartition& partition) {
  // Rows that the database has never received need no tombstone, unless a write that failed may
  // have reached it all the same.
  const bool in_doubt = core_->database->writes_in_doubt() > 0;
  RowBatch gone;
  for (uint32_t s = 0; s < shard_count(); ++s) {
    if (partition.size(s) == 0) continue;
    const Shard& shard = *shards_[s];
    for (uint32_t row : shard.found) {
      const bool is_new = (shard.rows.state(row) & kRowNew) != 0;
      if (!is_new || in_doubt) gone.Remove(RowKey(group_, shard.rows.key(row)));
    }
  }
  return Write(gone);
}

}  // namespace sok
