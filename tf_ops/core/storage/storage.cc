// Closes storages, makes checkpoints of them, and drops the slots of groups.
#include "core/storage/storage.h"

#include <cstdio>
#include <cstring>
#include <exception>
#include <shared_mutex>
#include <utility>

#include "core/base/forked_child.h"
#include "core/base/status_macros.h"
#include "core/storage/checkpoint_place.h"

namespace sok {

Storage::~Storage() {
  if (ForkedFromBackgroundThreads()) {
    // The files and their lock belong to the parent process. So nothing is written, and the
    // database is never freed.
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
    const auto gate = core_->TakeAlone();
    core_->flush = nullptr;
    core_->ask_flush = nullptr;
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
  const auto gate = core_->TakeAlone();
  // From here on nothing is pending, so the rows that are published below are all rows.
  SOK_RETURN_IF_ERROR(FlushAtRest());
  const uint64_t in_doubt = core_->database->writes_in_doubt();
  Resolution resolution = ResolutionOf([] {});  // the group is not in memory
  const Status status = OrNoMemory([&] { return PublishWithoutSlots(group, meta); });
  if (status.ok() || core_->database->writes_in_doubt() == in_doubt) return status;
  return Resolve(status, std::move(resolution));
}

Status Storage::PublishWithoutSlots(int group, const GroupMeta& meta) {
  const auto publication = core_->database->StartPublication();
  const RowLayout layout = LayoutOf(meta);
  SOK_RETURN_IF_ERROR(core_->database->ForEach(group, [&](int, Key key, std::string_view bytes) {
    RowValue value;
    if (!value.Parse(bytes, layout)) return DamagedRow(group, key, path());
    // The update count starts anew, since some rules use it for bias correction.
    value.header.meta.update_num = 0;
    return publication->Add(RowKey(group, key), value.header,
                            value.values.substr(0, layout.embedding_bytes()));
  }));
  return publication->Finish({{GroupMetaName(group), meta.ToJson()}});
}

Status Storage::SettleAtRest() {
  for (auto& [number, group] : groups_) SOK_RETURN_IF_ERROR(group.store->Settle());
  return Status();
}

Status Storage::Checkpoint(const std::string& path) {
  std::lock_guard<std::mutex> guard(mu_);
  // The database has all rows of this moment; other calls go on.
  flusher_.Settle();
  SOK_ASSIGN_OR_RETURN(const auto gate, FlushBeside());
  return core_->read_only
             ? CheckpointOfReader(*core_->database, core_->path, path, core_->shown_journal)
             : MakeCheckpoint(*core_->database, core_->path, path);
}

Status Storage::Compact() {
  std::lock_guard<std::mutex> guard(mu_);
  Status status;
  {
    const auto gate = core_->TakeAlone();
    status = FlushAtRest();
    if (status.ok()) status = ReadyToWrite();
    if (status.ok()) {
      // All rows of the spill that still exist can be read from the database now.
      for (auto& [number, group] : groups_) group.store->DropSpilled();
      status = core_->WriteAtRest([this] { return core_->database->DropLog(); });
    }
  }
  // The gate is not held, or lookups would wait behind the next flush. mu_ keeps the storage open.
  if (status.ok() && core_->spill != nullptr) core_->spill->GiveBack();
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
  flusher_.Settle();
  const auto gate = core_->TakeAlone();
  if (core_->database == nullptr) return Status();
  SOK_RETURN_IF_ERROR(FlushAtRest());
  for (auto& [number, group] : groups_) group.store->DropCache(0, 0);
  // Tables may refer to the storage for long after this.
  if (core_->spill != nullptr) core_->spill->Clear();
  core_->database.reset();
  core_->journal.reset();
  groups_.clear();
  return Status();
}

}  // namespace sok
