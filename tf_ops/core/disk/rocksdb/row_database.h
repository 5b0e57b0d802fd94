// Rows in RocksDB.
//
// Published rows are the default column family, so that any RocksDB client finds them. Pending rows
// are in a column family without a write-ahead log, which every Open drops; rows that are set apart
// are in another one. A large publication writes sorted files and has RocksDB ingest them, which is
// atomic over column families.
//
// See Database for threads and errors. After memory has ended within a call of RocksDB, every
// method returns an error until the process ends.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/base/thread_pool.h"
#include "core/base/types.h"
#include "core/disk/database.h"
#include "core/disk/rocksdb/closed_mark.h"
#include "core/disk/rocksdb/publication_order.h"

namespace sok {

class KnownKeys;
class OwnedFiles;

class RowDatabase final : public Database {
 public:
  static Result<std::unique_ptr<Database>> Open(const Options& options);
  ~RowDatabase() override;

  Status Read(const RowKey* keys, size_t n, const Found& found) const override;
  Status ReadPublished(const RowKey* keys, size_t n, const Found& found) const override;
  Result<std::unique_ptr<View>> Look(int group, Key from) const override;
  Result<std::map<std::string, std::string>> ReadMeta(const std::string& prefix) const override;

  Status WritePending(const RowBatch& batch) override;
  Status WritePublished(const RowBatch& batch, const Meta& meta, bool sync) override;
  std::unique_ptr<Publication> StartPublication() override;
  void ShowJournal(std::unique_ptr<JournalReader> journal, Meta meta) override;
  Status DropPending() override { return StartPendingAnew(); }
  bool has_pending() const override { return has_newest() || has_set_apart(); }
  Status SetPendingApart() override;
  bool has_set_apart() const override { return apart_rows_ > 0; }
  std::unique_ptr<Publication> StartPublicationOfSetApart() override;
  void DropSetApart() override;

  Status Recover() override;
  bool usable() const override;
  Status CheckNotStuck() const override;
  bool failed() const override;
  Status CheckFolder() const override;
  uint64_t writes_in_doubt() const override {
    return writes_in_doubt_.load(std::memory_order_relaxed);
  }
  void AddWriteInDoubt() override { ++writes_in_doubt_; }
  History history() const override { return {options_.opening, published_.load()}; }
  Result<bool> FailedPublicationIsThere() const override;

  Status Checkpoint(const std::string& path) const override;
  Status DropLog() override;
  Status Compact() override;
  DiskUse disk_use() const override;
  const std::string& path() const override { return path_; }

 private:
  struct Handles;
  class RowPublication;
  RowDatabase(const Options& options, std::shared_ptr<OwnedFiles> files,
              std::unique_ptr<Handles> handles);
  // Opens the database and its column families. `noted`: its logs are those of its note.
  static Result<std::unique_ptr<Handles>> OpenHandles(const Options& options,
                                                      const std::shared_ptr<OwnedFiles>& files,
                                                      bool create, bool noted);
  // Takes over how many publications there are. Errors: kDataLoss if some are missing.
  Status ReadOrder();
  // Reads the named values, compares them with the mark of the last closing, and has options.check
  // look at them. Writes nothing.
  static Status CheckMeta(const Options& options, const std::optional<ClosedMark>& mark,
                          bool noted);
  Status ReadHistory();
  // Writes pending rows to files: they have no log, and would be lost with the handles.
  Status SavePending();
  // Drops all pending rows. Throws nothing, even if memory ends.
  Status StartPendingAnew();
  Status MakePendingAnew();
  // Drops and makes the column family of pending rows with that number.
  Status DropFamily(int number);
  Status MakeFamily(int number);
  bool has_newest() const { return pending_rows_.load(std::memory_order_relaxed) > 0; }
  class PendingRows;
  class NewerRows;
  class RowRef;
  // Do the work of Read, for keys that may have a row, and of ReadPublished.
  Status ReadKnown(const RowKey* keys, size_t n, const Found& found) const;
  Status ReadNewest(const RowKey* keys, size_t n, const Found& found) const;
  Status ReadFiles(const RowKey* keys, size_t n, const Found& found) const;
  // Reads pending rows. Returns the positions of keys that have neither a row nor a tombstone
  // there.
  Result<std::vector<size_t>> ReadPending(int family, const RowKey* keys, size_t n,
                                          const Found& found) const;
  Result<std::vector<size_t>> ReadJournal(const RowKey* keys, size_t n, const Found& found) const;
  // Write rows, ascending by key and of equal keys the newest last, as pending: through a memtable,
  // or as a file. After an error some of them may be written.
  using SortedRows = std::vector<std::pair<std::string_view, std::string_view>>;
  Status WritePendingRows(const SortedRows& rows, size_t bytes);
  Status WritePendingFile(const SortedRows& rows);
  // Adds the keys of rows that the database is about to have.
  void AddKeys(const RowBatch& batch);
  // Saves the key filter after a publication, if many keys have come.
  void SaveKeysIfMany();
  // Makes the key filter anew, if many of its keys have gone. No other call may run meanwhile.
  void RenewKeysIfStale();
  // Saves the key filter in the folder. An error only makes a later opening slower.
  void SaveKeys() const;
  // Returns the rows that hide the published ones, or null if there are none.
  std::unique_ptr<NewerRows> IterateNewer() const;

