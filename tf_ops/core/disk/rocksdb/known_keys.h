// Knows which keys the database of a folder may have: fills a KeyFilter from its files, and keeps
// the filter in a file of the folder.
#pragma once

#include <rocksdb/db.h>

#include <atomic>
#include <functional>
#include <memory>
#include <shared_mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/base/status.h"
#include "core/disk/key_filter.h"

namespace sok {

// Thread-safe, but that Load, Open, Save and Renew must not run beside each other.
class KnownKeys {
 public:
  // The name of the filter's file in the folder.
  static constexpr char kFileName[] = "sok-keys";

  // `part_bytes`: of the filter, see KeyFilter.
  explicit KnownKeys(uint64_t part_bytes)
      : part_bytes_(part_bytes), filter_(std::make_unique<KeyFilter>(part_bytes)) {}
  ~KnownKeys() { Stop(); }
  KnownKeys(const KnownKeys&) = delete;

  // Begins to read the filter that was saved in a folder, on a thread, for Open.
  void Load(const std::string& folder);
  // Takes over the filter that was saved in the folder of a database, and reads the keys of the
  // files that have come since: at once where they are small, else on a thread. Until that has
  // ended Select selects all keys, and so it stays where a file cannot be read. Nothing may be in
  // the memtables of `rows`.
  void Open(const std::string& folder, rocksdb::DB* db, rocksdb::ColumnFamilyHandle* rows);
  // Makes the filter anew on a thread, without keys that have gone. look() returns an iterator over
  // all rows that there are, which is freed before Stop returns. Nothing may be added meanwhile.
  void Renew(const std::function<std::shared_ptr<rocksdb::Iterator>()>& look);
  // Returns true while the thread makes the filter anew.
  bool renewing() const;
  // Ends the thread. What Open has not read stays unknown.
  void Stop();

  // Adds keys. They must be added before the database has them. `are_new`: it has never had them.
  void Add(const RowKey* keys, size_t n, bool are_new = false);
  // Returns the positions of the keys that the database may have, in ascending order.
  std::vector<uint32_t> Select(const RowKey* keys, size_t n) const;

  // Saves the filter in the folder of the database, if there are enough keys for that to be quicker
  // than reading them.
  Status Save(const std::string& folder, rocksdb::DB* db, rocksdb::ColumnFamilyHandle* rows);
  // Does the same in another folder, which has copies of the files of the database.
  Status SaveCopy(const std::string& folder, rocksdb::DB* db,
                  rocksdb::ColumnFamilyHandle* rows) const;
  // Returns true once so many keys have come since Save or Open, or such long files, that it is
  // time for another Save: updates of rows and merges make files without new keys, and an Open
  // reads the files that it does not know.
  bool ShouldSave(rocksdb::DB* db, rocksdb::ColumnFamilyHandle* rows) const;
  // Returns true if keys have come since Save or Open, or files that an Open would read for long.
  bool HasUnsaved(rocksdb::DB* db, rocksdb::ColumnFamilyHandle* rows) const;
  // Returns true if there are far more keys in the filter than rows in the database.
  bool ShouldRenew(uint64_t rows) const;

  uint64_t size() const;
  uint64_t bytes() const;

 private:
  struct Reader;
  // Adds the keys of rows to a filter. Returns false if that was stopped, or met an error.
  bool ReadRows(rocksdb::Iterator* rows, KeyFilter* filter);
  // Ends what Renew has begun: with the new filter, if that is complete.
  void EndRenewal(bool complete);
  bool ReadFiles(const std::vector<std::unique_ptr<Reader>>& files);
  // Saves the filter as one that has the keys of the files. Returns false if it is not worth it.
  Result<bool> SaveFor(const std::string& folder,
                       const std::vector<KeyFilter::SeenFile>& seen) const;

  const uint64_t part_bytes_;
  mutable std::shared_mutex mu_;  // guards the pointers
  std::unique_ptr<KeyFilter> filter_;
  std::unique_ptr<KeyFilter> next_;  // takes the place of the filter; null: none does
  std::atomic<bool> whole_{false};   // the filter has all keys
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> saved_keys_{0};
  // The files whose keys the saved filter has. Used by the calls that do not run beside each other.
  std::vector<KeyFilter::SeenFile> seen_;
  std::thread thread_;
};

}  // namespace sok
