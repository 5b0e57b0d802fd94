// DiskStore between its cache and the database.
#include <algorithm>
#include <cstring>
#include <shared_mutex>
#include <string>
#include <utility>

#include "core/base/status_macros.h"
#include "core/disk/disk_store.h"
#include "core/disk/disk_store_shard.h"
#include "core/rows/pipelined_find.h"

namespace sok {
namespace {

// The fewest rows that leave the cache at a time, since each write has a fixed cost.
constexpr size_t kFewestVictims = 32;
// The most keys of a shard that are known to be absent.
constexpr size_t kMostAbsent = size_t{1} << 16;
// A call gives back so many bytes of a shard if the cache has too many.
constexpr size_t kTrimmed = size_t{2} << 20;

}  // namespace

bool DiskStore::Shard::GiveUpBlock() {
  std::unique_lock<SharedMutex> lock(mu, std::try_to_lock);
  if (!lock.owns_lock() || rows.blocks() <= 1) return false;
  const uint64_t before = held();
  return store->SpillBlock(*this).ok() && held() < before;
}

void DiskStore::Shard::EndAhead() {
  std::unique_lock<SharedMutex> lock(mu, std::try_to_lock);
  if (lock.owns_lock()) rows.EndAhead();
}

Status DiskStore::LoadEntries(Shard& shard, const ShardEntry* entries, size_t n, uint32_t now,
                              uint16_t keep, uint32_t* rows, std::vector<uint32_t>* not_removed) {
  CacheRows& cached = shard.rows;
  FindEntries(
      shard.index, entries, n, [](Key key) { return Hash(key); }, rows);
  std::vector<Key> absent;
  std::vector<uint32_t> expired;
  // No row may stay pinned if memory ends.
  Status status = OrNoMemory([&] {
    for (size_t i = 0; i < n; ++i) {
      if (rows[i] == CacheRows::kNone) {
        absent.push_back(entries[i].key);
        continue;
      }
      // A row is pinned even if it has expired: LoadKeys makes room, and could give its number to
      // another row.
      cached.Touch(rows[i]);
      cached.Mark(rows[i], kRowPinned);
      if (Expired(shard, rows[i], now)) {
        expired.push_back(rows[i]);
        rows[i] = CacheRows::kNone;
      }
    }
    if (absent.empty()) return Status();
    std::sort(absent.begin(), absent.end());
    absent.erase(std::unique(absent.begin(), absent.end()), absent.end());
    SOK_RETURN_IF_ERROR(LoadKeys(shard, absent));
    for (size_t i = 0; i < n; ++i) {
      if (rows[i] != CacheRows::kNone) continue;
      const uint32_t row = shard.index.Find(entries[i].key, Hash(entries[i].key));
      if (row == CacheRows::kNone) continue;
      if (Expired(shard, row, now)) {
        expired.push_back(row);
      } else {
        rows[i] = row;
      }
    }
    return Status();
  });
  for (uint32_t row : expired) cached.Unmark(row, kRowPinned);
  if (status.ok() && !expired.empty()) {
    status = OrNoMemory([&] {
      const std::vector<uint32_t> left = RemoveExpired(shard, std::move(expired));
      if (not_removed != nullptr) {
        not_removed->insert(not_removed->end(), left.begin(), left.end());
        for (uint32_t row : left) cached.Mark(row, keep);
      }
      return Status();
    });
  }
  for (size_t i = 0; i < n; ++i) {
    cached.Unmark(rows[i], kRowPinned);
    if (!status.ok()) {
      rows[i] = CacheRows::kNone;
    } else if (rows[i] != CacheRows::kNone && keep != 0) {
      cached.Mark(rows[i], keep);
    }
  }
  return status;
}

std::vector<uint32_t> DiskStore::RemoveExpired(Shard& shard, std::vector<uint32_t> expired) {
  std::sort(expired.begin(), expired.end());
  expired.erase(std::unique(expired.begin(), expired.end()), expired.end());
  if (core_->read_only) return expired;
  // Rows that a commit keeps stay.
  const auto leaving = std::stable_partition(
      expired.begin(), expired.end(), [&](uint32_t row) { return !shard.rows.IsEvictable(row); });
  RowBatch gone;
  int64_t fewer = 0;
  for (auto row = leaving; row != expired.end(); ++row) {
    gone.Remove(RowKey(group_, shard.rows.key(*row)));
    fewer += IsCounted(shard, *row);
  }
  if (!Write(gone).ok()) return expired;
  rows_ -= fewer;
  for (auto row = leaving; row != expired.end(); ++row) {
    core_->expiry->Notify(group_, shard.rows.key(*row));
    shard.spill->Remove(shard.rows.key(*row));
    shard.Forget(*row);
  }
  expired.erase(leaving, expired.end());
  return expired;
}

Status DiskStore::LoadKeys(Shard& shard, const std::vector<Key>& keys) {
  Status status = MakeRoom(shard, keys.size());
  if (status.ok()) status = shard.index.Reserve(static_cast<uint32_t>(keys.size()));
  if (!status.ok()) return status;
  if (std::includes(shard.absent.begin(), shard.absent.end(), keys.begin(), keys.end())) {
    return Status();
  }
  shard.absent.clear();
  CacheRows& cached = shard.rows;
  const RowLayout& layout = cached.layout();
  // Rows come from here on, or are made where none is found.
  cached.BeginArrival();
  std::vector<RowKey> wanted;
  std::vector<uint32_t> places;
  shard.spill->FindAll(keys, &places);
  for (size_t i = 0; i < keys.size(); ++i) {
    const Key key = keys[i];
    const uint32_t place = places[i];
    if (place == Spill::kNone) {
      wanted.emplace_back(group_, key);
      continue;
    }
    const uint32_t row = cached.Allocate(key);
    Spill::Head head;
    status = shard.spill->Read(place, &head, cached.place(row));
    if (!status.ok()) {
      cached.Free(row);
      return status;
    }
    *cached.meta(row) = head.header.meta;
    const bool is_new = head.is_new != 0 && shard.spill->dirty(place);
    cached.Mark(row, is_new ? kRowSpilled | kRowNew : kRowSpilled);
    shard.index.Insert(key, Hash(key), row);
  }
  Status damaged;
  std::vector<bool> found(wanted.size());
  status =
      core_->database->Read(wanted.data(), wanted.size(), [&](size_t i, std::string_view bytes) {
        found[i] = true;
        const Key key = RowKey::KeyOf(wanted[i].view());
        const uint32_t row = cached.Allocate(key);
        const Status read = ReadStored(key, bytes, layout, cached.place(row), cached.meta(row));
        if (read.ok()) {
          shard.index.Insert(key, Hash(key), row);
        } else {
          damaged = read;
          cached.Free(row);
        }
      });
  if (status.ok()) status = damaged;
  if (!status.ok() || keys.size() > kMostAbsent) return status;
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (!found[i]) shard.absent.push_back(RowKey::KeyOf(wanted[i].view()));
  }
  return Status();
}

