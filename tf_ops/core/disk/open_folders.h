// Knows who has a folder open for writing.
#pragma once

#include <sys/types.h>

#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "core/base/status.h"

namespace sok {

// Tells folders apart whatever names they have: links, bind mounts and renames change nothing about
// it.
using FolderIdentity = std::pair<dev_t, ino_t>;

// Returns the identity of a folder, or {0, 0} if there is nothing.
FolderIdentity IdentityOf(const std::string& path);

// The folders that this process has open for writing, or is about to open. It must not look into a
// LOCK file of one of them, which would set the lock free: POSIX locks go with the first descriptor
// that the process closes. Two databases in one folder would each believe to hold it.
class OpenFolders {
 public:
  // Adds a folder, before it is locked. Returns false if it is there already.
  static bool Add(const FolderIdentity& folder) {
    std::lock_guard<std::mutex> guard(Mutex());
    return Folders().insert(folder).second;
  }
  static void Remove(const FolderIdentity& folder) {
    std::lock_guard<std::mutex> guard(Mutex());
    Folders().erase(folder);
  }

  // Returns ", held by process 123", for a message about a folder that is locked; empty if nobody
  // holds it.
  static std::string Holder(const std::string& path);
  // The same of another process alone, for who has failed to open the database in there.
  static std::string OtherHolder(const std::string& path);

 private:
  static std::mutex& Mutex() {
    static std::mutex mu;
    return mu;
  }
  static std::set<FolderIdentity>& Folders() {
    static auto* folders = new std::set<FolderIdentity>;
    return *folders;
  }
};

// The right to write to a folder, from when a database is opened there until it is closed for good.
// The database has a lock too, which is free while it is opened again after an error: what another
// process wrote then would be covered by what this one keeps in memory.
class FolderClaim {
 public:
  // An empty file in the folder, which is locked.
  static constexpr char kFileName[] = "sok-lock";

  // Null if this process or another one has the folder.
  static std::unique_ptr<FolderClaim> Take(const std::string& path);
  ~FolderClaim();
  FolderClaim(const FolderClaim&) = delete;
  FolderClaim& operator=(const FolderClaim&) = delete;

  // Whether the folder has the file, as every folder of a storage does.
  bool has_file() const;
  // Locks the folder's file, which is made if there is none.
  // Errors: kUnavailable if another process has it, SystemError's.
  Status LockFile();

 private:
  FolderClaim(std::string path, FolderIdentity folder) : path_(std::move(path)), folder_(folder) {}

  const std::string path_;
  const FolderIdentity folder_;
  int file_ = -1;
};

}  // namespace sok
