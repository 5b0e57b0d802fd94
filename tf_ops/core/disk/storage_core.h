// The parts that the groups of one storage share: its database, its memory and its files.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <utility>

#include "core/base/expiry.h"
#include "core/base/shared_mutex.h"
#include "core/base/status.h"
#include "core/disk/cache_memory.h"
#include "core/disk/database.h"
#include "core/disk/journal.h"
#include "core/disk/spill_file.h"
#include "core/disk/written_note.h"

namespace sok {

struct StorageCore {
  StorageCore(uint32_t ttl, std::function<uint32_t()> now, uint64_t cache_bytes)
      : expiry(std::make_shared<Expiry>(ttl, std::move(now))), memory(cache_bytes) {
    memory.Charge(0, WorkBytes(cache_bytes));
  }
  // Returns the part of the cache's memory that is kept for what a flush, and merges of files, take
  // while they run: windows of the runs that they merge, and 8 bytes for each row of a file that is
  // being written.
  static uint64_t WorkBytes(uint64_t cache_bytes) {
    return std::min(cache_bytes / 16, uint64_t{256} << 20);
  }

  // Returns kFailedPrecondition in a process that was forked from the one that has it open. There
  // are neither threads nor locks of other threads' to wait for, so it comes first.
  Status CheckProcess() const;
  // kFailedPrecondition once the storage is closed, and what keeps the database from being used.
  // The gate must be held.
  Status CheckOpen() const;
  // The same, and kPermissionDenied for a storage that is read-only, kNotFound if its folder is
  // gone.
  Status CheckWritable() const;

  // The gate, shared, with the storage open, and writable if that is asked for. What an error of
  // the disk has left is mended before if that is possible by now. For a call that writes, a long
  // journal is published: beside it, or before it if the journal is twice as long. The calling
  // thread must not hold the gate.
  using Entrance = std::shared_lock<SharedMutex>;
  Result<Entrance> Enter(bool to_write);

  // Locks the gate exclusively after the running flush ends. Nothing else locks it exclusively.
  using Alone = std::unique_lock<SharedMutex>;
  Alone TakeAlone();
  // Publishes beside other calls: lets `gate` go, calls write(), takes it again, and returns what
  // write() did. Before anybody else has the gate alone, end(its status) is called once, with the
  // gate held alone, here or in TakeAlone. One call at a time. Where it throws, it has called
  // neither, and the gate is held.
  Status Publish(const std::function<Status()>& write, std::function<void(const Status&)> end,
                 Alone* gate);

  // Called with the gate held exclusively, when a flush beside other calls has failed: it is not
  // asked for again for a while.
  void PauseMending();

  // Called with the gate held exclusively: makes the database usable again after an error, and
  // finds out what was left in doubt. Without an error it does nothing.
  Status Recover();

  // Makes a call that puts rows into the database, called with the gate held exclusively. It may
  // meet the error of what RocksDB did in the background, on a disk that works again by now: it is
  // made once more if the database can be mended.
  Status WriteAtRest(const std::function<Status()>& call);

  // Counts the memory that the database takes for the keys of its rows as part of the cache's.
  // Thread-safe. Called with the gate held.
  void ChargeDatabase();

  const std::shared_ptr<Expiry> expiry;
  CacheMemory memory;
  // Whatever reads or writes the database holds it shared, for a batch; who needs every group at
  // rest holds it alone: a flush, an export, the end.
  SharedMutex gate;
  // Null once the storage is closed. Changes under the gate, held alone.
  std::unique_ptr<Database> database;
  std::shared_ptr<WrittenNote> written;
  std::unique_ptr<SpillFile> spill;  // null where nothing can be spilled
  std::unique_ptr<Journal> journal;  // of the calls that must survive; null: none has to
  // The storage's own flush, called with the gate held exclusively. Null once the storage is gone.
  std::function<Status()> flush;
  // Has the storage flush beside other calls, unless it does so already. Called with the gate
  // shared. Null once the storage is gone.
  std::function<void()> ask_flush;
  // Finds out whether a publication has happened that failed in its last system calls, and makes
  // memory follow. No call may use the database before. Null: none is in doubt.
  std::function<Status()> resolve;
  std::string path;
  uint64_t id = 0;  // of the storage; 0: it has none
  bool read_only = false;
  // Files of the journal that a read-only storage reads along with the database.
  WrittenNote::Files shown_journal;
  // True if rows were counted with a TTL that differs from the one of `expiry`, and must not be
  // counted anew in the folder, which is read-only or gets its TTL later.
  bool other_ttl = false;
  // Values to write into the folder once it has taken in rows; empty: the folder has them already.
  NamedValues unwritten;

 private:
  struct Publishing;
  std::shared_ptr<Publishing> publishing() const;
  // Called with the gate held exclusively. Returns false if it is not written yet.
  bool EndPublishing();
  // Called with the gate held exclusively.
  Status Mend(bool to_write);
  // Returns true if there is something to mend and it is worth trying.
  bool ShouldMend(bool to_write) const;

  std::atomic<uint64_t> charged_{0};  // bytes of the database that are counted
  // An attempt that has failed is repeated after a while, if the storage can be used without.
  std::chrono::steady_clock::time_point next_mend_;
  mutable std::mutex publishing_mu_;
  std::shared_ptr<Publishing> publishing_;  // null: nothing is being published beside other calls
};

}  // namespace sok
