// Reads rows of a DiskStore before the calls that ask for them, while other calls run.
//
// Rows are read from the database without the lock of their shard. Meanwhile another call may read
// a row too, change it, and have it leave the cache again, so that the version that was read is an
// old one. So the shard notes which rows leave its cache meanwhile.
#include <algorithm>
#include <cstring>
#include <shared_mutex>
#include <utility>

#include "core/base/status_macros.h"
#include "core/disk/disk_store.h"
#include "core/disk/disk_store_shard.h"
#include "core/rows/pipelined_find.h"

namespace sok {
namespace {

// If more rows leave the cache of a shard while rows are read, these were read in vain.
constexpr size_t kMostLeft = size_t{1} << 13;

}  // namespace

// Rows of a shard that were read ahead.
struct DiskStore::AheadRows {
  struct Row {
    Key key;
    RowMeta meta;
    bool is_new;  // as in Spill::Head
  };

  // Adds a row with room for its values, and returns the place for these.
  char* Add(Key key) {
    rows.push_back({key, {}, false});
    values.resize(rows.size() * value_bytes);
    return values.data() + values.size() - value_bytes;
  }

  const size_t value_bytes;
  size_t room = 0;                  // rows for which there was room in the cache
  size_t reserved = 0;              // those of them that have not come
  std::vector<RowKey> in_database;  // keys to be read from the database, ascending
  std::vector<Row> rows;
  std::vector<char> values;  // (rows, value_bytes)
};

Status DiskStore::ReadAhead(const Key* keys, size_t n, const ParallelFor& parallel_for) {
  std::lock_guard<std::mutex> one(ahead_mu_);
  core_->memory.EndAhead();
  SOK_ASSIGN_OR_RETURN(const auto gate, core_->Enter(/*to_write=*/false));
  ShardPartition partition;
  Partition({{keys, n}}, parallel_for, &partition);
  const std::shared_ptr<const RowLayout> its_layout = this->layout();  // the gate keeps it
  const RowLayout& layout = *its_layout;
  const auto read = [&](Shard& shard, const ShardEntry* entries, size_t m, AheadRows& ahead) {
    SOK_RETURN_IF_ERROR(FindAhead(shard, entries, m, &ahead));
    if (ahead.room == 0) return Status();
    Status damaged;
    SOK_RETURN_IF_ERROR(core_->database->Read(
        ahead.in_database.data(), ahead.in_database.size(), [&](size_t i, std::string_view bytes) {
          const Key key = RowKey::KeyOf(ahead.in_database[i].view());
          char* const values = ahead.Add(key);
          const Status copied = ReadStored(key, bytes, layout, values, &ahead.rows.back().meta);
          if (!copied.ok()) damaged = copied;
        }));
    SOK_RETURN_IF_ERROR(damaged);
    return TakeAhead(shard, &ahead);
  };
  return VisitShards(partition, parallel_for,
                     [&](Shard& shard, const ShardEntry* entries, size_t m, bool has_turn) {
                       AheadRows ahead{layout.value_bytes(), 0, 0, {}, {}, {}};
                       const Status status =
                           OrNoMemory([&] { return read(shard, entries, m, ahead); });
                       if (ahead.room == 0) return status;
                       std::lock_guard<SharedMutex> lock(shard.mu);
                       shard.rows.UnreserveAhead(ahead.reserved);
                       std::vector<Key>().swap(shard.left);
                       TrimIfPossible(shard, has_turn);
                       return status;
                     });
}

Status DiskStore::FindAhead(Shard& shard, const ShardEntry* entries, size_t n, AheadRows* ahead) {
  std::shared_lock<SharedMutex> lock(shard.mu);
  std::vector<uint32_t> numbers(n);
  FindEntries(
      shard.index, entries, n, [](Key key) { return Hash(key); }, numbers.data());
  std::vector<Key> wanted;
  for (size_t i = 0; i < n; ++i) {
    if (numbers[i] == CacheRows::kNone) wanted.push_back(entries[i].key);
  }
  std::sort(wanted.begin(), wanted.end());
  wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
  ahead->room = ahead->reserved = shard.rows.ReserveAhead(wanted.size());
  left_behind_ += wanted.size() - ahead->room;
  wanted.resize(ahead->room);
  if (wanted.empty()) return Status();
  std::vector<uint32_t> places;
  shard.spill->FindAll(wanted, &places);
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (places[i] == Spill::kNone) {
      ahead->in_database.emplace_back(group_, wanted[i]);
      continue;
    }
    char* const values = ahead->Add(wanted[i]);
    Spill::Head head;
    SOK_RETURN_IF_ERROR(shard.spill->Read(places[i], &head, values));
    ahead->rows.back().meta = head.header.meta;
    ahead->rows.back().is_new = head.is_new != 0;
  }
  // Readers do not look at these, and there is one ReadAhead at a time.
  shard.left.reserve(kMostLeft);
  shard.left_more = false;
  return Status();
}

Status DiskStore::TakeAhead(Shard& shard, AheadRows* read) {
  AheadRows& ahead = *read;
  std::lock_guard<SharedMutex> lock(shard.mu);
  if (shard.left_more) return Status();
  std::vector<Key> left = std::move(shard.left);
  std::sort(left.begin(), left.end());
  std::vector<size_t> taken;
  for (size_t i = 0; i < ahead.rows.size(); ++i) {
    const Key key = ahead.rows[i].key;
    if (std::binary_search(left.begin(), left.end(), key)) continue;
    if (shard.index.Find(key, Hash(key)) == CacheRows::kNone) taken.push_back(i);
  }
  SOK_RETURN_IF_ERROR(MakeRoom(shard, taken.size()));
  SOK_RETURN_IF_ERROR(shard.index.Reserve(static_cast<uint32_t>(taken.size())));
  CacheRows& cached = shard.rows;
  cached.EndAhead();
  cached.ExpectAhead(taken.size());
  for (const size_t i : taken) {
    const AheadRows::Row& from = ahead.rows[i];
    const uint32_t row = cached.Allocate(from.key);
    std::memcpy(cached.place(row), ahead.values.data() + i * ahead.value_bytes, ahead.value_bytes);
    *cached.meta(row) = from.meta;
    cached.MarkAhead(row);
    --ahead.reserved;
    // The spill may have given the row to the database by now.
    if (const uint32_t place = shard.spill->Find(from.key); place != Spill::kNone) {
      const bool is_new = from.is_new && shard.spill->dirty(place);
      cached.Mark(row, is_new ? kRowSpilled | kRowNew : kRowSpilled);
    }
    shard.index.Insert(from.key, Hash(from.key), row);
  }
  read_ahead_ += taken.size();
  return Status();
}

}  // namespace sok
