// Publishes pending rows, and newer ones, all at once.
#include <rocksdb/sst_file_writer.h>

#include <cstdio>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status_macros.h"
#include "core/disk/rocksdb/known_keys.h"
#include "core/disk/rocksdb/pending_rows.h"
#include "core/disk/rocksdb/rocksdb_setup.h"
#include "core/disk/rocksdb/row_database.h"
#include "core/disk/rocksdb/row_database_handles.h"

namespace sok {
namespace {

constexpr char kPublicationName[] = "publication";
constexpr size_t kKeysAtOnce = 4096;
// A file of a publication is a sorted run of its own until it is merged, so there should be few.
constexpr uint64_t kFileBytes = uint64_t{2} << 30;
// Until a file is finished its writer keeps 8 bytes of memory for each row.
constexpr uint64_t kFileRows = uint64_t{16} << 20;

}  // namespace

struct RowDatabase::RowPublication::Writing {
  std::unique_ptr<PendingRows> pending;  // null: nothing is pending
  std::unique_ptr<rocksdb::SstFileWriter> writer;
  std::vector<std::string> files;
  std::string value;   // scratch
  uint64_t bytes = 0;  // bytes of the files
  uint64_t rows = 0;   // in the file that is being written
  // The keys of rows in the files that are not in the key filter yet; and those that the database
  // has never had.
  std::vector<RowKey> keys, new_keys;

