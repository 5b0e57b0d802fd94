// Writes pending rows: a few through a memtable, many as a sorted file that RocksDB ingests.
#include <rocksdb/sst_file_writer.h>
#include <rocksdb/write_batch.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status_macros.h"
#include "core/disk/rocksdb/known_keys.h"
#include "core/disk/rocksdb/rocksdb_setup.h"
#include "core/disk/rocksdb/row_database.h"
#include "core/disk/rocksdb/row_database_handles.h"

namespace sok {

Status RowDatabase::WritePending(const RowBatch& batch) {
  if (batch.rows() == 0) return Status();
  SOK_RETURN_IF_ERROR(CheckFolder());
  if (handles_->pending_unusable) {
    return Status(Code::kResourceExhausted, "'" + path_ +
                                                "' has no place for pending rows since "
                                                "its disk was full; make room there, then flush");
  }
  AddKeys(batch);
  // They are sorted by key, which makes a memtable faster too.
  SortedRows rows;
  rows.reserve(batch.rows());
  batch.ForEach(
      [&](std::string_view key, std::string_view value) { rows.emplace_back(key, value); });
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  // If no file can be written, the rows may fit into a memtable, and an error there is returned.
  if (batch.bytes() < kPendingFileBytes || !WritePendingFile(rows).ok()) {
    SOK_RETURN_IF_ERROR(WritePendingRows(rows, batch.bytes()));
  }
  pending_rows_ += batch.rows();
  return Status();
}

Status RowDatabase::WritePendingRows(const SortedRows& rows, size_t bytes) {
  rocksdb::WriteBatch writes(bytes + rows.size() * 16);
  for (const auto& [key, value] : rows) {
    // An empty value stands for a row that is gone; a Delete would show the published one.
    writes.Put(handles_->pending[newest_], SliceOf(key), SliceOf(value));
  }
  rocksdb::WriteOptions options;
  options.disableWAL = true;
  options.memtable_insert_hint_per_batch = true;
  auto status = handles_->Write(options, &writes);
  // RocksDB may have stopped because of an error that is over by now.
  if (!status.ok() && usable() && handles_->listener->failed() &&
      handles_->Call(Handles::Resume).ok()) {
    status = handles_->Write(options, &writes);
  }
  return FromRocksdb(status, "write rows to '" + path_ + "'");
}

Status RowDatabase::WritePendingFile(const SortedRows& rows) {
  SOK_RETURN_IF_ERROR(CheckNotStuck());
  Handles& h = *handles_;
  rocksdb::ColumnFamilyHandle* const family = h.pending[newest_];
  const std::string file =
      path_ + "/" + kPublishPrefix + "pending-" + std::to_string(pending_files_++) + ".sst";
  rocksdb::SstFileWriter writer(rocksdb::EnvOptions(), h.db->GetOptions(family), family,
                                /*invalidate_page_cache=*/false);
  auto status = writer.Open(file);
  for (size_t i = 0; i < rows.size() && status.ok(); ++i) {
    const auto& [key, value] = rows[i];
    if (i + 1 < rows.size() && rows[i + 1].first == key) continue;  // the last one is the newest
    status = writer.Put(SliceOf(key), SliceOf(value));
  }
  if (status.ok()) status = writer.Finish();
  if (status.ok()) {
    rocksdb::IngestExternalFileOptions options;
    options.move_files = true;
    options.write_global_seqno = false;
    status =
        h.Call([&](rocksdb::DB* db) { return db->IngestExternalFile(family, {file}, options); });
    // The write may have happened in spite of the error.
    if (!status.ok()) AddWriteInDoubt();
  }
  std::remove(file.c_str());
  return FromRocksdb(status, "write rows to '" + path_ + "'");
}

}  // namespace sok
