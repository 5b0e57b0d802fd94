// The objects of RocksDB that a RowDatabase has open. Included by its sources only.
#pragma once

#include <rocksdb/advanced_cache.h>
#include <rocksdb/compaction_filter.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/listener.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <new>
#include <string>
#include <string_view>

#include "core/disk/rocksdb/publication_order.h"
#include "core/disk/rocksdb/row_database.h"

namespace sok {

// Files that a publication has not finished begin with this.
constexpr char kPublishPrefix[] = "sok-publish-";
// The column families of pending rows.
constexpr const char* kPendingNames[] = {"sok_pending", "sok_pending_2"};

inline rocksdb::Slice SliceOf(std::string_view view) { return {view.data(), view.size()}; }
inline std::string_view ViewOf(const rocksdb::Slice& slice) { return {slice.data(), slice.size()}; }

// Returns reading options for a caller that reads many rows once, in the order of their keys, from
// so many sorted runs at a time. Each has a buffer.
inline rocksdb::ReadOptions WholeRead(uint64_t runs = 1) {
  constexpr uint64_t kMost = uint64_t{2} << 20, kLeast = uint64_t{64} << 10;
  rocksdb::ReadOptions reading;
  reading.fill_cache = false;
  reading.readahead_size =
      std::clamp((uint64_t{64} << 20) / std::max<uint64_t>(1, runs), kLeast, kMost);
  return reading;
}

// Notes whether an error has stopped RocksDB's writes, and how many bytes it writes.
class Listener final : public rocksdb::EventListener {
 public:
  void OnBackgroundError(rocksdb::BackgroundErrorReason, rocksdb::Status* status) override {
    failed_ = true;
    // RocksDB recovers from a full disk, but treats other errors of the disk as final, such as a
    // compaction that could not write. The data is still in memory, so these errors are turned into
    // ones that it can recover from.
    if (status->IsIOError() && status->severity() == rocksdb::Status::kFatalError) {
      *status = rocksdb::Status(*status, rocksdb::Status::kHardError);
    }
  }
  // RocksDB would try to recover by itself every few seconds, and be busy meanwhile. Instead
  // Recover decides when to try.
  void OnErrorRecoveryBegin(rocksdb::BackgroundErrorReason, rocksdb::Status,
                            bool* auto_recovery) override {
    *auto_recovery = false;
  }
  bool failed() const { return failed_; }

  // Merges can wait, and training cannot: while training keeps all cores busy, the merging threads
  // get a tenth of a core.
  void OnCompactionBegin(rocksdb::DB*, const rocksdb::CompactionJobInfo&) override {
    thread_local const bool lowered = LowerPriorityOfThread();
    static_cast<void>(lowered);
  }
  void OnFlushCompleted(rocksdb::DB*, const rocksdb::FlushJobInfo& info) override {
    written_ += info.table_properties.data_size;
  }
  void OnCompactionCompleted(rocksdb::DB*, const rocksdb::CompactionJobInfo& info) override {
    written_ += info.stats.total_output_bytes;
  }
  // Returns the bytes of files that RocksDB has written.
  uint64_t written_bytes() const { return written_; }

 private:
  // In Linux PRIO_PROCESS with 0 stands for the calling thread. A failure does no harm.
  static bool LowerPriorityOfThread() {
    constexpr int kNicer = 10;
    return setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + kNicer) == 0;
  }

  std::atomic<bool> failed_{false};
  std::atomic<uint64_t> written_{0};
};

struct RowDatabase::Handles {
  // The order of members matters, since the last is destroyed first: the database, then the objects
  // that it uses.
  std::unique_ptr<rocksdb::Env> env;  // over DatabaseFiles
  std::unique_ptr<rocksdb::CompactionFilter> filter;
  std::unique_ptr<OrderOfLogs> order;  // of the logs that RocksDB reads when it is opened
  std::shared_ptr<rocksdb::Cache> block_cache;
  rocksdb::ColumnFamilyOptions pending_options;
  std::shared_ptr<Listener> listener = std::make_shared<Listener>();
  // A column family of pending rows could be neither dropped nor made.
  bool pending_unusable = false;
  // Memory ended within a write. RocksDB's other writers wait without end for that writer, which is
  // gone, so no thread may call RocksDB any more, not even to close it.
  std::atomic<bool> stuck{false};
  std::unique_ptr<rocksdb::DB> db;
  rocksdb::ColumnFamilyHandle* published = nullptr;
  rocksdb::ColumnFamilyHandle* meta = nullptr;
  // The column families of pending rows, which take turns: one has the newest rows, the other the
  // rows that are set apart. Null: there is none.
  rocksdb::ColumnFamilyHandle* pending[2] = {};

  static rocksdb::Status Stuck() {
    return rocksdb::Status::Aborted(
        "memory ended within a write of RocksDB, which cannot go on in this process; end it, and "
        "open the storage in another with more memory or a smaller cache");
  }
  static rocksdb::Status Unsaved() {
    return rocksdb::Status::Aborted("RocksDB has not written what waits in its memory");
  }
  static rocksdb::Status Paused() {
    return rocksdb::Status::Aborted(
        "its disk failed meanwhile, and the storage is opened again; try again");
  }
  // Every call of RocksDB that writes, or waits for writers, goes through here as fn(db).
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
      // This status needs no memory.
      return rocksdb::Status::Aborted(rocksdb::Status::kMemoryLimit);
    }
  }
  // Makes RocksDB write again after an error, if it can. For Call.
  static rocksdb::Status Resume(rocksdb::DB* db);
  rocksdb::Status Write(const rocksdb::WriteOptions& options, rocksdb::WriteBatch* batch) {
    return Call([&](rocksdb::DB* open) { return open->Write(options, batch); });
  }

  // Frees an iterator, unless the database is stuck: freeing it may wait forever, too.
  struct FreeUnlessStuck {
    void operator()(rocksdb::Iterator* iterator) const {
      if (!handles->stuck) delete iterator;
    }
    const Handles* handles = nullptr;
  };
  using Iterator = std::unique_ptr<rocksdb::Iterator, FreeUnlessStuck>;
  // Returns an iterator over a column family. The database must not be stuck.
  Iterator Iterate(const rocksdb::ReadOptions& options, rocksdb::ColumnFamilyHandle* family) const {
    return Iterator(db->NewIterator(options, family), {this});
  }
  // Does the same for a caller that reads most of its rows.
  Iterator IterateWhole(rocksdb::ColumnFamilyHandle* family) const {
    return Iterate(WholeRead(Runs(family)), family);
  }
  // Returns the number of sorted runs that the files of a column family form.
  uint64_t Runs(rocksdb::ColumnFamilyHandle* family) const;

  ~Handles() { Close(); }
  void Close() {
    if (db == nullptr) return;
    for (auto* handle : {published, meta, pending[0], pending[1]}) {
      if (handle != nullptr) db->DestroyColumnFamilyHandle(handle);
    }
    db->Close();
    db.reset();
  }
};

}  // namespace sok
