// What RowDatabase keeps of RocksDB. Included by its sources only.
#pragma once

#include <rocksdb/cache.h>
#include <rocksdb/compaction_filter.h>
#include <rocksdb/db.h>
#include <rocksdb/listener.h>

#include <atomic>
#include <memory>
#include <new>
#include <string>

#include "core/disk/rocksdb/row_database.h"

namespace sok {

// Files that a publication has not finished begin with this.
constexpr char kPublishPrefix[] = "sok-publish-";

// Remembers that RocksDB ran into an error that stopped its writes.
class ErrorListener final : public rocksdb::EventListener {
 public:
  void OnBackgroundError(rocksdb::BackgroundErrorReason, rocksdb::Status* status) override {
    failed_ = true;
    // RocksDB resumes after a full disk, but holds other errors of the disk for the end, as of a
    // compaction that could not write. What was to be written is in memory all the same.
    if (status->IsIOError() && status->severity() == rocksdb::Status::kFatalError) {
      *status = rocksdb::Status(*status, rocksdb::Status::kHardError);
    }
  }
  // RocksDB would try to go on by itself every few seconds, and be busy meanwhile. Recover decides.
  void OnErrorRecoveryBegin(rocksdb::BackgroundErrorReason, rocksdb::Status,
                            bool* auto_recovery) override {
    *auto_recovery = false;
  }
  bool failed() const { return failed_; }

 private:
  std::atomic<bool> failed_{false};
};

struct RowDatabase::Handles {
  // In this order: the database goes first, then what it uses.
  std::unique_ptr<rocksdb::CompactionFilter> filter;
  std::shared_ptr<rocksdb::Cache> block_cache;
  rocksdb::ColumnFamilyOptions row_options;
  std::shared_ptr<ErrorListener> errors = std::make_shared<ErrorListener>();
  bool pending_unusable = false;  // it could be neither dropped nor made
  // Memory ended within a write. RocksDB's other writers wait for one that is gone, for ever, so
  // nobody may come near it any more: not to close it either.
  std::atomic<bool> stuck{false};
  std::unique_ptr<rocksdb::DB> db;
  rocksdb::ColumnFamilyHandle* published = nullptr;
  rocksdb::ColumnFamilyHandle* meta = nullptr;
  rocksdb::ColumnFamilyHandle* pending = nullptr;

  static rocksdb::Status Stuck() {
    return rocksdb::Status::Aborted(
        "memory ended within a write of RocksDB, which cannot go on in this process; end it, and "
        "open the storage in another with more memory or a smaller cache");
  }
  static rocksdb::Status Paused() {
    return rocksdb::Status::Aborted(
        "its disk failed meanwhile, and the storage is opened again; try again");
  }
  // Every call of RocksDB that writes, or waits for who does, goes through here: fn(db).
  template <typename Fn>
  rocksdb::Status Call(const Fn& fn) {
    if (stuck) return Stuck();
    try {
      return fn(db.get());
    } catch (const std::bad_alloc&) {
      stuck = true;
    }
    try {
      return Stuck();
    } catch (const std::bad_alloc&) {
      return rocksdb::Status::Aborted(rocksdb::Status::kMemoryLimit);  // which needs none
    }
  }
  rocksdb::Status Write(const rocksdb::WriteOptions& options, rocksdb::WriteBatch* batch) {
    return Call([&](rocksdb::DB* open) { return open->Write(options, batch); });
  }

  // An iterator that is left alone as well once the database is stuck: to free it may wait, too.
  struct FreeUnlessStuck {
    void operator()(rocksdb::Iterator* iterator) const {
      if (!handles->stuck) delete iterator;
    }
    const Handles* handles = nullptr;
  };
  using Iterator = std::unique_ptr<rocksdb::Iterator, FreeUnlessStuck>;
  // Expects that the database is not stuck.
  Iterator Iterate(const rocksdb::ReadOptions& options, rocksdb::ColumnFamilyHandle* family) const {
    return Iterator(db->NewIterator(options, family), {this});
  }

  ~Handles() { Close(); }
  void Close() {
    if (db == nullptr) return;
    for (auto* handle : {published, meta, pending}) {
      if (handle != nullptr) db->DestroyColumnFamilyHandle(handle);
    }
    db->Close();
    db.reset();
  }
};

}  // namespace sok
