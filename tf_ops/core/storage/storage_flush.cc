// Flushing a storage: at rest, and beside other calls.
#include <algorithm>
#include <cstdio>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status_macros.h"
#include "core/storage/admission_names.h"
#include "core/storage/storage.h"
#include "core/storage/storage_journal.h"

namespace sok {
namespace {

// The most passes over rows that have become dirty meanwhile, before the gate is taken exclusively.
constexpr int kMostPasses = 8;
// So few dirty rows may be left for then.
constexpr uint64_t kFewRows = 1 << 15;

}  // namespace

Status Storage::FlushAtRest() {
  if (core_->database == nullptr) return core_->CheckOpen();
  if (core_->read_only) return Status();
  SOK_RETURN_IF_ERROR(core_->WriteAtRest([this] { return FlushOnce(); }));
  failed_flushes_ = 0;
  return Status();
}

Status Storage::FlushOnce() {
  Database& database = *core_->database;
  SOK_RETURN_IF_ERROR(database.CheckFolder());
  SOK_RETURN_IF_ERROR(core_->Recover());
  SOK_ASSIGN_OR_RETURN(const Description description, DescribeAtRest());
  const Database::Meta& meta = description.meta;
  Status status;
  if (!database.has_pending() && DirtyBytes(groups_) <= batch_bytes_) {
    RowBatch batch;
    for (auto& [number, group] : groups_) {
      if (!status.ok()) break;
      status = group.store->ForEachDirty(
          [&, number = number](Key key, const RowHeader& header, std::string_view values) {
            batch.Put(RowKey(number, key), header, values);
            return Status();
          });
    }
    if (status.ok()) status = database.WritePublished(batch, meta, /*sync=*/true);
  } else {
    const auto publication = database.StartPublication();
    for (auto& [number, group] : groups_) {
      if (!status.ok()) break;
      status = group.store->ForEachDirty(
          [&, number = number](Key key, const RowHeader& header, std::string_view values) {
            return publication->Add(RowKey(number, key), header, values);
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

uint64_t Storage::DirtyBytes(const OpenGroupMap& groups) {
  uint64_t bytes = 0;
  for (const auto& [number, group] : groups) bytes += group.store->DirtyBytes();
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
  // Later records go to another segment: even if the flush fails, the database may have this
  // number, and be opened again with it.
  description.segment = journal->EndSegment();
  description.meta[kJournalName] = std::to_string(*description.segment);
  return description;
}

Status Storage::Flush(bool wait) {
  const std::lock_guard<std::mutex> guard(mu_);
  // A caller that never waits must see the error of the thread.
  if (!wait && !core_->read_only && failed_flushes_ == 0) {
    if (flusher_.AskIfBusy()) return Status();
    bool is_long = false;
    {
      SOK_ASSIGN_OR_RETURN(const auto entrance, core_->Enter(/*to_write=*/true));
      is_long = MayFlushBeside(groups_);
    }
    if (is_long && flusher_.Ask()) return Status();
  }
  flusher_.Settle();
  return FlushBeside().status();
}

void Storage::FlushOnThread() {
  const Status status = OrNoMemory([&] { return FlushBeside().status(); });
  if (status.ok() || closed()) return;
  ++failed_flushes_;
  {
    const auto gate = core_->TakeAlone();
    core_->PauseMending();
  }
  std::fprintf(stderr,
               "sok_embed: a flush beside other calls failed, and the next flush has its rows too: "
               "%.*s\n",
               static_cast<int>(status.text().size()), status.text().data());
}

Result<StorageCore::Alone> Storage::FlushBeside() {
  if (core_->spill != nullptr) core_->spill->GiveBack();
  if (!core_->read_only) SOK_RETURN_IF_ERROR(SpillBeside(OpenGroups()));
  auto gate = core_->TakeAlone();
  if (core_->database == nullptr || core_->read_only) {
    SOK_RETURN_IF_ERROR(FlushAtRest());
    return gate;
  }
  SOK_RETURN_IF_ERROR(Ready());
  const bool beside = MayFlushBeside(groups_) && SpillDirty(groups_).ok();
  if (beside && core_->WriteAtRest([&] { return FreezeAndPublish(&gate); }).ok()) {
    failed_flushes_ = 0;
    return gate;
  }
  SOK_RETURN_IF_ERROR(FlushAtRest());  // which needs less room on the disk
  return gate;
}

Storage::OpenGroupMap Storage::OpenGroups() {
  const std::lock_guard<std::mutex> guard(open_mu_);
  return groups_;
}

bool Storage::MayFlushBeside(const OpenGroupMap& groups) const {
  const bool can_spill = std::all_of(groups.begin(), groups.end(), [](const auto& group) {
    return group.second.store->can_spill();
  });
  const bool broken = core_->journal != nullptr && core_->journal->broken();
  // Rows that an earlier attempt has set apart need a flush at rest, and a short flush needs no
  // thread.
  return can_spill && !broken && !core_->database->has_set_apart() &&
         (core_->database->has_pending() || DirtyBytes(groups) > batch_bytes_);
}

Status Storage::SpillBeside(const OpenGroupMap& groups) {
  uint64_t before = std::numeric_limits<uint64_t>::max();
  for (int pass = 0; pass < kMostPasses; ++pass) {
    {
      SOK_ASSIGN_OR_RETURN(const auto entrance, core_->Enter(/*to_write=*/true));
      if (!MayFlushBeside(groups)) return Status();
    }
    uint64_t rows = 0;
    for (const auto& [number, group] : groups) {
      // A lookup takes the locks of all parts in ascending order. If this thread used the same
      // order, the lookup would follow it from lock to lock, and wait for each.
      for (uint32_t part = group.store->parts(); part-- > 0;) {
        // The gate is released in between, so that a call that needs it exclusively does not wait
        // long.
        SOK_ASSIGN_OR_RETURN(const auto entrance, core_->Enter(/*to_write=*/true));
        const auto spilled = group.store->SpillDirty(part);
        if (!spilled.ok()) return Status();  // the flush will return the error
        rows += spilled.value();
      }
    }
    // Rows that change in every step are written in every pass.
    if (rows <= kFewRows || rows > before - before / 8) return Status();
    before = rows;
  }
  return Status();
}

Status Storage::SpillDirty(const OpenGroupMap& groups) {
  for (const auto& [number, group] : groups) {
    for (uint32_t part = 0; part < group.store->parts(); ++part) {
      SOK_RETURN_IF_ERROR(group.store->SpillDirty(part).status());
    }
  }
  return Status();
}

Status Storage::FreezeAndPublish(StorageCore::Alone* gate) {
  if (core_->database->has_set_apart()) return FlushOnce();  // an earlier attempt has failed
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
  std::vector<Frozen> frozen;
  const auto thaw = [&frozen](bool published) {
    for (Frozen& one : frozen) one.group.store->Thaw(published);
  };
  const auto write = [&] {
    const auto publication = core_->database->StartPublicationOfSetApart();
    for (const Frozen& one : frozen) {
      SOK_RETURN_IF_ERROR(one.rows->ForEach(
          [&](Key key, const RowHeader& header, std::string_view values, bool is_new) {
            return publication->Add(RowKey(one.number, key), header, values, is_new);
          }));
    }
    return publication->Finish(description.meta);
  };
  const auto end = [&](const Status& written) {
    thaw(written.ok());
    if (!written.ok()) return;
    core_->database->DropSetApart();
    core_->ChargeDatabase();
    for (const Frozen& one : frozen) {
      if (one.group.admission != nullptr) one.group.admission->MarkSaved();
    }
    // If the journal has broken meanwhile, only another flush repairs it.
    const bool whole = core_->journal != nullptr && !core_->journal->broken();
    if (whole && description.segment.has_value()) core_->journal->DropThrough(*description.segment);
  };
  Status written;
  const Status status = OrNoMemory([&] {
    for (auto& [number, group] : groups_) frozen.push_back({number, group, nullptr});
    for (Frozen& one : frozen) one.rows = one.group.store->FreezeDirty();
    written = core_->Publish(write, end, gate);
    return Status();
  });
  if (status.ok()) return written;
  thaw(/*published=*/false);
  return FlushOnce();  // which needs less memory
}

}  // namespace sok
