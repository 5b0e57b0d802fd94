#include "core/disk/rocksdb/row_database.h"

#include <rocksdb/cache.h>
#include <rocksdb/convenience.h>
#include <rocksdb/db.h>
#include <rocksdb/utilities/checkpoint.h>
#include <rocksdb/write_batch.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdarg>
#include <cstring>
#include <map>
#include <new>
#include <thread>
#include <utility>

#include "core/base/file_error.h"
#include "core/base/folder.h"
#include "core/base/status_macros.h"
#include "core/disk/rocksdb/closed_mark.h"
#include "core/disk/rocksdb/database_files.h"
#include "core/disk/rocksdb/database_folder.h"
#include "core/disk/rocksdb/known_keys.h"
#include "core/disk/rocksdb/noted_folder.h"
#include "core/disk/rocksdb/owned_files.h"
#include "core/disk/rocksdb/rocksdb_setup.h"
#include "core/disk/rocksdb/row_database_handles.h"
#include "core/disk/rocksdb/table_footers.h"

namespace sok {
namespace {

constexpr const char* kPendingNames[] = {"sok_pending", "sok_pending_2"};
constexpr char kMetaName[] = "sok_meta";

// A large part of the key filter takes 1 / kPartOfKeys of the memory, so the filter never has many
// parts.
constexpr uint64_t kPartOfKeys = 32;

// The searches of one call that run at a time. One search asks the device for the rows of 32 keys
// at once, file by file, and the device can serve more.
constexpr int kReaders = 16;
constexpr int64_t kReadCost = 160;  // nanoseconds a key, so that 128 keys are worth a thread

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

Status InUse(const std::string& path, const std::string& holder) {
  return Status(Code::kUnavailable,
                "the storage '" + path + "' is in use" + holder +
                    "; close the storage there, or give this one a folder of its own");
}

Status TakeLock(const std::string& path, FolderClaim* claim) {
  Status status = claim->LockFile();
  return status.code() == Code::kUnavailable ? InUse(path, "; " + status.message()) : status;
}

// Returns true if the database could not be opened because another process has it open.
bool IsLocked(const rocksdb::Status& status) {
  const std::string text = status.ToString();
  const auto says = [&](const char* part) { return text.find(part) != std::string::npos; };
  return says("lock hold by current process") ||
         (says("While lock file") && (says(std::strerror(EAGAIN)) || says(std::strerror(EACCES))));
}

// Returns the error for a database that lacks what a storage has. `file`: it has this file of rows.
Status Foreign(const std::string& path, const std::string& file) {
  if (access((path + "/" + FolderClaim::kFileName).c_str(), F_OK) == 0 && !file.empty()) {
    return Status(Code::kDataLoss, "the storage '" + path + "' is damaged: its manifest has no " +
                                       "description of it, and the folder has '" + file + "'" +
                                       kRestore);
  }
  return InvalidArgument("'" + path + "' is a RocksDB database, but no storage of sok-embed");
}

// Returns the error of an opening that failed.
Status OpeningError(const std::string& path, const rocksdb::Status& error) {
  const Status status = FromRocksdb(error, "open the storage '" + path + "'");
  // The folder has a database, so what could not be found is a part of it.
  const bool lacks = status.code() == Code::kNotFound && HoldsDatabase(path);
  return lacks ? Status(Code::kDataLoss, status.message() + kRestore) : status;
}

// Returns how RocksDB reads the logs. The part of a log that is noted has been checked, so a place
// that cannot be read is its torn end. Without a note such a place may have been flushed.
rocksdb::WALRecoveryMode RecoveryMode(bool noted) {
  return noted ? rocksdb::WALRecoveryMode::kPointInTimeRecovery
               : rocksdb::WALRecoveryMode::kTolerateCorruptedTailRecords;
}

// Keeps RocksDB from writing a log of what it does.
class NoLog final : public rocksdb::Logger {
 public:
  using Logger::Logv;
  void Logv(const char* /*format*/, va_list /*arguments*/) override {}
};

// Returns reading options for rows that go into the caller's own cache.
rocksdb::ReadOptions RowRead() {
  rocksdb::ReadOptions reading;
  reading.fill_cache = false;
  return reading;
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

Result<std::unique_ptr<RowDatabase::Handles>> RowDatabase::OpenHandles(
    const Options& options, const std::shared_ptr<OwnedFiles>& files, bool create, bool noted) {
  const std::string& path = options.path;
  auto handles = std::make_unique<Handles>();
  rocksdb::DBOptions db_options = DatabaseOptions();
  db_options.create_if_missing = create;
  if (files != nullptr) {
    handles->env = rocksdb::NewCompositeEnv(files);
  } else {
    handles->env = rocksdb::NewCompositeEnv(std::make_shared<DatabaseFiles>());
  }
  db_options.env = handles->env.get();
  db_options.listeners = {handles->listener};
  handles->order = std::make_unique<OrderOfLogs>(path, kMetaName, [files](const Status& error) {
    if (files != nullptr) files->Refuse(error);
  });
  db_options.wal_filter = handles->order.get();
  db_options.wal_recovery_mode = RecoveryMode(noted);
  std::vector<std::string> names = {rocksdb::kDefaultColumnFamilyName};
  const bool exists = access((path + "/CURRENT").c_str(), F_OK) == 0;
  if (exists) {
    const auto listed = rocksdb::DB::ListColumnFamilies(db_options, path, &names);
    if (!listed.ok()) return OpeningError(path, listed);
  }
  const auto has = [&](const char* name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (exists && !has(kMetaName)) {
    // If a process has died while it made the storage, there are no rows.
    SOK_ASSIGN_OR_RETURN(const std::string file, FileOfRows(path));
    if (options.read_only || !file.empty()) return Foreign(path, file);
  }

  handles->block_cache = rocksdb::NewLRUCache(kBlockCacheBytes);
  const uint32_t ttl = options.expiry != nullptr ? options.expiry->ttl() : 0;
  if (options.expiry != nullptr) handles->filter = MakeExpiryFilter(options.expiry);
  handles->pending_options = PendingOptions(handles->block_cache);
  std::vector<rocksdb::ColumnFamilyDescriptor> families = {
      {rocksdb::kDefaultColumnFamilyName,
       RowOptions(handles->block_cache, handles->filter.get(), ttl)}};
  std::vector<rocksdb::ColumnFamilyHandle**> places = {&handles->published};
  if (has(kMetaName)) {
    families.emplace_back(kMetaName, MetaOptions());
    places.push_back(&handles->meta);
  }
  for (int i = 0; i < 2 && !options.read_only; ++i) {
    if (!has(kPendingNames[i])) continue;
    families.emplace_back(kPendingNames[i], handles->pending_options);
    places.push_back(&handles->pending[i]);
  }
  std::vector<rocksdb::ColumnFamilyHandle*> opened;
  rocksdb::DB* db = nullptr;
  const auto status = options.read_only
                          ? rocksdb::DB::OpenForReadOnly(db_options, path, families, &opened, &db)
                          : rocksdb::DB::Open(db_options, path, families, &opened, &db);
  if (status.ok()) {
    handles->db.reset(db);
    for (size_t i = 0; i < places.size(); ++i) *places[i] = opened[i];
  }
  if (!handles->order->refused().ok()) return handles->order->refused();
  if (!status.ok()) {
    if (!IsLocked(status)) return OpeningError(path, status);
    return InUse(path, OpenFolders::OtherHolder(path));
  }
  return handles;
}

Status RowDatabase::CheckMeta(const Options& options, const std::optional<ClosedMark>& mark,
                              bool noted) {
  const std::string& path = options.path;
  rocksdb::DBOptions db_options = DatabaseOptions();
  db_options.info_log = std::make_shared<NoLog>();
  db_options.wal_recovery_mode = RecoveryMode(noted);
  db_options.max_open_files = 20;  // the fewest, since RocksDB opens a part of the files at once
  std::vector<std::string> names;
  const auto listed = rocksdb::DB::ListColumnFamilies(db_options, path, &names);
  if (!listed.ok()) return OpeningError(path, listed);
  if (std::find(names.begin(), names.end(), kMetaName) == names.end()) return Status();
  std::vector<rocksdb::ColumnFamilyHandle*> opened;
  rocksdb::DB* db = nullptr;
  const auto status = rocksdb::DB::OpenForReadOnly(
      db_options, path,
      {{rocksdb::kDefaultColumnFamilyName, RowOptions(nullptr, nullptr, 0)},
       {kMetaName, MetaOptions()}},
      &opened, &db);
  if (!status.ok()) return OpeningError(path, status);
  const std::unique_ptr<rocksdb::DB> closes(db);
  std::map<std::string, std::string> meta;
  rocksdb::Status read;
  {
    const std::unique_ptr<rocksdb::Iterator> names_of(db->NewIterator({}, opened[1]));
    for (names_of->SeekToFirst(); names_of->Valid(); names_of->Next()) {
      meta[names_of->key().ToString()] = names_of->value().ToString();
    }
    read = names_of->status();
  }
  for (rocksdb::ColumnFamilyHandle* handle : opened) db->DestroyColumnFamilyHandle(handle);
  if (!read.ok()) return OpeningError(path, read);
  SOK_RETURN_IF_ERROR(CheckClosedMark(path, mark, History::FromText(meta[kHistoryName])));
  return options.check(meta);
}

Result<std::unique_ptr<Database>> RowDatabase::Open(const Options& given) {
  Options options = given;
  if (options.written == nullptr) options.written = std::make_shared<WrittenNote>(options.path);
  WrittenNote& note = *options.written;
  SOK_RETURN_IF_ERROR(CheckTableFooters(options.path));
  const std::string& path = options.path;
  const bool exists = HoldsDatabase(path);
  if (!options.read_only) SOK_RETURN_IF_ERROR(CheckNotInDatabase(path, "a storage"));
  if (!exists) {
    SOK_RETURN_IF_ERROR(CheckHasNoDatabase(path));
    if (options.read_only) {
      return Status(Code::kNotFound, "there is no storage in '" + path + "'");
    }
    SOK_RETURN_IF_ERROR(CheckNew(path));
    SOK_RETURN_IF_ERROR(MakeFolders(path));
  }
  std::shared_ptr<FolderClaim> claim;
  std::shared_ptr<OwnedFiles> files;
  if (!options.read_only) {
    claim = FolderClaim::Take(path);
    if (claim == nullptr) return InUse(path, OpenFolders::Holder(path));
  } else if (const std::string holder = OpenFolders::Holder(path); !holder.empty()) {
    return Status(Code::kUnavailable,
                  "expected that nobody writes to '" + path + "', got its lock" + holder +
                      "; close it there, or make a checkpoint and open that read-only");
  }
  // RocksDB moves its log files before it checks its own lock, so the claim comes first. In a
  // folder that is not a storage yet it makes no file.
  const bool has_lock = claim != nullptr && claim->has_file();
  if (has_lock) SOK_RETURN_IF_ERROR(TakeLock(path, claim.get()));
  SOK_RETURN_IF_ERROR(note.Load());
  SOK_ASSIGN_OR_RETURN(const bool noted, exists ? CheckNoted(path, note) : Result<bool>(true));
  SOK_ASSIGN_OR_RETURN(const auto mark, FindClosedMark(path, options.format));
  if (exists && claim != nullptr && options.check) {
    SOK_ASSIGN_OR_RETURN(const auto journal, JournalSegments(path));
    if (!mark.has_value() || !mark->is_as_closed || !journal.empty()) {
      SOK_RETURN_IF_ERROR(CheckMeta(options, mark, noted));
    }
    RemoveClosedMark(path);
  }
  if (claim != nullptr) {
    if (!noted) SOK_RETURN_IF_ERROR(note.Drop(IsNoted, /*sync=*/false));
    files = std::make_shared<OwnedFiles>(path, claim, options.written);
  }
  SOK_ASSIGN_OR_RETURN(const uint64_t last_log, LastLog(path));
  std::unique_ptr<KnownKeys> keys;
  if (!options.read_only) {
    keys = std::make_unique<KnownKeys>(options.memory_bytes / kPartOfKeys);
    keys->Load(path);  // while RocksDB opens its files
  }
  SOK_ASSIGN_OR_RETURN(auto handles,
                       OpenHandles(options, files, /*create=*/!options.read_only, noted));
  if (claim != nullptr && !has_lock) SOK_RETURN_IF_ERROR(TakeLock(path, claim.get()));
  std::unique_ptr<RowDatabase> database(
      new RowDatabase(options, std::move(files), std::move(handles)));
  database->order_.last_log = database->order_.last_log_of_rows = last_log;
  if (options.read_only) {
    SOK_RETURN_IF_ERROR(database->ReadOrder());
    SOK_RETURN_IF_ERROR(database->ReadHistory());
    SOK_RETURN_IF_ERROR(CheckClosedMark(path, mark, database->opened_in_));
    return std::unique_ptr<Database>(std::move(database));
  }
  Handles& h = *database->handles_;
  if (h.meta == nullptr) {
    const auto made = h.Call(
        [&](rocksdb::DB* db) { return db->CreateColumnFamily(MetaOptions(), kMetaName, &h.meta); });
    if (!made.ok()) return FromRocksdb(made, "make the storage '" + path + "'");
  }
  SOK_RETURN_IF_ERROR(database->ReadHistory());
  SOK_RETURN_IF_ERROR(database->ReadOrder());
  SOK_RETURN_IF_ERROR(note.Start());
  RemoveFiles(path, kPublishPrefix);
  SOK_RETURN_IF_ERROR(database->StartPendingAnew());
  database->keys_ = std::move(keys);
  database->keys_->Open(path, h.db.get(), h.published);
  return std::unique_ptr<Database>(std::move(database));
}

Status RowDatabase::ReadOrder() {
  SOK_ASSIGN_OR_RETURN(auto logged, ReadMeta(kLoggedName));
  SOK_ASSIGN_OR_RETURN(auto ingested, ReadMeta(kIngestedName));
  SOK_RETURN_IF_ERROR(CheckOrder(path_, logged[kLoggedName], ingested[kIngestedName]));
  order_.logged = PublicationOrder::Decode(logged[kLoggedName]).logged;
  order_.ingested = PublicationOrder::Decode(ingested[kIngestedName]).ingested;
  return Status();
}

Status RowDatabase::ReadHistory() {
  SOK_ASSIGN_OR_RETURN(auto stored, ReadMeta(kHistoryName));
  opened_in_ = History::FromText(stored[kHistoryName]);
  return Status();
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
      // If a compaction has failed while RocksDB 7.8 recovered from another error, its Flush
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
  // RocksDB 7.8 has a bug when it ingests files after such an error, so it is opened anew.
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

Status RowDatabase::Read(const RowKey* keys, size_t n, const Found& found) const {
  if (keys_ == nullptr) return ReadKnown(keys, n, found);
  const std::vector<uint32_t> known = keys_->Select(keys, n);
  filtered_.fetch_add(n - known.size(), std::memory_order_relaxed);
  if (known.size() == n) return ReadKnown(keys, n, found);
  std::vector<RowKey> wanted(known.size());
  for (size_t i = 0; i < known.size(); ++i) wanted[i] = keys[known[i]];
  return ReadKnown(wanted.data(), wanted.size(),
                   [&](size_t i, std::string_view value) { found(known[i], value); });
}

Status RowDatabase::ReadKnown(const RowKey* keys, size_t n, const Found& each) const {
  SOK_RETURN_IF_ERROR(CheckNotStuck());
  if (n == 0) return Status();
  uint64_t rows = 0;
  const auto found = [&](size_t i, std::string_view value) {
    ++rows;
    each(i, value);
  };
  const Status status = ReadNewest(keys, n, found);
  searched_.fetch_add(n, std::memory_order_relaxed);
  found_.fetch_add(rows, std::memory_order_relaxed);
  return status;
}

Status RowDatabase::ReadNewest(const RowKey* keys, size_t n, const Found& found) const {
  if (journal_ == nullptr && !has_pending()) return ReadFiles(keys, n, found);
  std::vector<RowKey> wanted(keys, keys + n);
  std::vector<size_t> positions;  // positions of keys that are still wanted; empty: all
  const auto each = [&](size_t i, std::string_view value) {
    found(positions.empty() ? i : positions[i], value);
  };
  // Keeps only the keys at `rest`, for which newer data has neither a row nor a tombstone.
  const auto keep = [&](const std::vector<size_t>& rest) {
    for (size_t i = 0; i < rest.size(); ++i) {
      wanted[i] = wanted[rest[i]];
      if (!positions.empty()) positions[i] = positions[rest[i]];
    }
    if (positions.empty()) positions = rest;
    wanted.resize(rest.size());
    positions.resize(rest.size());
    return rest.empty();
  };
  if (journal_ != nullptr) {
    SOK_ASSIGN_OR_RETURN(const auto rest, ReadJournal(wanted.data(), wanted.size(), each));
    if (keep(rest)) return Status();
  }
  if (has_newest()) {
    SOK_ASSIGN_OR_RETURN(const auto rest, ReadPending(newest_, wanted.data(), wanted.size(), each));
    if (keep(rest)) return Status();
  }
  if (has_set_apart()) {
    SOK_ASSIGN_OR_RETURN(const auto rest,
                         ReadPending(1 - newest_, wanted.data(), wanted.size(), each));
    if (keep(rest)) return Status();
  }
  return ReadFiles(wanted.data(), wanted.size(), each);
}

Result<std::vector<size_t>> RowDatabase::ReadJournal(const RowKey* keys, size_t n,
                                                     const Found& found) const {
  std::vector<size_t> rest;
  std::string value;
  for (size_t i = 0; i < n; ++i) {
    const JournalReader::Place* place = journal_->Find(keys[i]);
    if (place == nullptr) {
      rest.push_back(i);
    } else if (place->size > 0) {
      SOK_RETURN_IF_ERROR(journal_->Read(*place, &value));
      found(i, value);
    }
  }
  return rest;
}

Result<std::vector<size_t>> RowDatabase::ReadPending(int family, const RowKey* keys, size_t n,
                                                     const Found& found) const {
  std::vector<size_t> rest;
  std::vector<rocksdb::Slice> wanted(n);
  for (size_t i = 0; i < n; ++i) wanted[i] = rocksdb::Slice(keys[i].bytes, RowKey::kBytes);
  std::vector<rocksdb::PinnableSlice> values(n);
  std::vector<rocksdb::Status> statuses(n);
  handles_->db->MultiGet(RowRead(), handles_->pending[family], n, wanted.data(), values.data(),
                         statuses.data(), true);
  for (size_t i = 0; i < n; ++i) {
    if (statuses[i].IsNotFound()) {
      rest.push_back(i);
    } else if (!statuses[i].ok()) {
      return FromRocksdb(statuses[i], "read rows of '" + path_ + "'");
    } else if (values[i].size() > 0) {
      found(i, ViewOf(values[i]));
    }
  }
  return rest;
}

Status RowDatabase::ReadPublished(const RowKey* keys, size_t n, const Found& found) const {
  SOK_RETURN_IF_ERROR(CheckNotStuck());
  return ReadFiles(keys, n, found);
}

Status RowDatabase::ReadFiles(const RowKey* keys, size_t n, const Found& found) const {
  const Handles& h = *handles_;
  std::vector<rocksdb::Slice> wanted(n);
  for (size_t i = 0; i < n; ++i) wanted[i] = rocksdb::Slice(keys[i].bytes, RowKey::kBytes);
  std::vector<rocksdb::PinnableSlice> values(n);
  std::vector<rocksdb::Status> statuses(n);
  readers_.Run(static_cast<int64_t>(n), kReadCost, [&](int64_t begin, int64_t end) {
    h.db->MultiGet(RowRead(), h.published, end - begin, wanted.data() + begin,
                   values.data() + begin, statuses.data() + begin, true);
  });
  for (size_t i = 0; i < n; ++i) {
    if (statuses[i].ok()) {
      found(i, ViewOf(values[i]));
    } else if (!statuses[i].IsNotFound()) {
      return FromRocksdb(statuses[i], "read rows of '" + path_ + "'");
    }
  }
  return Status();
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

void RowDatabase::ShowJournal(std::unique_ptr<JournalReader> journal, Meta meta) {
  journal_ = std::move(journal);
  journal_meta_ = std::move(meta);
}

Result<std::map<std::string, std::string>> RowDatabase::ReadMeta(const std::string& prefix) const {
  SOK_RETURN_IF_ERROR(CheckNotStuck());
  std::map<std::string, std::string> found;
  const Handles::Iterator names = handles_->Iterate({}, handles_->meta);
  for (names->Seek(prefix); names->Valid() && names->key().starts_with(prefix); names->Next()) {
    found[names->key().ToString()] = names->value().ToString();
  }
  if (!names->status().ok()) return FromRocksdb(names->status(), "read '" + path_ + "'");
  for (const auto& [name, value] : journal_meta_) {
    if (name.compare(0, prefix.size(), prefix) != 0) continue;
    if (value.has_value()) {
      found[name] = *value;
    } else {
      found.erase(name);
    }
  }
  return found;
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
