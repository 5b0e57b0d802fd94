#include "core/disk/open_folders.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "core/base/file.h"

namespace sok {
namespace {

struct flock WholeFile() {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

// ", held by process 123", or nothing. A lock of this process would go with the descriptor.
std::string ProcessHolding(const std::string& path) {
  // For reading, which others than the owner may too.
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return "";
  struct flock lock = WholeFile();
  const bool held = fcntl(file, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
  close(file);
  return held ? ", held by process " + std::to_string(lock.l_pid) : "";
}

std::string FileOf(const std::string& path) { return path + "/" + FolderClaim::kFileName; }

}  // namespace

FolderIdentity IdentityOf(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return {0, 0};
  return {info.st_dev, info.st_ino};
}

std::string OpenFolders::Holder(const std::string& path) {
  // Nobody of this process takes a lock while the descriptors are open.
  std::lock_guard<std::mutex> guard(Mutex());
  if (Folders().count(IdentityOf(path)) != 0) return ", held by this process";
  const std::string holder = ProcessHolding(path + "/LOCK");
  return holder.empty() ? ProcessHolding(FileOf(path)) : holder;
}

std::string OpenFolders::OtherHolder(const std::string& path) {
  return ProcessHolding(path + "/LOCK");
}

std::unique_ptr<FolderClaim> FolderClaim::Take(const std::string& path) {
  const FolderIdentity folder = IdentityOf(path);
  if (!OpenFolders::Add(folder)) return nullptr;
  std::unique_ptr<FolderClaim> claim(new FolderClaim(path, folder));
  return ProcessHolding(FileOf(path)).empty() ? std::move(claim) : nullptr;
}

FolderClaim::~FolderClaim() {
  if (file_ >= 0) close(file_);
  OpenFolders::Remove(folder_);
}

bool FolderClaim::has_file() const { return access(FileOf(path_).c_str(), F_OK) == 0; }

Status FolderClaim::LockFile() {
  const std::string path = FileOf(path_);
  file_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (file_ < 0) return SystemError(errno, "open", path);
  struct flock lock = WholeFile();
  if (fcntl(file_, F_SETLK, &lock) == 0) return Status();
  if (errno != EAGAIN && errno != EACCES) return SystemError(errno, "lock", path);
  return Status(Code::kUnavailable, "another process has taken '" + path + "' just now");
}

}  // namespace sok
