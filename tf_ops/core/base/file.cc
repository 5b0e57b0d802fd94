#include "core/base/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <new>
#include <system_error>
#include <utility>

#include "core/base/hash.h"

namespace sok {
namespace {

constexpr size_t kLongestStem = 200;  // a temporary name may have 255 bytes in all

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// Returns the beginning of the temporary names for a path, with the folder.
std::string TemporaryStem(const std::string& path) {
  const std::string name = path.substr(path.rfind('/') + 1);  // npos + 1 == 0
  return path.substr(0, path.size() - name.size()) + name.substr(0, kLongestStem) + ".tmp-";
}

std::string TemporaryName(const std::string& path) {
  static std::atomic<uint64_t> calls{0};
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  const uint64_t bits = Mix64(static_cast<uint64_t>(now) + (calls.fetch_add(1) << 48));
  char suffix[48];
  std::snprintf(suffix, sizeof(suffix), "%ld-%08lx", static_cast<long>(getpid()),
                static_cast<unsigned long>(bits >> 32));
  return TemporaryStem(path) + suffix;
}

// Returns true for a suffix that TemporaryName makes: process id, dash, 8 hexadecimal digits.
bool LooksLikeSuffix(const std::string& suffix) {
  const size_t dash = suffix.find('-');
  return dash != std::string::npos && dash > 0 && suffix.size() == dash + 9 &&
         suffix.find_first_not_of("0123456789") == dash &&
         suffix.find_first_not_of("0123456789abcdef", dash + 1) == std::string::npos;
}

// Removes the temporary files for path whose writers were killed. A living writer holds a lock on
// its file.
void RemoveLeftovers(const std::string& path) {
  const std::string folder = FolderOf(path);
  const std::string stem = TemporaryStem(path), name = stem.substr(stem.rfind('/') + 1);
  DIR* const entries = opendir(folder.c_str());
  if (entries == nullptr) return;
  while (const dirent* entry = readdir(entries)) {
    const std::string found = entry->d_name;
    if (found.compare(0, name.size(), name) != 0 || !LooksLikeSuffix(found.substr(name.size()))) {
      continue;
    }
    const std::string leftover = folder + "/" + found;
    const int fd = open(leftover.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    if (fd < 0) continue;
    struct stat kind;
    if (fstat(fd, &kind) == 0 && S_ISREG(kind.st_mode) && flock(fd, LOCK_EX | LOCK_NB) == 0) {
      unlink(leftover.c_str());
    }
    close(fd);
  }
  closedir(entries);
}

// Returns null for success.
const char* KindIfNotAFile(const struct stat& found) {
  if (S_ISREG(found.st_mode)) return nullptr;
  return S_ISDIR(found.st_mode) ? "a folder" : "a device, pipe or socket";
}

Status NotAFile(const std::string& path, const char* kind) {
  return InvalidArgument("Expected the path of a file. Received: " + path + ", which is " + kind +
                         ". Name a file in it or elsewhere.");
}

}  // namespace

Status SystemError(int error, const std::string& verb, const std::string& path) {
  Code code = Code::kInternal;
  const char* remedy = "";
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      code = Code::kNotFound;
      remedy = " Check the path; its folder must exist.";
      break;
    case EACCES:
    case EPERM:
    case EROFS:
      code = Code::kPermissionDenied;
      remedy = " Choose a place that this user may use, or change its permissions.";
      break;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      code = Code::kResourceExhausted;
      remedy = " Free some space, raise the quota or the file size limit, or choose another disk.";
      break;
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      code = Code::kResourceExhausted;
      remedy = " Close files or raise the limits of this process.";
      break;
    case EISDIR:
    case ENAMETOOLONG:
    case ELOOP:
      code = Code::kInvalidArgument;
      remedy = " Choose another path.";
      break;
    case EIO:  // no damage: what the file holds is not known
      remedy = " The device failed: look into the system's log.";
      break;
  }
  return Status(code, "Cannot " + verb + " " + path + ": " +
                          std::generic_category().message(error) + "." + remedy);
}

Status SyncFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const int error = fd < 0 || fsync(fd) != 0 ? errno : 0;
  if (fd >= 0) close(fd);
  return error == 0 ? Status() : SystemError(error, "bring to the device", path);
}

Status SyncFolder(const std::string& folder, const std::string& verb) {
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const int opened = fd < 0 ? errno : 0;
  const int synced = fd < 0 || fsync(fd) == 0 ? 0 : errno;
  if (fd >= 0) close(fd);
  // Some file systems return an error because they do not need to sync folders, or cannot do it.
  if (opened == 0 && (synced == 0 || synced == EINVAL || synced == ENOTSUP)) return Status();
  const int error = opened != 0 ? opened : synced;
  return SystemError(error, verb, folder);
}