Status DiskStore::ReadStored(Key key, std::string_view bytes, const RowLayout& layout, char* values,
                             RowMeta* meta) const {
  RowValue value;
  const bool parsed = value.Parse(bytes, layout);
  const bool has_slots = parsed && value.header.layout == layout_number();
  if (!parsed || (has_slots && value.values.size() != layout.value_bytes())) {
    return DamagedRow(group_, key, core_->path);
  }
  const size_t embedding = layout.embedding_bytes();
  std::memcpy(values, value.values.data(), has_slots ? layout.value_bytes() : embedding);
  if (!has_slots) {
    std::copy(layout.slot_bytes().begin(), layout.slot_bytes().end(), values + embedding);
  }
  *meta = value.header.meta;
  return Status();
}

Status DiskStore::MakeRoom(Shard& shard, size_t wanted) {
  CacheRows& rows = shard.rows;
  while (rows.free() < wanted) {
    if (rows.Grow(/*beyond_budget=*/false)) continue;
    // While the cache is over its limit, blocks of other shards do not help: see Trim.
    const bool within = core_->memory.used() <= core_->memory.limit();
    if (within && core_->memory.TakeFromRichest(&shard, 2 * rows.block_bytes())) continue;
    const std::vector<uint32_t> victims =
        rows.Victims(std::max(wanted - rows.free(), kFewestVictims));
    if (!victims.empty()) {
      SOK_RETURN_IF_ERROR(SpillRows(shard, victims));
    } else if (!rows.Grow(/*beyond_budget=*/true)) {
      return NoMemory(shard);
    }
  }
  return Status();
}

Status DiskStore::MakeRoomBeyondBudget(Shard& shard, size_t wanted) {
  while (shard.rows.free() < wanted) {
    if (!shard.rows.Grow(/*beyond_budget=*/true)) return NoMemory(shard);
  }
  return Status();
}

Status DiskStore::NoMemory(const Shard& shard) const {
  return Status(Code::kResourceExhausted, "no memory for the cache of group " +
                                              std::to_string(group_) + " of '" + core_->path +
                                              "': " + std::to_string(shard.rows.block_bytes()) +
                                              " bytes were asked for");
}

Status DiskStore::SpillRows(Shard& shard, const std::vector<uint32_t>& rows) {
  std::vector<Spill::Row> leaving;
  std::vector<Key> left;  // keys of rows that leave the cache, and that the database has
  for (uint32_t row : rows) {
    const uint16_t state = shard.rows.state(row);
    if ((state & kRowSpilled) != 0) continue;
    if ((state & kRowDirty) == 0 && shard.rows.meta(row)->update_num <= 1) {
      left.push_back(shard.rows.key(row));
      continue;
    }
    leaving.push_back(SpillRowOf(shard, row));
  }
  bool spilled = false;
  SOK_RETURN_IF_ERROR(SpillOrWrite(shard, &leaving, &spilled));
  shard.spill->RemoveAll(left);  // the spill may have an older version
  shard.index.ForEachAhead(
      rows.size(), [&](size_t i) { return shard.rows.key(rows[i]); },
      [&](size_t i) { shard.Forget(rows[i]); });
  return Status();
}

