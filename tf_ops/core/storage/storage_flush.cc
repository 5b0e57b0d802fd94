// Flushing a storage: at rest, and beside other calls.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status_macros.h"
#include "core/base/thread_pool.h"
#include "core/storage/admission_names.h"
#include "core/storage/storage.h"
#include "core/storage/storage_journal.h"

namespace sok {

Status Storage::FlushAtRest() {
  if (core_->database == nullptr) return core_->CheckOpen();
  if (core_->read_only) return Status();
  return core_->WriteAtRest([this] { return FlushOnce(); });
}

Status Storage::FlushOnce() {
  Database& database = *core_->database;
  SOK_RETURN_IF_ERROR(database.CheckFolder());
  SOK_RETURN_IF_ERROR(core_->Recover());
  SOK_ASSIGN_OR_RETURN(const Description description, DescribeAtRest());
  const Database::Meta& meta = description.meta;
  Status status;
  if (!database.has_pending() && DirtyBytes() <= batch_bytes_) {
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
  if (description.segment.has_value()) core_->journal->DropThrough(*description.segment);
  for (auto& [number, group] : groups_) group.store->MarkPublished();
  for (auto& [number, group] : groups_) {
    if (group.admission != nullptr) group.admission->MarkSaved();
  }
  core_->ChargeDatabase();
  return Status();
}

uint64_t Storage::DirtyBytes() const {
  uint64_t bytes = 0;
  for (const auto& [number, group] : groups_) bytes += group.store->DirtyBytes();
  return bytes;
}

Result<Storage::Description> Storage::DescribeAtRest() {
  Description description;
  for (auto& [number, group] : groups_) {
    description.meta[GroupMetaName(number)] = group.store->meta().ToJson();
    if (group.admission == nullptr) continue;
    for (uint32_t chunk : group.admission->ChangedChunks()) {
      SOK_ASSIGN_OR_RETURN(description.meta[ChunkName(number, chunk)],
                           group.admission->Dump(chunk));
    }
  }
  Journal* const journal = core_->journal.get();
  if (journal == nullptr || (journal->empty() && !journal->broken())) return description;
  // Later records go to another segment: the database may have this number also if the flush fails,
  // and be opened again with it.
  description.segment = journal->EndSegment();
  description.meta[kJournalName] = std::to_string(*description.segment);
  return description;
}

Status Storage::Flush(bool wait) {
  std::lock_guard<std::mutex> guard(mu_);
  SOK_RETURN_IF_ERROR(StartFlush(/*tell=*/!wait));
  return wait ? AwaitFlush().status() : Status();
}

Result<StorageCore::Alone> Storage::AwaitFlush() {
  const Status written = core_->JoinPublisher();
  auto gate = core_->TakeAlone();
  if (!written.ok()) SOK_RETURN_IF_ERROR(FlushAtRest());
  return gate;
}

Status Storage::StartFlush(bool tell) {
  static_cast<void>(core_->JoinPublisher());  // this flush has its rows, too, if it failed
  if (!core_->read_only) {
    // Most of what is cached, while other calls go on.
    SOK_ASSIGN_OR_RETURN(const auto entrance, core_->Enter(/*to_write=*/true));
    if (MayFlushBeside()) static_cast<void>(SpillDirty());
  }
  const auto gate = core_->TakeAlone();
  if (core_->database == nullptr || core_->read_only) return FlushAtRest();
  SOK_RETURN_IF_ERROR(Ready());
  // A flush at rest needs less room on the disk.
  if (!MayFlushBeside() || !SpillDirty().ok()) return FlushAtRest();
  return core_->WriteAtRest([&] { return FreezeAndPublish(tell); });
}

bool Storage::MayFlushBeside() const {
  const bool can_spill = std::all_of(groups_.begin(), groups_.end(), [](const auto& group) {
    return group.second.store->can_spill();
  });
  const bool broken = core_->journal != nullptr && core_->journal->broken();
  // Rows that an earlier attempt has set apart go with a flush at rest, and a short one needs no
  // thread.
  return can_spill && !broken && !core_->database->has_set_apart() &&
         (core_->database->has_pending() || DirtyBytes() > batch_bytes_);
}

Status Storage::SpillDirty() {
  for (auto& [number, group] : groups_) SOK_RETURN_IF_ERROR(group.store->SpillDirty(ProcessPool()));
  return Status();
}

Status Storage::FreezeAndPublish(bool tell) {
  if (core_->database->has_set_apart()) return FlushOnce();  // by an attempt that failed
  SOK_RETURN_IF_ERROR(core_->database->CheckFolder());
  for (auto& [number, group] : groups_) {
    // Later records must not remove rows that this flush publishes.
    if (!group.store->RecordRemovals().ok()) return FlushOnce();
  }
  SOK_ASSIGN_OR_RETURN(Description description, DescribeAtRest());
  SOK_RETURN_IF_ERROR(core_->database->SetPendingApart());
  struct Frozen {
    int number;
    OpenGroup group;
    std::unique_ptr<DurableStore::FrozenRows> rows;
  };
  auto frozen = std::make_shared<std::vector<Frozen>>();
  const auto thaw = [frozen](bool published) {
    for (Frozen& one : *frozen) one.group.store->Thaw(published);
  };
  SOK_RETURN_IF_ERROR(OrNoMemory([&] {
    for (auto& [number, group] : groups_) frozen->push_back({number, group, nullptr});
    return Status();
  }));
  const Status status = OrNoMemory([&] {
    for (Frozen& one : *frozen) one.rows = one.group.store->FreezeDirty();
    return core_->Publish(
        [core = core_.get(), frozen, meta = std::move(description.meta)] {
          const auto publication = core->database->StartPublicationOfSetApart();
          for (const Frozen& one : *frozen) {
            SOK_RETURN_IF_ERROR(one.rows->ForEach(
                [&](Key key, const RowHeader& header, const float* floats, size_t n) {
                  return publication->Add(RowKey(one.number, key), header, floats, n);
                }));
          }
          return publication->Finish(meta);
        },
        [core = core_.get(), frozen, thaw, tell,
         segment = description.segment](const Status& written) {
          thaw(written.ok());
          if (!written.ok()) {
            if (tell) {
              std::fprintf(stderr,
                           "sok_embed: a flush beside other calls failed, and the next flush has "
                           "its rows too: %s\n",
                           written.message().c_str());
            }
            return;
          }
          core->database->DropSetApart();
          core->ChargeDatabase();
          for (const Frozen& one : *frozen) {
            if (one.group.admission != nullptr) one.group.admission->MarkSaved();
          }
          // A journal that has broken since then is mended by another flush alone.
          const bool whole = core->journal != nullptr && !core->journal->broken();
          if (whole && segment.has_value()) core->journal->DropThrough(*segment);
        });
  });
  if (status.ok()) return status;
  thaw(/*published=*/false);
  return FlushOnce();  // which needs no thread, and less memory
}

}  // namespace sok
