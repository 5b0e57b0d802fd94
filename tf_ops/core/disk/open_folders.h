// Who has a folder open for writing.
#pragma once

#include <sys/types.h>

#include <mutex>
#include <set>
#include <string>
#include <utility>

namespace sok {

// What a folder is, whatever names it has: links, bind mounts and renames change nothing about it.
using FolderIdentity = std::pair<dev_t, ino_t>;

// {0, 0} if there is nothing.
FolderIdentity IdentityOf(const std::string& path);

// The folders that this process has open for writing, or is about to. To look into a LOCK file of
// one of them would set its lock free: POSIX locks go with the first descriptor that the process
// closes. Two databases in one folder would each believe to hold it.
class OpenFolders {
 public:
  // False if it is there already. Called before the folder is locked.
  static bool Add(const FolderIdentity& folder) {
    std::lock_guard<std::mutex> guard(Mutex());
    return Folders().insert(folder).second;
  }
  static void Remove(const FolderIdentity& folder) {
    std::lock_guard<std::mutex> guard(Mutex());
    Folders().erase(folder);
  }

  // ", held by process 123", for who finds a folder locked; empty if nobody holds it.
  static std::string Holder(const std::string& path);

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

}  // namespace sok
