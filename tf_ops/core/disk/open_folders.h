// The folders that are open for writing, and their holders.
#pragma once

#include <sys/types.h>

#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "core/base/status.h"

namespace sok {

// Tells folders and files apart whatever names they have: links, bind mounts and renames change
// nothing about it.
using FolderIdentity = std::pair<dev_t, ino_t>;

// Returns the identity of what is at a path, or {0, 0} if there is nothing.
FolderIdentity IdentityOf(const std::string& path);

class FolderClaim;

// The folders that this process has open for writing, or is about to open. It must not look into a
// LOCK file of one of them, which would set RocksDB's lock free: POSIX locks go with the first
// descriptor that the process closes.
class OpenFolders {
 public:
  // Adds the claim's folder, before it is locked. Returns false if it is there already.
  static bool Add(FolderClaim* claim);
  static void Remove(FolderClaim* claim);

  // Returns ", held by process 123", for a message about a folder that is locked; empty if no
  // process holds it.
  static std::string Holder(const std::string& path);
  // The same for other processes alone, after a failure to open the database in there.
  static std::string OtherHolder(const std::string& path);

 private:
  friend class FolderClaim;
  friend struct LocksAfterFork;

  static std::mutex& Mutex() {
    static auto* mu = new std::mutex;
    return *mu;
  }
  static std::set<FolderClaim*>& Claims() {
    static auto* claims = new std::set<FolderClaim*>;
    return *claims;
  }
};

// The right to write to a folder, from when a database is opened there until it is closed for good.
// The database has a lock too, which goes when this process opens and closes its file once more, as
// whoever copies the folder does, and is free while the database is opened again after an error:
// what another process wrote then would be covered by what this one keeps in memory. Thread-safe.
class FolderClaim {
 public:
  // A small file in the folder, which is locked. It names the process that locked it last.
  static constexpr char kFileName[] = "sok-lock";

  // Null if this process or another one has the folder.
  static std::unique_ptr<FolderClaim> Take(const std::string& path);
  ~FolderClaim();
  // Gives the folder up. Every Check is an error from then on, for owners that still refer to this:
  // where memory ended within RocksDB, something of it refers to its files for good.
  void Release();
  FolderClaim(const FolderClaim&) = delete;
  FolderClaim& operator=(const FolderClaim&) = delete;

  // Returns whether the folder has the file, as every folder of a storage does.
  bool has_file() const;
  // Locks the folder's file, which is made if there is none. The lock is one of the open file
  // (F_OFD_SETLK): it goes when this claim or the process ends, even if other code in the process
  // opens and closes the file. Errors: kUnavailable if another process has it, kInternal for a file
  // system without locks, SystemError's.
  Status LockFile();
  // Returns success while the folder and the file that this claim has locked are at its path. A
  // file that was removed or replaced is locked anew. Errors: kNotFound for another folder or none,
  // kUnavailable if another process has the new file, SystemError's.
  Status Check();

 private:
  friend class OpenFolders;
  friend struct LocksAfterFork;

  FolderClaim(std::string path, FolderIdentity folder) : path_(std::move(path)), folder_(folder) {}
  // The part of LockFile called with mu_ held.
  Status Lock();

  const std::string path_;
  const FolderIdentity folder_;
  std::mutex mu_;  // guards the three below
  int file_ = -1;
  FolderIdentity locked_;  // the identity of the file that is locked
  bool released_ = false;
};

}  // namespace sok
