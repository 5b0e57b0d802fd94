// Rows in RocksDB: what is published, what is pending, and how the one becomes the other.
//
// Published rows survive the process. Pending rows are newer versions that wait: they are read
// before the published ones, and a crash forgets them. Publish makes all of them published at once,
// so that whoever opens the folder later finds the old state or the new one, and never half of it.
// Beside the rows lie named values ("meta"), which change in the same atomic step.
//
// In RocksDB's terms: published rows are the default column family, so that any RocksDB client
// finds them; pending rows are a column family without a write-ahead log, which every Open drops;
// a large Publish writes sorted files and has them ingested, which is atomic over column families.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/expiry.h"
#include "core/status.h"
#include "core/stores/journal_reader.h"
#include "core/stores/open_folders.h"
#include "core/stores/row_codec.h"
#include "core/types.h"

namespace sok {

// The error for a row whose value is none.
Status DamagedRow(int group, Key key, const std::string& path);

// Thread-safe, except that nothing else may run beside Publish, and no reader beside a writer of
// the same key.
class RowDatabase {
 public:
  struct Options {
    std::string path;
    bool read_only = false;
    // Whose expired rows compaction removes. Outlives the database.
    const Expiry* expiry = nullptr;
  };
  struct DiskUse {
    uint64_t file_bytes = 0;    // of published rows
    uint64_t memory_bytes = 0;  // memtables, block cache
  };
  using Meta = NamedValues;

  // Makes the folder if there is none, but for read_only.
  // Errors: kUnavailable if another process or this one has the folder open, naming the lock;
  // kInvalidArgument for a folder with other things in it; kNotFound, kPermissionDenied, kDataLoss.
  static Result<std::unique_ptr<RowDatabase>> Open(const Options& options);
  ~RowDatabase();

  // found(i, value) for each of the keys that has a row, the newest one; the value lives as long as
  // the call. Keys are ascending and distinct. Expired rows are found like others.
  using Found = std::function<void(size_t i, std::string_view value)>;
  Status Read(const RowKey* keys, size_t n, const Found& found) const;

  // Errors, here and below: those of RocksDB; where memory ends within it, the database is not
  // usable any more, and Recover says so.
  Status WritePending(const RowBatch& batch);
  // One atomic step that survives the process; with sync, the machine too. There must be nothing
  // pending of the same keys.
  Status WritePublished(const RowBatch& batch, const Meta& meta, bool sync);
  // Publishes what is pending, and rows that are newer, in one atomic step.
  class Publication;
  std::unique_ptr<Publication> StartPublication();
  Status Publish(const Meta& meta);
  // Publishes what a journal holds, with `meta` in place of its own. Nothing may be pending.
  Status PublishJournal(const JournalReader& journal, const Meta& meta);
  // Has readers see what a journal holds, with `meta` in place of its own: for read_only.
  void ShowJournal(std::unique_ptr<JournalReader> journal, Meta meta);
  // Calls found(i, value) for those of the keys that are published, whatever is newer.
  Status ReadPublished(const RowKey* keys, size_t n, const Found& found) const;
  // Makes the database writable again after an error, of a full disk, say. Without one it does
  // nothing. Alone, like Publish. On an error another call tries again; until one succeeds the
  // database may be unusable.
  Status Recover();
  bool usable() const;
  // Says so where memory ended within RocksDB: until the process ends nothing makes the database
  // usable again.
  Status CheckNotStuck() const;
  // Whether it should be recovered.
  bool failed() const;
  // kNotFound if the folder that was opened is not at its path any more.
  Status CheckFolder() const;
  // Forgets what is pending.
  Status DropPending() { return StartPendingAnew(); }
  bool has_pending() const { return pending_rows_.load(std::memory_order_relaxed) > 0; }
  // How many writes returned an error and may be there all the same: those to what is published, if
  // they fail in their last system calls, and those that somebody says were made in part.
  uint64_t writes_in_doubt() const { return writes_in_doubt_.load(std::memory_order_relaxed); }
  void AddWriteInDoubt() { ++writes_in_doubt_; }
  // Whether the last publication that failed is known to be there all the same, by its mark.
  Result<bool> FailedPublicationIsThere() const;

  // Calls fn for the rows of a group, the newest ones, ascending by key; group -1: of all groups.
  using Visit = std::function<Status(int group, Key key, std::string_view value)>;
  Status ForEach(int group, const Visit& fn) const;

  // The named values that begin with a prefix.
  Result<std::map<std::string, std::string>> ReadMeta(const std::string& prefix) const;

  // RocksDB's own checkpoint: hard links where the file system has them. Errors: kInvalidArgument
  // if `path` exists.
  Status Checkpoint(const std::string& path) const;
  // Rewrites all files, which drops expired and superseded rows. Beside Recover it ends early.
  Status Compact();
  // Makes what was written so far survive the machine.
  Status Sync();
  DiskUse disk_use() const;
  const std::string& path() const { return path_; }

 private:
  struct Handles;
  RowDatabase(const Options& options, std::unique_ptr<Handles> handles);
  // Opens all that is there.
  static Result<std::unique_ptr<Handles>> OpenHandles(const Options& options, bool create);
  // Throws nothing, even where memory ends.
  Status StartPendingAnew();
  Status MakePendingAnew();
  class NewerRows;
  // Rows that hide the published ones; null: there are none.
  std::unique_ptr<NewerRows> IterateNewer() const;

  const Options options_;
  const std::string path_;
  std::unique_ptr<Handles> handles_;
  std::atomic<uint64_t> pending_rows_{0};
  std::atomic<uint64_t> writes_in_doubt_{0};
  // The mark of the publication that is under way or was the last to fail; empty: it has none.
  std::string failed_publication_;
  const FolderIdentity folder_;
  std::mutex compacting_;  // held by Compact, beside which the database must not be closed
  std::unique_ptr<JournalReader> journal_;  // that readers see; null: none
  Meta journal_meta_;
};

// Nothing changes before Finish; without it, nothing does.
class RowDatabase::Publication {
 public:
  explicit Publication(RowDatabase* database);
  ~Publication();
  // Keys ascend. After an error every later call returns it.
  Status Add(const RowKey& key, const RowHeader& header, const float* floats, size_t n);
  // The same of a row as the database holds it; an empty value removes the row.
  Status AddValue(const RowKey& key, std::string_view value);
  Status Finish(Meta meta);

 private:
  struct Writing;
  Status Put(std::string_view key, std::string_view value);
  // Takes over the pending rows before `key`, and leaves out that of the key itself.
  Status PutPendingBefore(const RowKey* key);

  RowDatabase& database_;
  std::unique_ptr<Writing> writing_;
  Status error_;
};

}  // namespace sok
