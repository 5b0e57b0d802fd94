#include "core/stores/open_folders.h"

#include <fcntl.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>

namespace sok {

std::string RealPath(const std::string& path) {
  char real[PATH_MAX];
  return realpath(path.c_str(), real) != nullptr ? real : path;
}

std::string OpenFolders::Holder(const std::string& path) {
  // Nobody of this process takes the lock while the descriptor below is open.
  std::lock_guard<std::mutex> guard(Mutex());
  if (Paths().count(RealPath(path)) != 0) return ", held by this process";
  const int file = open((path + "/LOCK").c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return "";
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  const bool held = fcntl(file, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
  close(file);
  return held ? ", held by process " + std::to_string(lock.l_pid) : "";
}

}  // namespace sok
