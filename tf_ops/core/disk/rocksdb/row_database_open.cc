// Opening the database: its folder, its lock, its column families and what they say of themselves.
#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstring>
#include <map>
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
#include "core/disk/rocksdb/row_database.h"
#include "core/disk/rocksdb/row_database_handles.h"
#include "core/disk/rocksdb/table_footers.h"

namespace sok {
namespace {

constexpr char kMetaName[] = "sok_meta";

// A large part of the key filter takes 1 / kPartOfKeys of the memory, so the filter never has many
// parts.
constexpr uint64_t kPartOfKeys = 32;

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
}  // namespace

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
}  // namespace sok
