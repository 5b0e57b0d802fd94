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

// Thread-safe, except that Load, Open, Save and Renew must run one at a time.
class KnownKeys {
 public:
  // The name of the filter's file in the folder.
  static constexpr char kFileName[] = "sok-keys";

  // `part_bytes` is an argument of the KeyFilter.
  explicit KnownKeys(uint64_t part_bytes)
      : part_bytes_(part_bytes), filter_(std::make_unique<KeyFilter>(part_bytes)) {}
  ~KnownKeys() { Stop(); }
  KnownKeys(const KnownKeys&) = delete;

  // Begins to read the filter that was saved in a folder, on a thread, for Open.
  void Load(const std::string& folder);
  // Takes over the filter that was saved in the folder of a database, and reads the keys of newer
  // files: small ones at once, the others on a thread. Until the thread has ended Select selects
  // all keys, and it goes on doing so if a file cannot be read. The memtables of `rows` must be
  // empty.
  void Open(const std::string& folder, rocksdb::DB* db, rocksdb::ColumnFamilyHandle* rows);
  // Begins to make the filter anew on a thread, without keys that have gone. look() returns an
  // iterator over all rows, which is freed before Stop returns. No keys may be added before this
  // returns.
  void Renew(const std::function<std::shared_ptr<rocksdb::Iterator>()>& look);
  // Returns true while the thread makes the filter anew.
  bool renewing() const;
  // Ends the thread. Files that Open has not read stay unread, so Select selects all keys.
  void Stop();

  // Adds keys; this must happen before the database gets them. `are_new`: it has never had them.
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
  // Adds the keys of rows to a filter. Returns false if it was stopped or an error occurred.
  bool ReadRows(rocksdb::Iterator* rows, KeyFilter* filter);
  // Ends what Renew has begun, and takes the new filter if it is complete.
  void EndRenewal(bool complete);
  bool ReadFiles(const std::vector<std::unique_ptr<Reader>>& files);
  // Saves the filter as the filter of these files. Returns false if that is not worthwhile.
  Result<bool> SaveFor(const std::string& folder,
                       const std::vector<KeyFilter::SeenFile>& seen) const;

  const uint64_t part_bytes_;
  mutable std::shared_mutex mu_;  // guards the pointers
  std::unique_ptr<KeyFilter> filter_;
  std::unique_ptr<KeyFilter> next_;  // will replace the filter; null: there is none
  std::atomic<bool> whole_{false};   // the filter has all keys
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> saved_keys_{0};
  // The files whose keys are in the saved filter. Calls that use it must run one at a time.
  std::vector<KeyFilter::SeenFile> seen_;
  std::thread thread_;
};

}  // namespace sok
