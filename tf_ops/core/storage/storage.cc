// Flushing a storage, closing it, and resetting what it keeps of rows.
#include "core/storage/storage.h"

#include <cstdio>
#include <cstring>
#include <exception>
#include <shared_mutex>
#include <utility>

#include "core/base/forked_child.h"
#include "core/base/status_macros.h"
#include "core/storage/admission_names.h"
#include "core/storage/checkpoint_place.h"
#include "core/storage/storage_journal.h"

namespace sok {
namespace {

// A flush below this goes through RocksDB's log in one batch.
constexpr uint64_t kBatchBytes = uint64_t{16} << 20;

}  // namespace

Storage::~Storage() {
  if (ForkedFromBackgroundThreads()) {
    // Its files and their lock are the parent's. Nothing is written, and the database never freed.
    new std::shared_ptr<StorageCore>(core_);
    return;
  }
  Status status;
  try {
    status = Close();
  } catch (const std::exception& error) {  // of memory, most likely
    status = Status(Code::kInternal, error.what());
  }
  {
    const Gate gate(core_->gate);
    core_->flush = nullptr;
    core_->resolve = nullptr;
  }
  if (!status.ok()) {
    std::fprintf(stderr, "sok_embed: what was not flushed is lost: %s\n", status.message().c_str());
  }
}

bool Storage::closed() {
  if (!CheckProcess().ok()) return true;  // a lock may be held by a thread that is not here
  std::shared_lock<SharedMutex> gate(core_->gate);
  return core_->database == nullptr;
}

Status Storage::Ready() {
  if (core_->database != nullptr && !core_->read_only &&
      (core_->database->failed() || core_->resolve)) {
    const Status mended = core_->Recover();
    if (!mended.ok() && (!core_->database->usable() || core_->resolve)) return mended;
  }
  return core_->CheckOpen();
}

Status Storage::ResetSlots(int group, const GroupMeta& meta) {
  const Gate gate(core_->gate);
  // Nothing is pending from here on, so that what is published below is all there is.
  SOK_RETURN_IF_ERROR(FlushAtRest());
  const uint64_t in_doubt = core_->database->writes_in_doubt();
  Resolution resolution = ResolutionOf([] {});  // the group is not in memory
  const Status status = OrNoMemory([&] { return PublishWithoutSlots(group, meta); });
  if (status.ok() || core_->database->writes_in_doubt() == in_doubt) return status;
  return Resolve(status, std::move(resolution));
}

Status Storage::PublishWithoutSlots(int group, const GroupMeta& meta) {
  const auto publication = core_->database->StartPublication();
  std::vector<float> embedding(meta.dim);
  SOK_RETURN_IF_ERROR(core_->database->ForEach(group, [&](int, Key key, std::string_view bytes) {
    RowValue value;
    if (!value.Parse(bytes, meta.dim)) return DamagedRow(group, key, path());
    std::memcpy(embedding.data(), value.floats, embedding.size() * sizeof(float));
    // Rules that count the updates of each row begin at its first.
    value.header.meta.update_num = 0;
    return publication->Add(RowKey(group, key), value.header, embedding.data(), embedding.size());
  }));
  return publication->Finish({{GroupMetaName(group), meta.ToJson()}});
}

Status Storage::SettleAtRest() {
  for (auto& [number, group] : groups_) SOK_RETURN_IF_ERROR(group.store->Settle());
  return Status();
}

Status Storage::FlushAtRest() {
  if (core_->database == nullptr) return core_->CheckOpen();
  if (core_->read_only) return Status();
  return core_->WriteAtRest([this] { return FlushOnce(); });
}

Status Storage::FlushOnce() {
  Database& database = *core_->database;
  Status status = database.CheckFolder();
  if (status.ok()) status = core_->Recover();
  if (!status.ok()) return status;
  Database::Meta meta;
  uint64_t dirty = 0;
  for (auto& [number, group] : groups_) {
    meta[GroupMetaName(number)] = group.store->meta().ToJson();
    dirty += group.store->DirtyBytes();
    if (group.admission == nullptr) continue;
    for (uint32_t chunk : group.admission->ChangedChunks()) {
      SOK_ASSIGN_OR_RETURN(meta[ChunkName(number, chunk)], group.admission->Dump(chunk));
    }
  }
  Journal* const journal = core_->journal.get();
  const bool has_journal = journal != nullptr && (!journal->empty() || journal->broken());
  // Later records go to another segment: the database may have this number also if the flush fails,
  // and be opened again with it.
  const uint64_t journal_number = has_journal ? journal->EndSegment() : 0;
  if (has_journal) meta[kJournalName] = std::to_string(journal_number);
  if (!database.has_pending() && dirty <= kBatchBytes) {
    RowBatch batch;
    for (auto& [number, group] : groups_) {
      if (!status.ok()) break;
      status = group.store->ForEachDirty(
          [&, number = number](Key key, const RowHeader& header, const float* floats, size_t n) {
            batch.Put(RowKey(number, key), header, floats, n);
            return Status();
          });
    }
    if (status.ok()) status = database.WritePublished(batch, meta, /*sync=*/true);
  } else {
    const auto publication = database.StartPublication();
    for (auto& [number, group] : groups_) {
      if (!status.ok()) break;
      status = group.store->ForEachDirty(
          [&, number = number](Key key, const RowHeader& header, const float* floats, size_t n) {
            return publication->Add(RowKey(number, key), header, floats, n);
          });
    }
    if (status.ok()) status = publication->Finish(meta);
  }
  if (!status.ok()) return status;
  if (has_journal) journal->DropThrough(journal_number);
  for (auto& [number, group] : groups_) group.store->MarkPublished();
  for (auto& [number, group] : groups_) {
    if (group.admission != nullptr) group.admission->MarkSaved();
  }
  core_->ChargeDatabase();
  return Status();
}

Status Storage::Flush() {
  std::lock_guard<std::mutex> guard(mu_);
  const Gate gate(core_->gate);
  return FlushAtRest();
}

Status Storage::Checkpoint(const std::string& path) {
  std::lock_guard<std::mutex> guard(mu_);
  const Gate gate(core_->gate);
  SOK_RETURN_IF_ERROR(FlushAtRest());
  return core_->read_only
             ? CheckpointOfReader(*core_->database, core_->path, path, core_->shown_journal)
             : MakeCheckpoint(*core_->database, core_->path, path);
}

Status Storage::Compact() {
  std::lock_guard<std::mutex> guard(mu_);
  Status status;
  {
    const Gate gate(core_->gate);
    status = FlushAtRest();
    if (status.ok()) status = ReadyToWrite();
    if (status.ok()) {
      // The spill may have rows that were removed; all others can be read from the database by now.
      for (auto& [number, group] : groups_) group.store->DropSpilled();
      status = core_->WriteAtRest([this] { return core_->database->DropLog(); });
    }
  }
  // Not under the gate, where lookups would wait behind the next flush; mu_ keeps it open.
  if (status.ok()) status = core_->database->Compact();
  return status.ok() && ttl() > 0 ? CountRows() : status;
}

Status Storage::ReadyToWrite() {
  SOK_RETURN_IF_ERROR(Ready());
  if (!core_->read_only) return core_->database->CheckFolder();
  return Status(Code::kPermissionDenied,
                "the storage '" + path() + "' was opened read-only; open it for writing");
}

Status Storage::Close() {
  std::lock_guard<std::mutex> guard(mu_);
  const Gate gate(core_->gate);
  if (core_->database == nullptr) return Status();
  SOK_RETURN_IF_ERROR(FlushAtRest());
  for (auto& [number, group] : groups_) group.store->DropCache(0, 0);
  core_->database.reset();
  core_->journal.reset();
  groups_.clear();
  return Status();
}

}  // namespace sok
