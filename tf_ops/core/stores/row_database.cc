#include "core/stores/row_database.h"

#include <rocksdb/cache.h>
#include <rocksdb/convenience.h>
#include <rocksdb/db.h>
#include <rocksdb/utilities/checkpoint.h>
#include <rocksdb/write_batch.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "core/stores/database_folder.h"
#include "core/stores/rocksdb_setup.h"
#include "core/stores/row_database_handles.h"

namespace sok {
namespace {

constexpr char kPendingName[] = "sok_pending";
constexpr char kMetaName[] = "sok_meta";

rocksdb::Slice SliceOf(std::string_view view) { return {view.data(), view.size()}; }
std::string_view ViewOf(const rocksdb::Slice& slice) { return {slice.data(), slice.size()}; }

// RocksDB may be busy with its own attempts to go on after an error.
constexpr int kResumeAttempts = 200;
constexpr std::chrono::milliseconds kResumePause(100);

Status InUse(const std::string& path) {
  return Status(Code::kUnavailable,
                "the storage '" + path + "' is in use: its lock '" + path + "/LOCK' is taken" +
                    OpenFolders::Holder(path) +
                    "; close the storage there, or give this one a folder of its own");
}

Status Foreign(const std::string& path) {
  return InvalidArgument("'" + path + "' is a RocksDB database, but no storage of sok-embed");
}

}  // namespace

Status DamagedRow(int group, Key key, const std::string& path) {
  return Status(Code::kDataLoss, "the row of key " + std::to_string(key) + " in group " +
                                     std::to_string(group) + " of '" + path + "' is damaged");
}

RowDatabase::RowDatabase(const Options& options, std::unique_ptr<Handles> handles)
    : options_(options), path_(options.path), handles_(std::move(handles)) {}

RowDatabase::~RowDatabase() = default;

Result<std::unique_ptr<RowDatabase::Handles>> RowDatabase::OpenHandles(const Options& options) {
  const std::string& path = options.path;
  const std::string what = "open the storage '" + path + "'";
  auto handles = std::make_unique<Handles>();
  if (!options.read_only) {
    const std::string real = RealPath(path);
    if (!OpenFolders::Add(real)) return InUse(path);
    handles->locked = real;
  } else if (const std::string holder = OpenFolders::Holder(path); !holder.empty()) {
    return Status(Code::kUnavailable,
                  "expected that nobody writes to '" + path + "', got its lock '" + path +
                      "/LOCK'" + holder +
                      "; close it there, or make a checkpoint and open that read-only");
  }
  rocksdb::DBOptions db_options = DatabaseOptions();
  db_options.create_if_missing = !options.read_only;
  db_options.listeners = {handles->errors};
  std::vector<std::string> names = {rocksdb::kDefaultColumnFamilyName};
  const bool exists = access((path + "/CURRENT").c_str(), F_OK) == 0;
  if (exists) {
    const auto listed = rocksdb::DB::ListColumnFamilies(db_options, path, &names);
    if (!listed.ok()) return FromRocksdb(listed, what);
  }
  const auto has = [&](const char* name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (exists && !has(kMetaName) && options.read_only) return Foreign(path);

  handles->block_cache = rocksdb::NewLRUCache(kBlockCacheBytes);
  const uint32_t ttl = options.expiry != nullptr ? options.expiry->ttl() : 0;
  if (options.expiry != nullptr) handles->filter = MakeExpiryFilter(options.expiry);
  handles->row_options = RowOptions(handles->block_cache, nullptr, 0);
  std::vector<rocksdb::ColumnFamilyDescriptor> families = {
      {rocksdb::kDefaultColumnFamilyName,
       RowOptions(handles->block_cache, handles->filter.get(), ttl)}};
  std::vector<rocksdb::ColumnFamilyHandle**> places = {&handles->published};
  if (has(kMetaName)) {
    families.emplace_back(kMetaName, MetaOptions());
    places.push_back(&handles->meta);
  }
  if (has(kPendingName) && !options.read_only) {
    families.emplace_back(kPendingName, handles->row_options);
    places.push_back(&handles->pending);
  }
  std::vector<rocksdb::ColumnFamilyHandle*> opened;
  rocksdb::DB* db = nullptr;
  const auto status = options.read_only
                          ? rocksdb::DB::OpenForReadOnly(db_options, path, families, &opened, &db)
                          : rocksdb::DB::Open(db_options, path, families, &opened, &db);
  if (!status.ok()) {
    const std::string text = status.ToString();
    const bool locked =
        text.find("LOCK") != std::string::npos && text.find("ermission") == std::string::npos;
    if (!locked) return FromRocksdb(status, what);
    // Another process has it. That it is not this one must not count for finding out who has.
    OpenFolders::Remove(handles->locked);
    handles->locked.clear();
    return InUse(path);
  }
  handles->db.reset(db);
  for (size_t i = 0; i < places.size(); ++i) *places[i] = opened[i];
  return handles;
}

Result<std::unique_ptr<RowDatabase>> RowDatabase::Open(const Options& options) {
  const std::string& path = options.path;
  if (access((path + "/CURRENT").c_str(), F_OK) != 0) {
    if (options.read_only) {
      return Status(Code::kNotFound, "there is no storage in '" + path + "'");
    }
    if (Status status = CheckNew(path); !status.ok()) return status;
    if (Status status = MakeFolders(path); !status.ok()) return status;
  }
  auto handles = OpenHandles(options);
  if (!handles.ok()) return handles.status();
  std::unique_ptr<RowDatabase> database(new RowDatabase(options, std::move(handles.value())));
  if (options.read_only) return database;
  Handles& h = *database->handles_;
  if (h.meta == nullptr) {
    // A process that died while it made the storage leaves it without rows.
    std::unique_ptr<rocksdb::Iterator> rows(h.db->NewIterator({}, h.published));
    rows->SeekToFirst();
    if (rows->Valid()) return Foreign(path);
    rows.reset();
    const auto made = h.db->CreateColumnFamily(MetaOptions(), kMetaName, &h.meta);
    if (!made.ok()) return FromRocksdb(made, "make the storage '" + path + "'");
  }
  RemoveFiles(path, kPublishPrefix);
  if (Status status = database->StartPendingAnew(); !status.ok()) return status;
  return database;
}

Status RowDatabase::Recover() {
  if (!handles_->errors->failed() && !handles_->pending_unusable) return Status();
  // RocksDB 7.8 goes wrong when it ingests files after such an error, so it is opened anew. What is
  // pending has no log, and is saved as files before.
  if (has_pending()) {
    rocksdb::Status status;
    for (int attempt = 0; attempt < kResumeAttempts; ++attempt) {
      status = handles_->db->Resume();
      if (status.ok()) break;
      std::this_thread::sleep_for(kResumePause);  // it may be busy with trying by itself
    }
    if (status.ok()) status = handles_->db->Flush({}, handles_->pending);
    if (!status.ok()) return FromRocksdb(status, "write rows to '" + path_ + "'");
  }
  handles_.reset();
  auto handles = OpenHandles(options_);
  if (!handles.ok()) return handles.status();
  handles_ = std::move(handles.value());
  return has_pending() ? Status() : StartPendingAnew();
}

Status RowDatabase::StartPendingAnew() {
  Handles& h = *handles_;
  const std::string what = "make room for pending rows in '" + path_ + "'";
  pending_rows_ = 0;
  h.pending_unusable = true;
  if (h.pending != nullptr) {
    const auto dropped = h.db->DropColumnFamily(h.pending);
    h.db->DestroyColumnFamilyHandle(h.pending);
    h.pending = nullptr;
    if (!dropped.ok()) return FromRocksdb(dropped, what);
  }
  const auto made = h.db->CreateColumnFamily(h.row_options, kPendingName, &h.pending);
  h.pending_unusable = !made.ok();
  return FromRocksdb(made, what);
}

Status RowDatabase::Read(const RowKey* keys, size_t n, const Found& found) const {
  const Handles& h = *handles_;
  std::vector<rocksdb::Slice> wanted(n);
  for (size_t i = 0; i < n; ++i) wanted[i] = rocksdb::Slice(keys[i].bytes, RowKey::kBytes);
  std::vector<rocksdb::PinnableSlice> values(n);
  std::vector<rocksdb::Status> statuses(n);
  std::vector<size_t> rest;  // what is not pending
  const auto failed = [&](const rocksdb::Status& status) {
    return FromRocksdb(status, "read rows of '" + path_ + "'");
  };
  if (!has_pending()) {
    h.db->MultiGet({}, h.published, n, wanted.data(), values.data(), statuses.data(), true);
    for (size_t i = 0; i < n; ++i) {
      if (statuses[i].ok()) {
        found(i, ViewOf(values[i]));
      } else if (!statuses[i].IsNotFound()) {
        return failed(statuses[i]);
      }
    }
    return Status();
  }
  h.db->MultiGet({}, h.pending, n, wanted.data(), values.data(), statuses.data(), true);
  for (size_t i = 0; i < n; ++i) {
    if (statuses[i].IsNotFound()) {
      rest.push_back(i);
    } else if (!statuses[i].ok()) {
      return failed(statuses[i]);
    } else if (values[i].size() > 0) {
      found(i, ViewOf(values[i]));
    }
  }
  const size_t m = rest.size();
  for (size_t i = 0; i < m; ++i) {
    wanted[i] = wanted[rest[i]];
    values[i].Reset();
  }
  h.db->MultiGet({}, h.published, m, wanted.data(), values.data(), statuses.data(), true);
  for (size_t i = 0; i < m; ++i) {
    if (statuses[i].ok()) {
      found(rest[i], ViewOf(values[i]));
    } else if (!statuses[i].IsNotFound()) {
      return failed(statuses[i]);
    }
  }
  return Status();
}

Status RowDatabase::WritePending(const RowBatch& batch) {
  if (batch.rows() == 0) return Status();
  if (handles_->pending_unusable) {
    return Status(Code::kResourceExhausted, "'" + path_ +
                                                "' has no place for pending rows since "
                                                "its disk was full; make room there, then flush");
  }
  rocksdb::WriteBatch writes(batch.bytes() + batch.rows() * 16);
  batch.ForEach([&](std::string_view key, std::string_view value) {
    // An empty value stands for a row that is gone; a Delete would show the published one.
    writes.Put(handles_->pending, SliceOf(key), SliceOf(value));
  });
  rocksdb::WriteOptions options;
  options.disableWAL = true;
  const auto status = handles_->db->Write(options, &writes);
  if (status.ok()) pending_rows_ += batch.rows();
  return FromRocksdb(status, "write rows to '" + path_ + "'");
}

Status RowDatabase::WritePublished(const RowBatch& batch, const Meta& meta, bool sync) {
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
  rocksdb::WriteOptions options;
  options.sync = sync;
  return FromRocksdb(handles_->db->Write(options, &writes), "write rows to '" + path_ + "'");
}

Status RowDatabase::ForEach(int group, const Visit& fn) const {
  const Handles& h = *handles_;
  rocksdb::ReadOptions reading;
  reading.fill_cache = false;
  reading.readahead_size = size_t{2} << 20;
  std::unique_ptr<rocksdb::Iterator> published(h.db->NewIterator(reading, h.published));
  std::unique_ptr<rocksdb::Iterator> pending;
  if (has_pending()) pending.reset(h.db->NewIterator(reading, h.pending));
  const std::string first = group < 0 ? "" : std::string(1, static_cast<char>(group));
  for (auto* rows : {published.get(), pending.get()}) {
    if (rows == nullptr) continue;
    if (group < 0) {
      rows->SeekToFirst();
    } else {
      rows->Seek(first);
    }
  }
  const auto valid = [&](const std::unique_ptr<rocksdb::Iterator>& rows) {
    return rows != nullptr && rows->Valid() && (group < 0 || rows->key().starts_with(first));
  };
  while (valid(published) || valid(pending)) {
    int order =
        valid(published) ? (valid(pending) ? published->key().compare(pending->key()) : -1) : 1;
    const auto& rows = order < 0 ? published : pending;
    const std::string_view key = ViewOf(rows->key());
    if (key.size() == RowKey::kBytes && !rows->value().empty()) {
      Status status = fn(RowKey::Group(key), RowKey::KeyOf(key), ViewOf(rows->value()));
      if (!status.ok()) return status;
    }
    if (order <= 0) published->Next();
    if (order >= 0) pending->Next();
  }
  for (auto* rows : {published.get(), pending.get()}) {
    if (rows != nullptr && !rows->status().ok()) {
      return FromRocksdb(rows->status(), "read rows of '" + path_ + "'");
    }
  }
  return Status();
}

Result<std::map<std::string, std::string>> RowDatabase::ReadMeta(const std::string& prefix) const {
  std::map<std::string, std::string> found;
  std::unique_ptr<rocksdb::Iterator> names(handles_->db->NewIterator({}, handles_->meta));
  for (names->Seek(prefix); names->Valid() && names->key().starts_with(prefix); names->Next()) {
    found[names->key().ToString()] = names->value().ToString();
  }
  if (!names->status().ok()) return FromRocksdb(names->status(), "read '" + path_ + "'");
  return found;
}

Status RowDatabase::Checkpoint(const std::string& path) const {
  if (access(path.c_str(), F_OK) == 0) {
    return InvalidArgument("expected a path for the checkpoint that does not exist yet, got '" +
                           path + "'");
  }
  rocksdb::Checkpoint* made = nullptr;
  auto status = rocksdb::Checkpoint::Create(handles_->db.get(), &made);
  std::unique_ptr<rocksdb::Checkpoint> checkpoint(made);
  if (status.ok()) status = checkpoint->CreateCheckpoint(path);
  return FromRocksdb(status, "make a checkpoint of '" + path_ + "' in '" + path + "'");
}

Status RowDatabase::Compact() {
  rocksdb::CompactRangeOptions options;
  options.bottommost_level_compaction = rocksdb::BottommostLevelCompaction::kForceOptimized;
  const auto status = handles_->db->CompactRange(options, handles_->published, nullptr, nullptr);
  return FromRocksdb(status, "compact '" + path_ + "'");
}

Status RowDatabase::Sync() {
  return FromRocksdb(handles_->db->FlushWAL(true), "sync the log of '" + path_ + "'");
}

RowDatabase::DiskUse RowDatabase::disk_use() const {
  DiskUse use;
  const auto number = [&](const std::string& name) {
    uint64_t value = 0;
    handles_->db->GetIntProperty(handles_->published, name, &value);
    return value;
  };
  use.file_bytes = number(rocksdb::DB::Properties::kTotalSstFilesSize);
  for (auto* family : {handles_->published, handles_->pending}) {
    uint64_t bytes = 0;
    if (family != nullptr &&
        handles_->db->GetIntProperty(family, rocksdb::DB::Properties::kSizeAllMemTables, &bytes)) {
      use.memory_bytes += bytes;
    }
  }
  use.memory_bytes += handles_->block_cache->GetUsage();
  return use;
}

}  // namespace sok
