// The interface of the database below a disk store: published rows, pending rows, and how pending
// rows become published.
//
// Published rows survive the process. Pending rows are newer versions that wait: they are read
// before the published ones, and a crash forgets them. Publish makes all of them published at once,
// so that a process that opens the folder later finds the old state or the new one, and never half
// of it. Beside the rows lie named values ("meta"), which change in the same atomic step.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "core/base/expiry.h"
#include "core/base/status.h"
#include "core/base/types.h"
#include "core/disk/history.h"
#include "core/disk/journal_reader.h"
#include "core/disk/row_codec.h"
#include "core/disk/written_note.h"

namespace sok {

// Returns the error for a value in the database that is not a row.
Status DamagedRow(int group, Key key, const std::string& path);

// A database of rows. Thread-safe, with two exceptions: no other call may run while pending rows
// are published, and who reads a key while it is written gets either version.
class Database {
 public:
  struct Options {
    std::string path;
    bool read_only = false;
    // Says which rows may be removed while files are rewritten; null: none.
    std::shared_ptr<const Expiry> expiry;
    // The memory that the caller has for rows and for what the database knows of them.
    uint64_t memory_bytes = uint64_t{256} << 20;
    // The random number of this opening. See History.
    uint64_t opening = 0;
    // Checks the named values of a database that is about to be opened for writing, before anything
    // is written; null: nothing is checked. It is not called for a database without a journal that
    // was closed with the same `format`, and that nobody has written to since.
    std::function<Status(const std::map<std::string, std::string>& meta)> check = nullptr;
    int format = 0;
    // The folder's note, for others who write files there; null: the database makes its own. The
    // opening loads it.
    std::shared_ptr<WrittenNote> written = nullptr;
  };
  // Opens a database, and makes its folder if there is none, but for read_only. Errors:
  // kUnavailable if another process or this one has the folder open, naming the lock;
  // kInvalidArgument for a folder with other things in it; kNotFound, kPermissionDenied, kDataLoss.
  using Opener = std::function<Result<std::unique_ptr<Database>>(const Options&)>;
  struct DiskUse {
    uint64_t file_bytes = 0;       // files of published rows
    uint64_t memory_bytes = 0;     // all memory that the database takes
    uint64_t key_bytes = 0;        // the part of it that grows with the rows
    uint64_t filter_bytes = 0;     // the part of that which is one filter over all keys
    uint64_t runs = 0;             // sorted runs of files, which a search may have to look into
    uint64_t searched = 0;         // keys that were searched for in files or pending rows
    uint64_t filtered = 0;         // keys that were known to have no row there
    uint64_t found = 0;            // keys that had a row there
    uint64_t published_bytes = 0;  // bytes of rows that were published since the opening
    uint64_t written_bytes = 0;    // bytes of files that these and their merges wrote
  };
  using Meta = NamedValues;
  // Pending rows of at least so many bytes are written as a file. A row then takes a fraction of
  // the time that a memtable takes for it. The file itself takes some milliseconds, or a quarter of
  // a second on a busy disk, since RocksDB syncs it.
  static constexpr size_t kPendingFileBytes = size_t{4} << 20;

  Database() = default;
  virtual ~Database() = default;
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  // Calls found(i, value) for each of the keys that has a row, with the newest version; the value
  // lives as long as the call. Keys are ascending and distinct. Expired rows are found like others.
  using Found = std::function<void(size_t i, std::string_view value)>;
  virtual Status Read(const RowKey* keys, size_t n, const Found& found) const = 0;
  // Calls found(i, value) for the keys that are published, with the published version, even if a
  // newer one is pending.
  virtual Status ReadPublished(const RowKey* keys, size_t n, const Found& found) const = 0;
  // A view of all rows of a group at one moment. It does not change while it lives, even if expired
  // rows are removed meanwhile. Group -1 stands for all groups. Nothing may be written while it
  // lives.
  using Visit = std::function<Status(int group, Key key, std::string_view value)>;
  class View {
   public:
    virtual ~View() = default;
    // Calls fn for the newest version of each row, ascending by key.
    virtual Status ForEach(const Visit& fn) = 0;
  };
  // Returns a view of the keys of a group from `from` on.
  virtual Result<std::unique_ptr<View>> Look(int group, Key from = 0) const = 0;
  // Looks once and calls fn for each row of the group. Here fn may write to the database.
  Status ForEach(int group, const Visit& fn) const;
  // Returns the named values that begin with a prefix.
  virtual Result<std::map<std::string, std::string>> ReadMeta(const std::string& prefix) const = 0;