  const Options options_;
  const std::string path_;
  mutable ThreadPool readers_;
  // They hold the folder's lock, even while the handles are made anew. Null: read-only.
  const std::shared_ptr<OwnedFiles> files_;
  std::unique_ptr<Handles> handles_;
  // The publications so far. One publication runs at a time.
  PublicationOrder order_;
  // The keys of published and pending rows. Null: read-only.
  std::unique_ptr<KnownKeys> keys_;
  std::atomic<uint64_t> pending_rows_{0};   // the newest: those that are not set apart
  std::atomic<uint64_t> pending_files_{0};  // the number that the next file of pending rows gets
  int newest_ = 0;                          // the number of their column family
  uint64_t apart_rows_ = 0;
  std::atomic<uint64_t> writes_in_doubt_{0};
  // Lets one write at a time have the next number, so that the last one is stored last.
  std::mutex history_mu_;
  uint64_t attempted_ = 0;              // the last number; writes that failed have one too
  std::atomic<uint64_t> published_{0};  // the number of the last write that succeeded
  History opened_in_;                   // the state that it was opened in
  // The mark of the publication that is under way, or of the last one that failed; empty if it has
  // no mark.
  std::string failed_publication_;
  mutable std::atomic<uint64_t> searched_{0}, filtered_{0}, found_{0};
  std::atomic<uint64_t> published_bytes_{0};
  // Bytes of files that publications, and handles that are closed by now, have written.
  std::atomic<uint64_t> written_bytes_{0};
  std::mutex compacting_;  // held by Compact, during which the database must stay open
  std::unique_ptr<JournalReader> journal_;  // readers see this journal; null: there is none
  Meta journal_meta_;
};

// Writes the rows that it gets, with the pending rows between them, to sorted files.
class RowDatabase::RowPublication final : public Database::Publication {
 public:
  // `of_set_apart`: publish only pending rows that are set apart, while other calls run.
  RowPublication(RowDatabase* database, bool of_set_apart);
  ~RowPublication() override;
  Status Add(const RowKey& key, const RowHeader& header, std::string_view values,
             bool is_new) override;
  Status AddValue(const RowKey& key, std::string_view value) override;
  Status Finish(Meta meta) override;

 private:
  struct Writing;
  Status Put(std::string_view key, std::string_view value, bool is_new = false);
  // Adds keys to the key filter, and empties the list.
  void AddKeys(std::vector<RowKey>* keys);
  // Writes the pending rows before `key` (null: all), and skips the pending row of the key itself.
  Status PutPendingBefore(const RowKey* key);

  RowDatabase& database_;
  const bool of_set_apart_;
  std::unique_ptr<Writing> writing_;
  Status error_;
};

}  // namespace sok
