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

std::string LockHolder(const std::string& path) {
  if (OpenFolders::Has(RealPath(path))) return ", held by this process";
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