bool FileBuffer::Reserve(size_t size) {
  if (size <= size_) return true;
  bytes_.reset();
  bytes_.reset(new (std::nothrow) char[size]);
  size_ = bytes_ ? size : 0;
  return bytes_ != nullptr;
}

Status OutOfMemory(size_t bytes, const std::string& path) {
  return Status(Code::kResourceExhausted, "No memory for a block of " + path + ": " +
                                              std::to_string(bytes) + " bytes were asked for.");
}

Result<std::unique_ptr<InputFile>> InputFile::Open(const std::string& path) {
  // O_NONBLOCK prevents open from waiting for the writer of a pipe.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return SystemError(errno, "open", path);
  struct stat found;
  Status status;
  if (fstat(fd, &found) != 0) {
    status = SystemError(errno, "look at", path);
  } else if (const char* kind = KindIfNotAFile(found)) {
    status = NotAFile(path, kind);
  }
  if (!status.ok()) {
    close(fd);
    return status;
  }
  return std::unique_ptr<InputFile>(new InputFile(fd, static_cast<uint64_t>(found.st_size), path));
}

InputFile::~InputFile() { close(fd_); }

Status InputFile::ReadAt(uint64_t offset, void* out, size_t size) const {
  char* to = static_cast<char*>(out);
  while (size > 0) {
    const ssize_t got = pread(fd_, to, size, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return SystemError(errno, "read at byte " + std::to_string(offset) + " of", path_);
    if (got == 0) {
      return Status(Code::kDataLoss, "Expected " + std::to_string(size) + " more bytes at byte " +
                                         std::to_string(offset) + " of " + path_ +
                                         ". Received: the end of the file. It is incomplete, or "
                                         "was cut while it was read: copy or dump it again.");
    }
    to += got;
    offset += static_cast<uint64_t>(got);
    size -= static_cast<size_t>(got);
  }
  return Status();
}

Result<std::unique_ptr<ReplacementFile>> ReplacementFile::Open(const std::string& path) {
  if (path.empty() || path.back() == '/') {
    return InvalidArgument("Expected the path of a file. Received: '" + path +
                           "'. Give the file a name.");
  }
  struct stat found;
  if (stat(path.c_str(), &found) == 0) {
    if (const char* kind = KindIfNotAFile(found)) return NotAFile(path, kind);
  }
  RemoveLeftovers(path);
  int error = EEXIST;
  for (int tries = 0; tries < 100 && error == EEXIST; ++tries) {
    std::string temporary = TemporaryName(path);
    const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) {
      error = errno;
      continue;
    }
    // On a file system without locks, leftovers are not removed either. Another process that
    // removes leftovers may have come before the lock was taken; then the file has lost its name.
    const bool locked = flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
    if (locked && fstat(fd, &found) == 0 && found.st_nlink > 0) {
      return std::unique_ptr<ReplacementFile>(new ReplacementFile(fd, std::move(temporary), path));
    }
    close(fd);
    unlink(temporary.c_str());
  }
  return SystemError(error, "make a temporary file beside", path);
}

Status ReplacementFile::WriteAt(uint64_t offset, const void* bytes, size_t size) {
  const char* from = static_cast<const char*>(bytes);
  while (size > 0) {
    const ssize_t put = pwrite(fd_, from, size, static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return SystemError(errno, "write byte " + std::to_string(offset) + " of", path_);
    from += put;
    offset += static_cast<uint64_t>(put);
    size -= static_cast<size_t>(put);
    bytes_ = std::max(bytes_, offset);
  }
  return Status();
}

Status ReplacementFile::Commit() {
  if (fsync(fd_) != 0) return SystemError(errno, "bring to the device", path_);
  // The file is renamed before it is closed, since closing it releases its lock: see
  // RemoveLeftovers.
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) {
    return SystemError(errno, "rename the finished " + temporary_ + " to", path_);
  }
  temporary_.clear();
  if (close(std::exchange(fd_, -1)) != 0) return SystemError(errno, "close", path_);
  return SyncFolder(FolderOf(path_),
                    "bring to the device (the new file has its name already) the folder");
}

void ReplacementFile::Discard() {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
  if (!temporary_.empty()) unlink(temporary_.c_str());
  temporary_.clear();
}

}  // namespace sok
