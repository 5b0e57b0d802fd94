#include "core/serving/scratch_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "core/base/file.h"

namespace sok {

Result<std::unique_ptr<ScratchFile>> ScratchFile::Open(const std::string& folder) {
  int fd = open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0) {  // some file systems cannot make a file without a name
    std::string name = folder + "/sok-rows-XXXXXX";
    fd = mkostemp(name.data(), O_CLOEXEC);
    if (fd >= 0) unlink(name.c_str());
  }
  if (fd < 0) return SystemError(errno, "make a temporary file in", folder);
  return std::unique_ptr<ScratchFile>(new ScratchFile(fd, folder));
}

ScratchFile::~ScratchFile() { close(fd_); }

Status ScratchFile::Append(const char* bytes, size_t size) {
  while (size > 0) {
    const ssize_t put = pwrite(fd_, bytes, size, static_cast<off_t>(bytes_));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return SystemError(errno, "write to a temporary file in", folder_);
    bytes += put;
    bytes_ += static_cast<uint64_t>(put);
    size -= static_cast<size_t>(put);
  }
  return Status();
}

Status ScratchFile::ReadAt(uint64_t offset, char* out, size_t size) const {
  while (size > 0) {
    const ssize_t got = pread(fd_, out, size, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return SystemError(got < 0 ? errno : EIO, "read a temporary file in", folder_);
    out += got;
    offset += static_cast<uint64_t>(got);
    size -= static_cast<size_t>(got);
  }
  return Status();
}

}  // namespace sok
