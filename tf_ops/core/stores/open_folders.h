// Who has a folder open for writing.
#pragma once

#include <mutex>
#include <set>
#include <string>

namespace sok {

// The folders that this process has open for writing. To look into a LOCK file of one of them would
// set its lock free: POSIX locks go with the first descriptor that the process closes.
class OpenFolders {
 public:
  static bool Has(const std::string& path) {
    std::lock_guard<std::mutex> guard(Mutex());
    return Paths().count(path) != 0;
  }
  static void Add(const std::string& path) {
    std::lock_guard<std::mutex> guard(Mutex());
    Paths().insert(path);
  }
  static void Remove(const std::string& path) {
    std::lock_guard<std::mutex> guard(Mutex());
    Paths().erase(path);
  }

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

// ", held by process 123", for who finds a folder locked; empty if nobody holds it.
std::string LockHolder(const std::string& path);

}  // namespace sok
