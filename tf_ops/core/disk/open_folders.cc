#include "core/disk/open_folders.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace sok {

FolderIdentity IdentityOf(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return {0, 0};
  return {info.st_dev, info.st_ino};
}

std::string OpenFolders::Holder(const std::string& path) {
  // Nobody of this process takes the lock while the descriptor below is open.
  std::lock_guard<std::mutex> guard(Mutex());
  if (Folders().count(IdentityOf(path)) != 0) return ", held by this process";
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
