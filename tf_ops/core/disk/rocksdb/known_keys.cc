#include "core/disk/rocksdb/known_keys.h"

#include <rocksdb/metadata.h>
#include <rocksdb/sst_file_reader.h>
#include <rocksdb/table.h>

#include <algorithm>
#include <exception>
#include <numeric>
#include <system_error>
#include <utility>

#include "core/base/checksum.h"
#include "core/base/status_macros.h"
#include "core/disk/rocksdb/row_database_handles.h"

namespace sok {
namespace {

// Files of at most so many bytes are read while the database is opened; larger ones on a thread.
constexpr uint64_t kReadAtOnce = uint64_t{8} << 20;
// A filter of fewer keys is not saved: their files are read in a moment.
constexpr uint64_t kFewestSaved = uint64_t{1} << 16;
constexpr size_t kKeysAtOnce = 4096;

std::vector<rocksdb::LiveFileMetaData> FilesOf(rocksdb::DB* db, rocksdb::ColumnFamilyHandle* rows) {
  std::vector<rocksdb::LiveFileMetaData> files;
  db->GetLiveFilesMetaData(&files);
  files.erase(std::remove_if(files.begin(), files.end(),
                             [&](const rocksdb::LiveFileMetaData& file) {
                               return file.column_family_name != rows->GetName();
                             }),
              files.end());
  return files;
}

// Returns a mark that differs between files of the same number, in other folders or made later in
// this one.
uint64_t MarkOf(const rocksdb::LiveFileMetaData& file) {
  RunningChecksum checksum;
  checksum.Start(0);
  // The number of its rows is not part of it: RocksDB knows that of some files only after it has
  // opened many.
  for (uint64_t number : {uint64_t{file.size}, file.file_creation_time}) {
    checksum.Add(&number, sizeof(number));
  }
  for (const std::string* key : {&file.smallestkey, &file.largestkey}) {
    checksum.Add(key->data(), key->size());
  }
  return checksum.value();
}

// Returns those of the files that are not among `seen`.
std::vector<rocksdb::LiveFileMetaData> FilesNotSeen(std::vector<rocksdb::LiveFileMetaData> files,
                                                    const std::vector<KeyFilter::SeenFile>& seen) {
  const auto is_seen = [&](const rocksdb::LiveFileMetaData& file) {
    return std::any_of(seen.begin(), seen.end(), [&](const KeyFilter::SeenFile& one) {
      return one.number == file.file_number && one.mark == MarkOf(file);
    });
  };
  files.erase(std::remove_if(files.begin(), files.end(), is_seen), files.end());
  return files;
}

std::vector<KeyFilter::SeenFile> SeenOf(const std::vector<rocksdb::LiveFileMetaData>& files) {
  std::vector<KeyFilter::SeenFile> seen;
  for (const rocksdb::LiveFileMetaData& file : files) {
    seen.push_back({file.file_number, MarkOf(file)});
  }
  return seen;
}

uint64_t BytesOf(const std::vector<rocksdb::LiveFileMetaData>& files) {
  uint64_t bytes = 0;
  for (const rocksdb::LiveFileMetaData& file : files) bytes += file.size;
  return bytes;
}

}  // namespace

// A file of rows that is open for reading, even after a compaction has removed it.
struct KnownKeys::Reader {
  static rocksdb::Options Options() {
    rocksdb::BlockBasedTableOptions table;
    table.no_block_cache = true;
    rocksdb::Options options;
    options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
    return options;
  }
  Reader() : file(Options()) {}
  rocksdb::SstFileReader file;
};

bool KnownKeys::ReadRows(rocksdb::Iterator* rows, KeyFilter* filter) {
  std::vector<RowKey> keys;
  for (rows->SeekToFirst(); rows->Valid(); rows->Next()) {
    if (stopping_) return false;
    const rocksdb::Slice key = rows->key();
    if (key.size() != RowKey::kBytes) continue;
    std::memcpy(keys.emplace_back().bytes, key.data(), RowKey::kBytes);
    if (keys.size() < kKeysAtOnce) continue;
    filter->Add(keys.data(), keys.size());
    keys.clear();
  }
  filter->Add(keys.data(), keys.size());
  return rows->status().ok();
}

bool KnownKeys::ReadFiles(const std::vector<std::unique_ptr<Reader>>& files) {
  for (const auto& reader : files) {
    const std::unique_ptr<rocksdb::Iterator> rows(reader->file.NewIterator(WholeRead()));
    if (!ReadRows(rows.get(), filter_.get())) return false;
  }
  return true;
}

void KnownKeys::Load(const std::string& folder) {
  try {
    thread_ = std::thread([this, path = folder + "/" + kFileName] {
      try {
        filter_->Load(path, &seen_);
      } catch (const std::exception&) {  // memory has ended
      }
    });
  } catch (const std::system_error&) {  // no thread could be started: all files will be read
  }
}

void KnownKeys::Open(const std::string& folder, rocksdb::DB* db,
                     rocksdb::ColumnFamilyHandle* rows) {
  if (!thread_.joinable()) Load(folder);
  if (thread_.joinable()) thread_.join();
  std::vector<std::unique_ptr<Reader>> unknown;
  const auto files = FilesOf(db, rows);
  const auto not_seen = FilesNotSeen(files, seen_);
  for (const rocksdb::LiveFileMetaData& file : not_seen) {
    unknown.push_back(std::make_unique<Reader>());
    if (!unknown.back()->file.Open(file.db_path + file.name).ok()) return;
  }
  // If all files are read anyway, a new filter leaves out keys that have gone.
  if (unknown.size() == files.size()) filter_ = std::make_unique<KeyFilter>(part_bytes_);
  saved_keys_ = filter_->size();
  if (BytesOf(not_seen) <= kReadAtOnce) {
    whole_ = ReadFiles(unknown);
    return;
  }
  try {
    thread_ = std::thread([this, files = std::move(unknown)] {
      try {
        whole_ = ReadFiles(files);
      } catch (const std::exception&) {  // memory has ended
      }
    });
  } catch (const std::system_error&) {  // no thread could be started
  }
}

void KnownKeys::Renew(const std::function<std::shared_ptr<rocksdb::Iterator>()>& look) {
  if (thread_.joinable()) thread_.join();
  {
    const std::unique_lock<std::shared_mutex> lock(mu_);
    next_ = std::make_unique<KeyFilter>(part_bytes_);
  }
  // Keys that are added from here on are added to both.
  try {
    thread_ = std::thread([this, rows = look()]() mutable {
      bool read = false;
      try {
        read = ReadRows(rows.get(), next_.get());
      } catch (const std::exception&) {  // memory has ended
      }
      rows.reset();
      EndRenewal(read);
    });
  } catch (const std::exception&) {
    EndRenewal(/*complete=*/false);
  }
}

void KnownKeys::EndRenewal(bool complete) {
  const std::unique_lock<std::shared_mutex> lock(mu_);
  if (complete) {
    filter_ = std::move(next_);
    saved_keys_ = 0;
  }
  next_.reset();
}

void KnownKeys::Stop() {
  stopping_ = true;
  if (thread_.joinable()) thread_.join();
  stopping_ = false;
}

void KnownKeys::Add(const RowKey* keys, size_t n, bool are_new) {
  const std::shared_lock<std::shared_mutex> lock(mu_);
  filter_->Add(keys, n, are_new);
  if (next_ != nullptr) next_->Add(keys, n, are_new);
}

std::vector<uint32_t> KnownKeys::Select(const RowKey* keys, size_t n) const {
  if (whole_.load(std::memory_order_acquire)) {
    const std::shared_lock<std::shared_mutex> lock(mu_);
    return filter_->Select(keys, n);
  }
  std::vector<uint32_t> all(n);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

bool KnownKeys::ShouldSave(rocksdb::DB* db, rocksdb::ColumnFamilyHandle* rows) const {
  const uint64_t keys = size();
  if (keys > saved_keys_ + std::max(kFewestSaved, keys / 8)) return true;
  const auto files = FilesOf(db, rows);
  return BytesOf(FilesNotSeen(files, seen_)) > std::max(kReadAtOnce, BytesOf(files) / 8);
}

bool KnownKeys::ShouldRenew(uint64_t rows) const {
  return whole_ && !renewing() && size() > 2 * rows + 4 * kFewestSaved;
}

bool KnownKeys::HasUnsaved(rocksdb::DB* db, rocksdb::ColumnFamilyHandle* rows) const {
  return size() != saved_keys_ || BytesOf(FilesNotSeen(FilesOf(db, rows), seen_)) > kReadAtOnce;
}

Status KnownKeys::Save(const std::string& folder, rocksdb::DB* db,
                       rocksdb::ColumnFamilyHandle* rows) {
  const uint64_t keys = size();
  std::vector<KeyFilter::SeenFile> seen = SeenOf(FilesOf(db, rows));
  SOK_ASSIGN_OR_RETURN(const bool saved, SaveFor(folder, seen));
  if (!saved) return Status();
  saved_keys_ = keys;
  seen_ = std::move(seen);
  return Status();
}

Status KnownKeys::SaveCopy(const std::string& folder, rocksdb::DB* db,
                           rocksdb::ColumnFamilyHandle* rows) const {
  return SaveFor(folder, SeenOf(FilesOf(db, rows))).status();
}

Result<bool> KnownKeys::SaveFor(const std::string& folder,
                                const std::vector<KeyFilter::SeenFile>& seen) const {
  const std::shared_lock<std::shared_mutex> lock(mu_);
  if (!whole_ || filter_->size() < kFewestSaved) return false;
  SOK_RETURN_IF_ERROR(filter_->Save(folder + "/" + kFileName, seen));
  return true;
}

bool KnownKeys::renewing() const {
  const std::shared_lock<std::shared_mutex> lock(mu_);
  return next_ != nullptr;
}

uint64_t KnownKeys::size() const {
  const std::shared_lock<std::shared_mutex> lock(mu_);
  return filter_->size();
}

uint64_t KnownKeys::bytes() const {
  const std::shared_lock<std::shared_mutex> lock(mu_);
  return filter_->bytes() + (next_ == nullptr ? 0 : next_->bytes());
}

}  // namespace sok