  rocksdb::Status OpenFile(const std::string& folder, rocksdb::DB* db,
                           rocksdb::ColumnFamilyHandle* family) {
    files.push_back(folder + "/" + kPublishPrefix + std::to_string(files.size()) + ".sst");
    writer = std::make_unique<rocksdb::SstFileWriter>(rocksdb::EnvOptions(), db->GetOptions(family),
                                                      family, /*invalidate_page_cache=*/false);
    return writer->Open(files.back());
  }
  rocksdb::Status CloseFile() {
    rows = 0;
    const auto status = writer->Finish();
    bytes += writer->FileSize();
    writer.reset();
    return status;
  }
};

RowDatabase::RowPublication::RowPublication(RowDatabase* database, bool of_set_apart)
    : database_(*database), of_set_apart_(of_set_apart), writing_(std::make_unique<Writing>()) {
  error_ = database_.CheckFolder();
  const bool any = of_set_apart ? database_.has_set_apart() : database_.has_pending();
  if (!error_.ok() || !any) return;
  writing_->pending = std::make_unique<PendingRows>(database_, of_set_apart);
  writing_->pending->Seek("");
}

RowDatabase::RowPublication::~RowPublication() {
  writing_->writer.reset();
  // Files of these names may belong to another process.
  if (!database_.CheckFolder().ok()) return;
  for (const std::string& file : writing_->files) std::remove(file.c_str());
}

Status RowDatabase::RowPublication::Put(std::string_view key, std::string_view value, bool is_new) {
  Handles& h = *database_.handles_;
  rocksdb::Status status;
  if (!value.empty()) {
    std::vector<RowKey>& keys = is_new ? writing_->new_keys : writing_->keys;
    std::memcpy(keys.emplace_back().bytes, key.data(), RowKey::kBytes);
    if (keys.size() == kKeysAtOnce) AddKeys(&keys);
  }
  if (writing_->writer == nullptr) {
    status = writing_->OpenFile(database_.path_, h.db.get(), h.published);
  }
  if (status.ok()) {
    status = value.empty() ? writing_->writer->Delete(SliceOf(key))
                           : writing_->writer->Put(SliceOf(key), SliceOf(value));
  }
  ++writing_->rows;
  if (status.ok() && (writing_->writer->FileSize() > kFileBytes || writing_->rows == kFileRows)) {
    status = writing_->CloseFile();
  }
  error_ = FromRocksdb(status, "publish rows of '" + database_.path_ + "'");
  return error_;
}

void RowDatabase::RowPublication::AddKeys(std::vector<RowKey>* keys) {
  database_.keys_->Add(keys->data(), keys->size(), /*are_new=*/keys == &writing_->new_keys);
  keys->clear();
}

Status RowDatabase::RowPublication::PutPendingBefore(const RowKey* key) {
  PendingRows* const pending = writing_->pending.get();
  if (pending == nullptr) return Status();
  for (; error_.ok() && pending->Valid(); pending->Next()) {
    const int order = key == nullptr ? -1 : pending->key().compare(key->view());
    if (order > 0) break;
    if (order == 0) continue;  // the row that is added is newer
    error_ = Put(pending->key(), pending->value());
  }
  if (error_.ok()) error_ = pending->status();
  return error_;
}

Status RowDatabase::RowPublication::Add(const RowKey& key, const RowHeader& header,
                                        std::string_view values, bool is_new) {
  if (!error_.ok() || !PutPendingBefore(&key).ok()) return error_;
  std::string& value = writing_->value;
  value.assign(reinterpret_cast<const char*>(&header), sizeof(header));
  value.append(values);
  return Put(key.view(), value, is_new);
}

Status RowDatabase::RowPublication::AddValue(const RowKey& key, std::string_view value) {
  if (!error_.ok() || !PutPendingBefore(&key).ok()) return error_;
  return Put(key.view(), value);
}

Status RowDatabase::RowPublication::Finish(Meta meta) {
  if (!error_.ok() || !PutPendingBefore(nullptr).ok()) return error_;
  error_ = database_.CheckFolder();
  if (!error_.ok()) return error_;
  AddKeys(&writing_->keys);
  AddKeys(&writing_->new_keys);
  Handles& h = *database_.handles_;
  rocksdb::Status status;
  if (writing_->writer != nullptr) status = writing_->CloseFile();
  const size_t row_files = writing_->files.size();
  // The mark differs between publications. If this one fails at its end, the mark shows whether it
  // has happened.
  std::random_device random;
  const std::string mark = std::to_string(uint64_t{random()} << 32 | random());
  meta[kPublicationName] = mark;
  const std::lock_guard<std::mutex> numbered(database_.history_mu_);
  PublicationOrder order = database_.order_;
  ++order.ingested;
  meta[kIngestedName] = order.Encode();
  const History history{database_.options_.opening, ++database_.attempted_};
  meta[kHistoryName] = history.ToText();
  if (status.ok()) {
    status = writing_->OpenFile(database_.path_, h.db.get(), h.meta);
    for (const auto& [name, value] : meta) {
      if (!status.ok()) break;
      status =
          value.has_value() ? writing_->writer->Put(name, *value) : writing_->writer->Delete(name);
    }
    if (status.ok()) status = writing_->CloseFile();
  }
  std::vector<rocksdb::IngestExternalFileArg> arguments;
  const auto add = [&](rocksdb::ColumnFamilyHandle* family, size_t first, size_t last) {
    if (first == last) return;
    rocksdb::IngestExternalFileArg argument;
    argument.column_family = family;
    argument.external_files.assign(writing_->files.begin() + first, writing_->files.begin() + last);
    argument.options.move_files = true;
    argument.options.write_global_seqno = false;
    arguments.push_back(std::move(argument));
  };
  if (status.ok()) {
    add(h.published, 0, row_files);
    add(h.meta, row_files, writing_->files.size());
    if (h.listener->failed()) {
      error_ = Status(Code::kResourceExhausted,
                      "'" + database_.path_ + "' ran into an error meanwhile; flush again");
      return error_;
    }
    if (!arguments.empty()) {
      // The mark is kept before the call, after which memory may be short.
      database_.failed_publication_ = mark;
      status = h.Call([&](rocksdb::DB* db) { return db->IngestExternalFiles(arguments); });
      if (status.ok()) {
        database_.published_ = history.published;
        database_.failed_publication_.clear();
        database_.order_.ingested = order.ingested;
        database_.published_bytes_ += writing_->bytes;
        database_.written_bytes_ += writing_->bytes;
      } else {
        database_.AddWriteInDoubt();
      }
    }
  }
  if (!status.ok()) {
    error_ = FromRocksdb(status, "publish rows of '" + database_.path_ + "'");
    return error_;
  }
  // The rows are published now, so no error may be returned any more. If the pending rows cannot be
  // dropped, the next Recover drops them.
  if (!of_set_apart_) {
    if (database_.has_pending()) static_cast<void>(database_.StartPendingAnew());
    database_.RenewKeysIfStale();
  }
  database_.SaveKeysIfMany();
  return error_;
}

Result<bool> RowDatabase::FailedPublicationIsThere() const {
  SOK_ASSIGN_OR_RETURN(auto stored, ReadMeta(kPublicationName));
  return !failed_publication_.empty() && stored[kPublicationName] == failed_publication_;
}

std::unique_ptr<Database::Publication> RowDatabase::StartPublication() {
  return std::make_unique<RowPublication>(this, /*of_set_apart=*/false);
}

std::unique_ptr<Database::Publication> RowDatabase::StartPublicationOfSetApart() {
  return std::make_unique<RowPublication>(this, /*of_set_apart=*/true);
}

}  // namespace sok