  // Writes rows as pending. Errors, here and below: those of the database. If memory ends within
  // the database, it may not be usable any more, and Recover says so.
  virtual Status WritePending(const RowBatch& batch) = 0;
  // Writes rows and named values in one atomic step that survives the process; with sync, the
  // machine too. There must be nothing pending of the same keys.
  virtual Status WritePublished(const RowBatch& batch, const Meta& meta, bool sync) = 0;
  // A publication publishes pending rows, and rows that are newer, in one atomic step.
  class Publication;
  virtual std::unique_ptr<Publication> StartPublication() = 0;
  // Sets the pending rows apart, for a publication while other calls run. Pending rows that come
  // later are newer, and stay pending when the publication is finished. Nothing may be set apart
  // already.
  virtual Status SetPendingApart() = 0;
  virtual bool has_set_apart() const = 0;
  // Starts a publication of the rows that are set apart, and of newer rows that it is given.
  // Meanwhile others may read, and write pending rows.
  virtual std::unique_ptr<Publication> StartPublicationOfSetApart() = 0;
  // Forgets the rows that were set apart, after their publication. No other call may run meanwhile.
  // Rows that cannot be dropped now are hidden, and the next Recover drops them.
  virtual void DropSetApart() = 0;
  // Publishes the pending rows, with `meta`. If there are neither, it does nothing.
  Status Publish(const Meta& meta);
  // Publishes the rows of a journal, with `meta` instead of the journal's named values. Nothing may
  // be pending.
  Status PublishJournal(const JournalReader& journal, const Meta& meta);
  // Shows readers the rows of a journal, with `meta` instead of the journal's named values. For
  // read_only databases.
  virtual void ShowJournal(std::unique_ptr<JournalReader> journal, Meta meta) = 0;
  // Forgets the pending rows. Nobody sees them any more, even after an error: the next Recover
  // drops what the error has left on the disk.
  virtual Status DropPending() = 0;
  // Returns whether rows are pending, set apart or not.
  virtual bool has_pending() const = 0;

  // Makes the database writable again after an error, such as a full disk. Without an error it does
  // nothing. No other call may run meanwhile. If it fails, it may be called again; until a call
  // succeeds the database may be unusable.
  virtual Status Recover() = 0;
  virtual bool usable() const = 0;
  // Returns an error if memory has ended within the database, which nothing makes usable again in
  // this process.
  virtual Status CheckNotStuck() const = 0;
  // Returns true if an error has occurred, so that Recover should be called.
  virtual bool failed() const = 0;
  // Returns kNotFound if the folder that was opened is not at its path any more.
  virtual Status CheckFolder() const = 0;
  // Returns how many writes returned an error and may have happened all the same: publications that
  // fail in their last system calls, and writes that AddWriteInDoubt counts.
  virtual uint64_t writes_in_doubt() const = 0;
  virtual void AddWriteInDoubt() = 0;
  // Returns true if the last publication that failed has happened all the same, which its mark
  // shows.
  virtual Result<bool> FailedPublicationIsThere() const = 0;

  // Returns the last state that this opening has published, which has its number even if that is
  // none. Every publication and every WritePublished stores its state as a named value too.
  virtual History history() const = 0;

  // Makes a copy that can be opened, of hard links where the file system has them. Errors:
  // kInvalidArgument if `path` exists.
  virtual Status Checkpoint(const std::string& path) const = 0;
  // Drops the log, which has old versions of rows and named values. Nothing may be pending, and no
  // other call may run meanwhile.
  virtual Status DropLog() = 0;
  // Rewrites all files, which drops expired and superseded rows. If Recover runs meanwhile, it ends
  // early.
  virtual Status Compact() = 0;
  virtual DiskUse disk_use() const = 0;
  virtual const std::string& path() const = 0;
};

// Rows that are about to be published. Nothing changes before Finish, or if Finish is never called.
class Database::Publication {
 public:
  Publication() = default;
  virtual ~Publication() = default;
  Publication(const Publication&) = delete;
  Publication& operator=(const Publication&) = delete;
  // Adds a row. Keys must ascend. After an error every later call returns the same error. `is_new`:
  // the caller knows that the database has never had the row, which saves a search.
  virtual Status Add(const RowKey& key, const RowHeader& header, std::string_view values,
                     bool is_new = false) = 0;
  // Adds a row as the database holds it; an empty value removes the row.
  virtual Status AddValue(const RowKey& key, std::string_view value) = 0;
  virtual Status Finish(Meta meta) = 0;
};

}  // namespace sok
