// Who has a folder open for writing.
#pragma once

#include <mutex>
#include <set>
#include <string>

namespace sok {

// The folders that this process has open for writing, or is about to. To look into a LOCK file of
// one of them would set its lock free: POSIX locks go with the first descriptor that the process
// closes.
class OpenFolders {
 public:
  // False if it is there already. Called before the folder is locked.
  static bool Add(const std::string& path) {
    std::lock_guard<std::mutex> guard(Mutex());
    return Paths().insert(path).second;
  }
  static void Remove(const std::string& path) {
    std::lock_guard<std::mutex> guard(Mutex());
    Paths().erase(path);
  }

  // ", held by process 123", for who finds a folder locked; empty if nobody holds it.
  static std::string Holder(const std::string& path);

 private:
  static std::mutex& Mutex() {
    static std::mutex mu;
    return mu;
  }
  static std::set<std::string>& Paths() {
    static auto* paths = new std::set<std::string>;
    return *paths;
  }
};

// The path without links, or as it is if there is nothing.
std::string RealPath(const std::string& path);

}  // namespace sok