Status DiskStore::SpillOrWrite(Shard& shard, std::vector<Spill::Row>* in_no_order, bool* spilled) {
  std::vector<Spill::Row>& rows = *in_no_order;
  Spill& spill = *shard.spill;
  // A flush merges rows that were written in order, and has to sort the others.
  std::sort(rows.begin(), rows.end(),
            [](const Spill::Row& a, const Spill::Row& b) { return a.head.key < b.head.key; });
  SOK_ASSIGN_OR_RETURN(*spilled, ReserveSpill(shard, rows.size()));
  if (*spilled) return spill.Append(rows);
  RowBatch batch;
  for (const Spill::Row& row : rows) {
    if (row.dirty) AddSpillRow(row.head, row.values, spill.row_bytes(), &batch);
  }
  SOK_RETURN_IF_ERROR(Write(batch));
  if (batch.bytes() >= Database::kPendingFileBytes) core_->ChargeDatabase();
  for (const Spill::Row& row : rows) spill.Remove(row.head.key);
  return Status();
}

Spill::Row DiskStore::SpillRowOf(const Shard& shard, uint32_t row) const {
  const uint16_t state = shard.rows.state(row);
  return {{shard.rows.key(row), HeaderOf(shard, row), (state & kRowNew) != 0},
          shard.rows.place(row),
          (state & kRowDirty) != 0};
}

void DiskStore::AddSpillRow(const Spill::Head& head, const char* values, size_t n,
                            RowBatch* batch) const {
  batch->Put(RowKey(group_, head.key), head.header, {values, n});
}

Result<bool> DiskStore::ReserveSpill(Shard& shard, size_t rows) {
  Spill& spill = *shard.spill;
  if (!spill.enabled()) return false;
  while (!spill.Reserve(rows)) {
    // So many rows are a file by themselves, and go to the database at once; in the spill, other
    // rows would have to make room for them.
    const bool are_file = rows * RecordBytes() >= Database::kPendingFileBytes;
    if (are_file && spill.OldestAreDirty()) return false;
    RowBatch batch;
    std::vector<uint32_t> cached;  // the cached ones of the rows that go to the database
    auto dropped = spill.DropOldest(
        [&](const Spill::Head& head, const char* values) {
          const uint32_t row = shard.index.Find(head.key, Hash(head.key));
          if (row != CacheRows::kNone) {
            // The cached version is newer, and may be on its way to the database.
            if ((shard.rows.state(row) & kRowSpilled) == 0) return Status();
            cached.push_back(row);
          }
          AddSpillRow(head, values, spill.row_bytes(), &batch);
          return Status();
        },
        [&] { return Write(batch); });
    if (!dropped.ok()) return dropped.status();
    for (uint32_t row : cached) shard.rows.Unmark(row, kRowSpilled | kRowNew);
    if (!dropped.value()) return false;
    core_->ChargeDatabase();
  }
  return true;
}

Status DiskStore::SpillBlock(Shard& shard) {
  const uint32_t block = shard.rows.SpillableBlock();
  if (block == CacheRows::kNone) return Status();
  std::vector<uint32_t> rows;
  shard.rows.ForEachOfBlock(block, [&](uint32_t row) { rows.push_back(row); });
  Status status = SpillRows(shard, rows);
  if (status.ok()) shard.rows.Release(block);
  return status;
}

Status DiskStore::Trim(Shard& shard, bool has_turn) {
  shard.index.Trim(std::exchange(shard.forgotten, 0));
  shard.ChargeIndexes();
  // Memory other than rows may grow by much at once. A call gives back what it took itself, and a
  // part of that growth, so that no call has to wait for all of it.
  size_t most = shard.rows.TakeBeyond();
  if (has_turn) most += std::max<size_t>(1, kTrimmed / shard.rows.block_bytes());
  for (; core_->memory.used() > core_->memory.limit() && shard.rows.blocks() > 1 && most > 0;
       --most) {
    const size_t before = shard.rows.blocks();
    Status status = SpillBlock(shard);
    if (!status.ok() || shard.rows.blocks() == before) return status;
  }
  return Status();
}

RowHeader DiskStore::HeaderOf(const Shard& shard, uint32_t row) const {
  return {RowHeader::VersionOf(shard.rows.layout().form()), static_cast<uint32_t>(dim_),
          layout_number(), *shard.rows.meta(row)};
}

void DiskStore::AddToBatch(const Shard& shard, uint32_t row, RowBatch* batch) const {
  batch->Put(RowKey(group_, shard.rows.key(row)), HeaderOf(shard, row), shard.rows.values(row));
}

}  // namespace sok
