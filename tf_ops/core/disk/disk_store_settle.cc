// Writes everything that is newer than the database to it, while no other call runs on the
// DiskStore.
#include <algorithm>
#include <cstring>
#include <shared_mutex>
#include <string>
#include <utility>

#include "core/base/status_macros.h"
#include "core/disk/disk_store.h"
#include "core/disk/disk_store_shard.h"

namespace sok {
namespace {

constexpr size_t kSettleBytes = size_t{4} << 20;
constexpr size_t kRowsAhead = 12;  // between a prefetch and its use
// The bytes of rows that are read from the spill together, in the order in which they lie there.
constexpr size_t kSpilledBytes = size_t{64} << 20;

}  // namespace

uint64_t DiskStore::DirtyBytes() const {
  uint64_t rows = 0;
  for (const auto& shard : shards_) {
    std::lock_guard<SharedMutex> lock(shard->mu);
    rows += shard->spill->dirty();
    shard->rows.ForEach([&](uint32_t row) { rows += (shard->rows.state(row) & kRowDirty) != 0; });
  }
  return rows * (RowKey::kBytes + sizeof(RowHeader) + layout()->value_bytes());
}

Status DiskStore::ForEachDirty(const VisitDirty& fn) const {
  std::vector<DirtyPlace> places;
  for (uint32_t s = 0; s < shard_count(); ++s) {
    const Shard& shard = *shards_[s];
    std::shared_lock<SharedMutex> lock(shard.mu);
    const auto dirty = [&](uint32_t row) { return (shard.rows.state(row) & kRowDirty) != 0; };
    shard.rows.ForEach([&](uint32_t row) {
      if (dirty(row)) places.push_back({shard.rows.key(row), DirtyPlace::kCached | s, row});
    });
    shard.spill->ForEachPlace([&](Key key, uint32_t place) {
      if (!shard.spill->dirty(place)) return;
      const uint32_t row = shard.index.Find(key, Hash(key));
      if (row != CacheRows::kNone && dirty(row)) return;  // the cached version is newer
      const SpillFile::Wanted in_file = shard.spill->Wanted(place, 0);
      places.push_back({key, in_file.segment, in_file.row});
    });
  }
  return VisitPlaces(&places, layout()->value_bytes(), fn);
}

Status DiskStore::VisitPlaces(std::vector<DirtyPlace>* sorted, size_t row_bytes,
                              const VisitDirty& fn) const {
  std::vector<DirtyPlace>& places = *sorted;
  std::sort(places.begin(), places.end(),
            [](const DirtyPlace& a, const DirtyPlace& b) { return a.key < b.key; });
  const size_t record_bytes = sizeof(Spill::Head) + row_bytes;
  const size_t at_once = std::max<size_t>(1, kSpilledBytes / record_bytes);
  std::vector<char> records;
  for (size_t begin = 0; begin < places.size(); begin += at_once) {
    const size_t end = std::min(places.size(), begin + at_once);
    // If rows are cached, only lookups of cached rows may run meanwhile, and they change no row.
    SOK_RETURN_IF_ERROR(ReadSpilled(places.data() + begin, end - begin, record_bytes, &records));
    for (size_t i = begin; i < end; ++i) {
      if (i + kRowsAhead < end && places[i + kRowsAhead].cached()) {
        const DirtyPlace& ahead = places[i + kRowsAhead];
        shards_[ahead.shard()]->rows.Prefetch(ahead.number);
      }
      const DirtyPlace& place = places[i];
      if (place.cached()) {
        const Shard& shard = *shards_[place.shard()];
        SOK_RETURN_IF_ERROR(
            fn(place.key, HeaderOf(shard, place.number), shard.rows.values(place.number)));
        continue;
      }
      const char* const record = records.data() + (i - begin) * record_bytes;
      Spill::Head head;
      std::memcpy(&head, record, sizeof(head));
      SOK_RETURN_IF_ERROR(fn(place.key, head.header, {record + sizeof(head), row_bytes}));
    }
  }
  return Status();
}

Status DiskStore::ReadSpilled(const DirtyPlace* places, size_t n, size_t record_bytes,
                              std::vector<char>* records) const {
  std::vector<SpillFile::Wanted> wanted;
  for (size_t i = 0; i < n; ++i) {
    if (places[i].cached()) continue;
    wanted.push_back({places[i].where, places[i].number, static_cast<uint32_t>(i)});
  }
  if (wanted.empty()) return Status();
  records->resize(n * record_bytes);
  return core_->spill->ReadRecords(&wanted, record_bytes, records->data());
}

void DiskStore::MarkClean() {
  for (const auto& shard : shards_) {
    std::lock_guard<SharedMutex> lock(shard->mu);
    shard->spill->SetAllClean();
    shard->rows.ForEach([&](uint32_t row) { shard->rows.Unmark(row, kRowDirty | kRowNew); });
  }
}

void DiskStore::MarkPublished() {
  unrecorded_.Clear();
  MarkClean();
}

Status DiskStore::Settle() {
  return core_->WriteAtRest([this] { return SettleOnce(); });
}

Status DiskStore::SettleOnce() {
  // Even after an error the database may have some rows that are still marked as new.
  class InPart {
   public:
    explicit InPart(Database* database) : database_(database) {}
    ~InPart() {
      if (!whole) database_->AddWriteInDoubt();
    }
    bool whole = false;

   private:
    Database* const database_;
  } in_part(core_->database.get());
  RowBatch batch;
  Status status = ForEachDirty([&](Key key, const RowHeader& header, std::string_view values) {
    batch.Put(RowKey(group_, key), header, values);
    if (batch.bytes() < kSettleBytes) return Status();
    Status written = Write(batch);
    batch.Clear();
    return written;
  });
  if (status.ok()) status = Write(batch);
  if (status.ok()) MarkClean();
  in_part.whole = status.ok();
  return status;
}

void DiskStore::DropSpilled() {
  for (const auto& shard : shards_) {
    std::lock_guard<SharedMutex> lock(shard->mu);
    shard->spill->Clear();
  }
}

void DiskStore::DropCache(uint64_t rows, uint32_t counted_at) {
  for (const auto& shard : shards_) {
    std::lock_guard<SharedMutex> lock(shard->mu);
    shard->Reset(layout());
  }
  rows_ = static_cast<int64_t>(rows);
  counted_at_ = counted_at;
  ++replacements_;
}

Status DiskStore::Replace(std::shared_ptr<const RowLayout> layout, const TableState& state,
                          const Key* keys, size_t n, uint32_t now, const WriteRow& write,
                          const ParallelFor& parallel_for) {
  std::lock_guard<std::mutex> writing(write_mu_);
  if (const auto entrance = core_->Enter(/*to_write=*/true); !entrance.ok()) {
    return entrance.status();
  }
  const auto gate = core_->TakeAlone();
  SOK_RETURN_IF_ERROR(core_->CheckWritable());
  // From here on only what this call writes is pending, so that it can be dropped again.
  SOK_RETURN_IF_ERROR(core_->flush());
  GroupMeta before = meta();
  const std::shared_ptr<const RowLayout> layout_before = this->layout();
  const uint64_t in_doubt = core_->database->writes_in_doubt();
  Status status = OrNoMemory([&] {
    Status made = HideAll();
    DropCache(0, now);
    SetLayout(layout, layout->slots());
    SetState(state);
    if (made.ok()) made = UpsertAlone(keys, n, now, write, parallel_for);
    return made.ok() && core_->journal != nullptr ? Publish() : made;
  });
  if (status.ok()) return status;
  if (core_->journal != nullptr && core_->database->writes_in_doubt() != in_doubt) {
    bool there = false;
    const Status told = OrNoMemory([&] {
      SOK_RETURN_IF_ERROR(core_->Recover());
      auto published = core_->database->FailedPublicationIsThere();
      if (published.ok()) there = published.value();
      return published.status();
    });
    if (!told.ok()) {
      // It is not known whether the publication has happened. So the new rows stay, and the next
      // publication has them for certain.
      core_->journal->Break();
      return NotOnDisk(status);
    }
    if (there) {
      MarkClean();
      // Pending rows that cannot be dropped now are dropped when the database is opened again.
      return core_->database->DropPending().ok() || core_->database->failed() ? Status() : status;
    }
  }
  // The old rows are still in the database. Nothing below needs memory.
  const Status dropped = core_->database->DropPending();
  std::vector<Slot> none;  // the state has them
  SetLayout(layout_before, std::move(none));
  layout_number_ = before.layout;
  SetState(std::move(before.state));
  DropCache(before.rows, before.counted_at);
  return dropped.ok() || core_->database->failed() ? status : dropped;
}

Status DiskStore::HideAll() {
  // Each row gets a tombstone, since pending entries must hide published rows.
  Database& database = *core_->database;
  RowBatch gone;
  const auto hide = [&] {
    Status written = database.WritePending(gone);
    gone.Clear();
    return written;
  };
  Status status = database.ForEach(group_, [&](int, Key key, std::string_view) -> Status {
    gone.Remove(RowKey(group_, key));
    return gone.bytes() < kSettleBytes ? Status() : hide();
  });
  return status.ok() ? hide() : status;
}

Status DiskStore::Publish() {
  const auto publication = core_->database->StartPublication();
  Status status = ForEachDirty([&](Key key, const RowHeader& header, std::string_view values) {
    return publication->Add(RowKey(group_, key), header, values);
  });
  if (status.ok()) status = publication->Finish({{GroupMetaName(group_), meta().ToJson()}});
  if (status.ok()) MarkClean();
  return status;
}

void DiskStore::SetState(TableState state) {
  std::lock_guard<std::mutex> guard(meta_mu_);
  state_ = std::move(state);
}

// While it lives all rows lie in the database, since it holds the gate exclusively.
class DiskStore::FrozenStore final : public Frozen {
 public:
  explicit FrozenStore(DiskStore* store) : store_(*store), gate_(store->core_->TakeAlone()) {}

