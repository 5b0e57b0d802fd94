// The folders that are open for writing, and their holders.
#pragma once

#include <sys/types.h>

#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "core/base/descriptor.h"
#include "core/base/status.h"

namespace sok {

// Identifies a folder or file by whichever name it is reached: links, bind mounts and renames do
// not change it.
using FolderIdentity = std::pair<dev_t, ino_t>;

// Returns the identity of what is at a path, or {0, 0} if there is nothing.
FolderIdentity IdentityOf(const std::string& path);

class FolderClaim;

// The folders that this process has open for writing, or is about to open. The process must not
// open a LOCK file in one of them: closing it would release RocksDB's lock, since a POSIX lock ends
// with the first descriptor of the file that the process closes.
class OpenFolders {
 public:
  // Adds the claim's folder, before it is locked. Returns false if it is there already.
  static bool Add(FolderClaim* claim);
  static void Remove(FolderClaim* claim);

  // Returns ", held by process 123", for a message about a folder that is locked; empty if no
  // process holds it.
  static std::string Holder(const std::string& path);
  // Does the same for other processes alone, after the database in the folder could not be opened.
  static std::string OtherHolder(const std::string& path);

 private:
  friend class FolderClaim;

  static std::set<FolderClaim*>& Claims() {
    static auto* claims = new std::set<FolderClaim*>;
    return *claims;
  }
};

// The right to write to a folder, from the opening of its database until the database is closed for
// good. The database has a lock of its own, but that is not enough: it ends when this process opens
// and closes its file, as a copy of the folder does, and it is free while the database is opened
// again after an error. Another process could write then, and this one would overwrite it from
// memory. Thread-safe.
class FolderClaim {
 public:
  // A small file in the folder, which is locked. It names the process that locked it last.
  static constexpr char kFileName[] = "sok-lock";

  // Claims a folder. Returns null if this process or another one has it.
  static std::unique_ptr<FolderClaim> Take(const std::string& path);
  ~FolderClaim();
  // Gives the folder up. Every later Check is an error, for owners that still refer to this object:
  // after memory has ended within RocksDB, parts of RocksDB refer to its files for good.
  void Release();
  FolderClaim(const FolderClaim&) = delete;
  FolderClaim& operator=(const FolderClaim&) = delete;

  // Returns true if the folder has the file, as every folder of a storage has.
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

  FolderClaim(std::string path, FolderIdentity folder) : path_(std::move(path)), folder_(folder) {}
  // The part of LockFile called with mu_ held.
  Status Lock();

  const std::string path_;
  const FolderIdentity folder_;
  std::mutex mu_;          // guards the three below
  Descriptor file_;        // locked while it is open
  FolderIdentity locked_;  // the identity of the file that is locked
  bool released_ = false;
};

}  // namespace sok
