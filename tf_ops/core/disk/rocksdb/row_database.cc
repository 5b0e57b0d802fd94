#include "core/disk/rocksdb/row_database.h"

#include <rocksdb/db.h>
#include <rocksdb/utilities/checkpoint.h>
#include <rocksdb/write_batch.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <map>
#include <thread>
#include <utility>

#include "core/base/folder.h"
#include "core/base/status_macros.h"
#include "core/disk/rocksdb/closed_mark.h"
#include "core/disk/rocksdb/known_keys.h"
#include "core/disk/rocksdb/owned_files.h"
#include "core/disk/rocksdb/rocksdb_setup.h"
#include "core/disk/rocksdb/row_database_handles.h"

namespace sok {
namespace {

// The searches of one call that run at a time. One search asks the device for the rows of 32 keys
// at once, file by file, and the device can serve more.
constexpr int kReaders = 16;

constexpr int kResumeAttempts = 50;
constexpr std::chrono::milliseconds kResumePause(100);

// Returns true if all rows of a column family are in files.
bool IsSaved(rocksdb::DB* db, rocksdb::ColumnFamilyHandle* family) {
  for (const auto& name : {rocksdb::DB::Properties::kNumEntriesActiveMemTable,
                           rocksdb::DB::Properties::kNumEntriesImmMemTables}) {
    uint64_t entries = 0;
    if (!db->GetIntProperty(family, name, &entries) || entries > 0) return false;
  }
  return true;
}

}  // namespace

rocksdb::Status RowDatabase::Handles::Resume(rocksdb::DB* db) {
  rocksdb::Status status;
  for (int attempt = 0; attempt < kResumeAttempts; ++attempt) {
    status = db->Resume();
    if (!status.IsBusy()) break;
    std::this_thread::sleep_for(kResumePause);  // another thread is trying
  }
  return status;
}

RowDatabase::RowDatabase(const Options& options, std::shared_ptr<OwnedFiles> files,
                         std::unique_ptr<Handles> handles)
    : options_(options),
      path_(options.path),
      readers_(kReaders),
      files_(std::move(files)),
      handles_(std::move(handles)) {}

RowDatabase::~RowDatabase() {
  if (keys_ != nullptr) {
    keys_->Stop();
    static_cast<void>(OrNoMemory([this] {
      if (usable() && keys_->HasUnsaved(handles_->db.get(), handles_->published)) SaveKeys();
      return Status();
    }));
  }
  if (handles_ != nullptr && handles_->stuck) {
    handles_.release();  // see Handles::stuck; the handles keep the files and the lock
    return;
  }
  const bool was_usable = usable();
  handles_.reset();
  if (files_ == nullptr) return;
  // Where a write is in doubt, or the opening has failed, it is not known which state the database
  // is in.
  if (was_usable && keys_ != nullptr && options_.check && writes_in_doubt() == 0) {
    static_cast<void>(OrNoMemory([this] {
      SOK_RETURN_IF_ERROR(files_->Check());
      MarkClosed(path_, options_.format, published_ > 0 ? history() : opened_in_);
      return Status();
    }));
  }
  files_->Release();
}

bool RowDatabase::usable() const { return handles_ != nullptr && !handles_->stuck; }

Status RowDatabase::CheckNotStuck() const {
  if (handles_ == nullptr || !handles_->stuck) return Status();
  return FromRocksdb(Handles::Stuck(), "go on with the storage '" + path_ + "'");
}

uint64_t RowDatabase::Handles::Runs(rocksdb::ColumnFamilyHandle* family) const {
  const auto files = [&](int level) {
    std::string value;
    db->GetProperty(family, rocksdb::DB::Properties::kNumFilesAtLevelPrefix + std::to_string(level),
                    &value);
    return std::strtoull(value.c_str(), nullptr, 10);
  };
  uint64_t runs = files(0);
  for (int level = 1; level < db->NumberLevels(family); ++level) runs += files(level) > 0;
  return runs;
}

bool RowDatabase::failed() const {
  return !usable() || handles_->listener->failed() || handles_->pending_unusable;
}

Status RowDatabase::CheckFolder() const { return files_ == nullptr ? Status() : files_->Check(); }

Status RowDatabase::SavePending() {
  Handles& h = *handles_;
  rocksdb::Status status = h.Call(Handles::Resume);
  // This flush must not wait for compactions first: those may fail for as long as the disk is full.
  rocksdb::FlushOptions flushing;
  flushing.allow_write_stall = true;
  for (int attempt = 0; attempt < kResumeAttempts && status.ok(); ++attempt) {
    bool saved = true;
    for (auto* family : h.pending) {
      if (family == nullptr || !status.ok()) continue;
      status = h.Call([&](rocksdb::DB* db) { return db->Flush(flushing, family); });
      // If a compaction has failed while RocksDB recovered from another error, its Flush
      // neither waits nor returns an error.
      saved = saved && status.ok() && IsSaved(h.db.get(), family);
    }
    if (saved) return Status();
    if (status.ok()) std::this_thread::sleep_for(kResumePause);
  }
  return FromRocksdb(status.ok() ? Handles::Unsaved() : status, "write rows to '" + path_ + "'");
}

Status RowDatabase::Recover() {
  if (!failed()) return Status();
  SOK_RETURN_IF_ERROR(CheckNotStuck());
  SOK_RETURN_IF_ERROR(CheckFolder());
  // RocksDB 7.8 had a bug when it ingested files after such an error. It is opened anew still, so
  // that none of its state outlives an error.
  if (handles_ != nullptr && has_pending()) SOK_RETURN_IF_ERROR(SavePending());
  if (handles_ != nullptr) handles_->db->DisableManualCompaction();
  std::lock_guard<std::mutex> none_compacting(compacting_);
  // A compaction may have run out of memory.
  SOK_RETURN_IF_ERROR(CheckNotStuck());
  if (keys_->renewing()) keys_->Stop();  // its thread reads through the handles
  if (handles_ != nullptr) written_bytes_ += handles_->listener->written_bytes();
  handles_.reset();
  auto handles = OpenHandles(options_, files_, /*create=*/false, /*noted=*/true);
  if (!handles.ok()) {
    return handles.status().Within(
        "",
        " (opened again after an error; what is in memory is kept, and the next call tries again)");
  }
  handles_ = std::move(handles.value());
  SOK_RETURN_IF_ERROR(ReadOrder());
  if (!has_pending()) return StartPendingAnew();
  return OrNoMemory([this] {
    // An earlier call could not drop it.
    if (!has_set_apart()) SOK_RETURN_IF_ERROR(DropFamily(1 - newest_));
    return handles_->pending[newest_] == nullptr ? MakeFamily(newest_) : Status();
  });
}

Status RowDatabase::StartPendingAnew() {
  // No pending row is visible from here on, even after an error. After an error pending_unusable
  // makes the next Recover do the rest.
  pending_rows_ = 0;
  apart_rows_ = 0;
  handles_->pending_unusable = true;
  SOK_RETURN_IF_ERROR(CheckFolder());
  return OrNoMemory([this] { return MakePendingAnew(); });
}

Status RowDatabase::MakePendingAnew() {
  SOK_RETURN_IF_ERROR(DropFamily(0));
  SOK_RETURN_IF_ERROR(DropFamily(1));
  newest_ = 0;  // versions before 0.3 open a folder with that family alone
  SOK_RETURN_IF_ERROR(MakeFamily(newest_));
  handles_->pending_unusable = false;
  return Status();
}

Status RowDatabase::DropFamily(int number) {
  Handles& h = *handles_;
  if (h.pending[number] == nullptr) return Status();
  const auto dropped =
      h.Call([&](rocksdb::DB* db) { return db->DropColumnFamily(h.pending[number]); });
  if (!h.stuck) h.db->DestroyColumnFamilyHandle(std::exchange(h.pending[number], nullptr));
  return FromRocksdb(dropped, "drop pending rows of '" + path_ + "'");
}

Status RowDatabase::MakeFamily(int number) {
  Handles& h = *handles_;
  const auto made = h.Call([&](rocksdb::DB* db) {
    return db->CreateColumnFamily(h.pending_options, kPendingNames[number], &h.pending[number]);
  });
  // The column family exists already: it could not be dropped because of an error.
  if (made.IsInvalidArgument()) {
    handles_->pending_unusable = true;  // for Recover
    return Status(Code::kInternal, "could not make room for pending rows in '" + path_ + "': " +
                                       made.ToString() + "; the next call opens the storage again");
  }
  return FromRocksdb(made, "make room for pending rows in '" + path_ + "'");
}

Status RowDatabase::SetPendingApart() {
  SOK_RETURN_IF_ERROR(CheckNotStuck());
  SOK_RETURN_IF_ERROR(CheckFolder());
  if (!has_newest()) return Status();
  const int other = 1 - newest_;
  SOK_RETURN_IF_ERROR(OrNoMemory([&] { return MakeFamily(other); }));
  // Its files will be dropped, so merging them is a waste, for which merges of newer files would
  // wait. If this fails they are merged, which only takes time.
  Handles& h = *handles_;
  static_cast<void>(h.Call([&](rocksdb::DB* db) {
    return db->SetOptions(h.pending[newest_], {{"disable_auto_compactions", "true"}});
  }));
  newest_ = other;
  apart_rows_ = pending_rows_.exchange(0);
  return Status();
}

void RowDatabase::DropSetApart() {
  if (has_set_apart()) {
    apart_rows_ = 0;
    const Status dropped =
        has_newest() ? OrNoMemory([&] { return DropFamily(1 - newest_); }) : StartPendingAnew();
    if (!dropped.ok()) handles_->pending_unusable = true;
  }
  RenewKeysIfStale();
}

void RowDatabase::SaveKeysIfMany() {
  static_cast<void>(OrNoMemory([this] {
    if (keys_->ShouldSave(handles_->db.get(), handles_->published)) SaveKeys();
    return Status();
  }));
}

void RowDatabase::RenewKeysIfStale() {
  static_cast<void>(OrNoMemory([this] {
    uint64_t rows = 0;
    handles_->db->GetIntProperty(handles_->published, rocksdb::DB::Properties::kEstimateNumKeys,
                                 &rows);
    if (keys_->ShouldRenew(rows) && !has_pending()) {
      keys_->Renew([this]() -> std::shared_ptr<rocksdb::Iterator> {
        return handles_->IterateWhole(handles_->published);
      });
    }
    return Status();
  }));
}

void RowDatabase::SaveKeys() const {
  if (!usable() || !CheckFolder().ok()) return;
  static_cast<void>(
      OrNoMemory([&] { return keys_->Save(path_, handles_->db.get(), handles_->published); }));
}

void RowDatabase::AddKeys(const RowBatch& batch) {
  std::vector<RowKey> keys;
  keys.reserve(batch.rows());
  batch.ForEach([&](std::string_view key, std::string_view value) {
    if (!value.empty()) std::memcpy(keys.emplace_back().bytes, key.data(), RowKey::kBytes);
  });
  keys_->Add(keys.data(), keys.size());
}

Status RowDatabase::WritePublished(const RowBatch& batch, const Meta& meta, bool sync) {
  AddKeys(batch);
  rocksdb::WriteBatch writes(batch.bytes() + batch.rows() * 16);
  batch.ForEach([&](std::string_view key, std::string_view value) {
    if (value.empty()) {
      writes.Delete(handles_->published, SliceOf(key));
    } else {
      writes.Put(handles_->published, SliceOf(key), SliceOf(value));
    }
  });
  for (const auto& [name, value] : meta) {
    if (value.has_value()) {
      writes.Put(handles_->meta, name, *value);
    } else {
      writes.Delete(handles_->meta, name);
    }
  }
  if (writes.Count() == 0) return Status();
  const std::lock_guard<std::mutex> numbered(history_mu_);
  PublicationOrder order = order_;
  ++order.logged;
  writes.Put(handles_->meta, kLoggedName, order.Encode());
  const History history{options_.opening, ++attempted_};
  writes.Put(handles_->meta, kHistoryName, history.ToText());
  SOK_RETURN_IF_ERROR(CheckFolder());
  rocksdb::WriteOptions options;
  options.sync = sync;
  const auto status = handles_->Write(options, &writes);
  if (status.ok()) {
    order_.logged = order.logged;
    order_.last_log = files_->last_log();
    if (batch.rows() > 0) order_.last_log_of_rows = order_.last_log;
    published_ = history.published;
    published_bytes_ += batch.bytes();
    return Status();
  }
  AddWriteInDoubt();
  failed_publication_.clear();  // a write through the log has no mark
  return FromRocksdb(status, "write rows to '" + path_ + "'");
}

Status RowDatabase::Checkpoint(const std::string& path) const {
  if (access(path.c_str(), F_OK) == 0) {
    return InvalidArgument("expected a path for the checkpoint that does not exist yet, got '" +
                           path + "'");
  }
  SOK_RETURN_IF_ERROR(CheckFolder());
  rocksdb::Checkpoint* made = nullptr;
  auto status = rocksdb::Checkpoint::Create(handles_->db.get(), &made);
  std::unique_ptr<rocksdb::Checkpoint> checkpoint(made);
  if (status.ok()) {
    status = handles_->Call([&](rocksdb::DB*) { return checkpoint->CreateCheckpoint(path); });
  }
  if (!status.ok()) {
    return FromRocksdb(status, "make a checkpoint of '" + path_ + "' in '" + path + "'");
  }
  if (keys_ != nullptr) {
    static_cast<void>(
        OrNoMemory([&] { return keys_->SaveCopy(path, handles_->db.get(), handles_->published); }));
  }
  return Status();
}

Status RowDatabase::DropLog() {
  const std::string what = "drop the log of '" + path_ + "'";
  // RocksDB drops a log after a flush of the memtables that need it. If the memtables are empty it
  // flushes nothing, and keeps its logs, so something is written first.
  rocksdb::WriteBatch writes;
  writes.Delete(handles_->meta, "log");  // a name that does not exist
  rocksdb::WriteOptions options;
  options.sync = true;
  if (const auto status = handles_->Write(options, &writes); !status.ok()) {
    return FromRocksdb(status, what);
  }
  const auto status = handles_->Call([&](rocksdb::DB* db) {
    return db->Flush({}, {handles_->published, handles_->meta});
  });
  return FromRocksdb(status, what);
}

Status RowDatabase::Compact() {
  rocksdb::CompactRangeOptions options;
  options.bottommost_level_compaction = rocksdb::BottommostLevelCompaction::kForceOptimized;
  std::lock_guard<std::mutex> running(compacting_);
  if (!usable()) return FromRocksdb(Handles::Paused(), "compact '" + path_ + "'");
  SOK_RETURN_IF_ERROR(CheckFolder());
  const auto status = handles_->Call([&](rocksdb::DB* db) {
    rocksdb::Status done;
    for (auto* family : {handles_->published, handles_->meta}) {
      if (done.ok()) done = db->CompactRange(options, family, nullptr, nullptr);
    }
    return done;
  });
  return FromRocksdb(status.IsManualCompactionPaused() ? Handles::Paused() : status,
                     "compact '" + path_ + "'");
}

RowDatabase::DiskUse RowDatabase::disk_use() const {
  DiskUse use;
  if (handles_->stuck) return use;
  const auto number = [&](rocksdb::ColumnFamilyHandle* family, const std::string& name) {
    uint64_t value = 0;
    handles_->db->GetIntProperty(family, name, &value);
    return value;
  };
  using Properties = rocksdb::DB::Properties;
  use.file_bytes = number(handles_->published, Properties::kTotalSstFilesSize);
  for (auto* family : {handles_->published, handles_->pending[0], handles_->pending[1]}) {
    if (family == nullptr) continue;
    use.memory_bytes += number(family, Properties::kSizeAllMemTables);
    use.key_bytes += number(family, Properties::kEstimateTableReadersMem);
  }
  use.memory_bytes += handles_->block_cache->GetUsage();
  if (keys_ != nullptr) use.filter_bytes = keys_->bytes();
  use.key_bytes += use.filter_bytes;
  use.memory_bytes += use.key_bytes;
  use.runs = handles_->Runs(handles_->published);
  use.searched = searched_;
  use.filtered = filtered_;
  use.found = found_;
  use.published_bytes = published_bytes_;
  use.written_bytes = written_bytes_ + handles_->listener->written_bytes();
  return use;
}

}  // namespace sok