  Status Prepare() {
    SOK_RETURN_IF_ERROR(store_.core_->CheckOpen());
    SOK_RETURN_IF_ERROR(store_.Settle());
    SOK_ASSIGN_OR_RETURN(auto view, store_.core_->database->Look(store_.group_));
    view_ = std::move(view);
    // Not earlier: rows that the view leaves out as expired must have expired by this time.
    now_ = store_.core_->expiry->Now();
    return Visit(*store_.layout(), [this](Key, const RowValue&) { ++size_; });
  }
  uint64_t size() const override { return size_; }
  uint32_t now() const { return now_; }
  Status ForEach(const std::function<void(Key, RowRef)>& fn) const override {
    const auto layout = store_.layout();
    std::vector<float> floats(store_.dim_ + layout->slot_start().size());
    return Visit(*layout, [&](Key key, const RowValue& value) {
      value.Decode(*layout, store_.layout_number(), floats.data());
      RowMeta meta = value.header.meta;
      fn(key, {floats.data(), &meta});
    });
  }

 private:
  template <typename Fn>
  Status Visit(const RowLayout& layout, const Fn& fn) const {
    const Expiry& expiry = *store_.core_->expiry;
    return view_->ForEach([&](int, Key key, std::string_view bytes) {
      RowValue value;
      if (!value.Parse(bytes, layout)) {
        return DamagedRow(store_.group_, key, store_.core_->path);
      }
      if (!expiry.Expired(value.header.meta.update_time, now_)) fn(key, value);
      return Status();
    });
  }

  DiskStore& store_;
  const StorageCore::Alone gate_;
  std::unique_ptr<Database::View> view_;
  uint32_t now_ = 0;
  uint64_t size_ = 0;
};

Result<std::unique_ptr<RowStore::Frozen>> DiskStore::Freeze() {
  // Repairs the state that an earlier error of the disk has left.
  if (const auto entrance = core_->Enter(/*to_write=*/false); !entrance.ok()) {
    return entrance.status();
  }
  auto frozen = std::make_unique<FrozenStore>(this);
  SOK_RETURN_IF_ERROR(frozen->Prepare());
  rows_ = static_cast<int64_t>(frozen->size());
  counted_at_ = frozen->now();
  return std::unique_ptr<Frozen>(std::move(frozen));
}

}  // namespace sok
