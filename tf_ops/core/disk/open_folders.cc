#include "core/disk/open_folders.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "core/base/file.h"

namespace sok {
namespace {

struct flock WholeFile(short type) {  // NOLINT(runtime/int): fcntl's own type
  struct flock lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  return lock;
}

std::string FileOf(const std::string& path) { return path + "/" + FolderClaim::kFileName; }

// Locks an open file. Returns errno, EAGAIN where another process holds the lock, or 0.
int TryLock(int file) {
  struct flock lock = WholeFile(F_WRLCK);
  if (fcntl(file, F_OFD_SETLK, &lock) == 0) return 0;
  // A system without locks of open files has those of flock(), which live as long.
  if (errno == EINVAL && flock(file, LOCK_EX | LOCK_NB) == 0) return 0;
  return errno == EACCES ? EAGAIN : errno;
}

void Unlock(int file) {
  // A program that another thread starts just now may have the open file, too.
  struct flock lock = WholeFile(F_UNLCK);
  if (fcntl(file, F_OFD_SETLK, &lock) != 0) flock(file, LOCK_UN);
}

// Returns "process 123 of host" as the file says it, or "another process".
std::string ReadHolder(int file) {
  char text[300];
  const ssize_t n = pread(file, text, sizeof(text), 0);
  const std::string who(text, static_cast<size_t>(std::max<ssize_t>(n, 0)));
  return who.empty() ? "another process" : who.substr(0, who.find('\n'));
}

void WriteHolder(int file) {
  char host[256] = "";
  gethostname(host, sizeof(host) - 1);
  const std::string who = "process " + std::to_string(getpid()) + " of " + std::string(host) + "\n";
  // The text is only for messages. If the disk is full, they lack it.
  if (ftruncate(file, 0) != 0 || pwrite(file, who.data(), who.size(), 0) < 0) return;
}

// Returns ", held by process 123" for RocksDB's lock, or an empty text. Must not be called if this
// process has the lock, which would be released with the descriptor.
std::string HolderOfDatabase(const std::string& path) {
  // It is opened for reading, which other users than the owner may do too.
  const int file = open((path + "/LOCK").c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return "";
  struct flock lock = WholeFile(F_WRLCK);
  const bool held = fcntl(file, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
  close(file);
  return held ? ", held by process " + std::to_string(lock.l_pid) : "";
}

// Does the same for the lock of a FolderClaim.
std::string HolderOfClaim(const std::string& path) {
  const int file = open(FileOf(path).c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return "";
  struct flock lock = WholeFile(F_WRLCK);
  bool held;
  if (fcntl(file, F_OFD_GETLK, &lock) == 0) {
    held = lock.l_type != F_UNLCK;
  } else {
    held = errno == EINVAL && flock(file, LOCK_SH | LOCK_NB) != 0;
  }
  std::string holder = held ? ", held by " + ReadHolder(file) : "";
  close(file);
  return holder;
}

}  // namespace

FolderIdentity IdentityOf(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return {0, 0};
  return {info.st_dev, info.st_ino};
}

bool OpenFolders::Add(FolderClaim* claim) {
  std::lock_guard<std::mutex> guard(ForkMutex());
  const auto& claims = Claims();
  if (std::any_of(claims.begin(), claims.end(),
                  [claim](const FolderClaim* other) { return other->folder_ == claim->folder_; })) {
    return false;
  }
  return Claims().insert(claim).second;
}

void OpenFolders::Remove(FolderClaim* claim) {
  std::lock_guard<std::mutex> guard(ForkMutex());
  Claims().erase(claim);
}

std::string OpenFolders::Holder(const std::string& path) {
  // No other thread of this process takes a lock while the descriptors are open.
  std::lock_guard<std::mutex> guard(ForkMutex());
  const FolderIdentity folder = IdentityOf(path);
  for (const FolderClaim* claim : Claims()) {
    if (claim->folder_ == folder) return ", held by this process";
  }
  const std::string holder = HolderOfDatabase(path);
  return holder.empty() ? HolderOfClaim(path) : holder;
}

std::string OpenFolders::OtherHolder(const std::string& path) { return HolderOfDatabase(path); }

std::unique_ptr<FolderClaim> FolderClaim::Take(const std::string& path) {
  std::unique_ptr<FolderClaim> claim(new FolderClaim(path, IdentityOf(path)));
  if (!OpenFolders::Add(claim.get())) return nullptr;
  return HolderOfClaim(path).empty() ? std::move(claim) : nullptr;
}

FolderClaim::~FolderClaim() { Release(); }

void FolderClaim::Release() {
  OpenFolders::Remove(this);
  std::lock_guard<std::mutex> guard(mu_);
  if (file_.valid()) Unlock(file_.get());
  file_.Close();
  released_ = true;
}

bool FolderClaim::has_file() const { return access(FileOf(path_).c_str(), F_OK) == 0; }

Status FolderClaim::LockFile() {
  std::lock_guard<std::mutex> guard(mu_);
  return Lock();
}

Status FolderClaim::Lock() {
  const std::string path = FileOf(path_);
  // A child that is forked meanwhile would have the file open, and nothing would close it.
  std::lock_guard<std::mutex> no_fork(ForkMutex());
  for (;;) {
    const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0) return SystemError(errno, "open", path);
    if (const int error = TryLock(file); error != 0) {
      const std::string holder = ReadHolder(file);
      close(file);
      if (error == EAGAIN) {
        return Status(Code::kUnavailable, holder + " has taken '" + path + "' just now");
      }
      if (error == ENOLCK || error == EINVAL || error == ENOSYS || error == EOPNOTSUPP) {
        return Status(Code::kInternal,
                      "expected a file system with locks under '" + path_ +
                          "', where nothing else keeps two processes from writing to one "
                          "storage, got an error for '" +
                          path + "': " + SystemError(error, "lock", path).message() +
                          " Keep the storage on a local disk, or mount the file system with locks");
      }
      return SystemError(error, "lock", path);
    }
    struct stat info;
    const FolderIdentity locked =
        fstat(file, &info) == 0 ? FolderIdentity(info.st_dev, info.st_ino) : FolderIdentity(0, 0);
    // If the file was removed before it was locked, other processes would lock the file that
    // replaces it.
    if (IdentityOf(path) == locked) {
      WriteHolder(file);
      if (file_.valid()) Unlock(file_.get());
      file_.Take(file, no_fork);
      locked_ = locked;
      return Status();
    }
    close(file);
  }
}

Status FolderClaim::Check() {
  if (IdentityOf(path_) != folder_) {
    return Status(Code::kNotFound, "the folder of the storage '" + path_ +
                                       "' was moved, removed or replaced while it is open; what is "
                                       "in memory is kept: put the folder back, then go on");
  }
  std::lock_guard<std::mutex> guard(mu_);
  if (released_) return Status(Code::kUnavailable, "the storage '" + path_ + "' is closed");
  if (!file_.valid() || IdentityOf(FileOf(path_)) == locked_) return Status();
  Status status = Lock();
  if (status.ok()) return status;
  return status.Within(
      "the lock '" + FileOf(path_) + "' of the storage '" + path_ +
          "' was removed or replaced while it is open, and cannot be taken again: ",
      "; what is in memory is kept, and nothing is written meanwhile");
}

}  // namespace sok
