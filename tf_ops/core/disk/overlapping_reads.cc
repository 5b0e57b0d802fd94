#include "core/disk/overlapping_reads.h"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

namespace sok {

std::unique_ptr<OverlappingReads> OverlappingReads::Open(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return nullptr;
  return std::unique_ptr<OverlappingReads>(new OverlappingReads(file));
}

OverlappingReads::~OverlappingReads() { close(file_); }

void OverlappingReads::Read(Request* requests, size_t n) const {
  std::vector<Request*> rest;
  for (size_t i = 0; i < n; ++i) {
    if (n == 1 || !ReadCached(&requests[i])) rest.push_back(&requests[i]);
  }
  // These calls return once the device has been asked.
  for (size_t i = 1; i < rest.size(); ++i) {
    Advise(rest[i]->offset, rest[i]->size, POSIX_FADV_WILLNEED);
  }
  for (Request* request : rest) ReadWaiting(request);
}

void OverlappingReads::Advise(uint64_t offset, size_t size, int advice) const {
  posix_fadvise(file_, static_cast<off_t>(offset), static_cast<off_t>(size), advice);
}

bool OverlappingReads::ReadCached(Request* request) const {
  const iovec whole{request->to, request->size};
  const ssize_t got = preadv2(file_, &whole, 1, static_cast<off_t>(request->offset), RWF_NOWAIT);
  if (got != static_cast<ssize_t>(request->size)) return false;
  request->read = request->size;
  return true;
}

void OverlappingReads::ReadWaiting(Request* request) const {
  while (request->read < request->size) {
    const ssize_t got = pread(file_, request->to + request->read, request->size - request->read,
                              static_cast<off_t>(request->offset + request->read));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) request->error = errno;
    if (got <= 0) return;
    request->read += static_cast<size_t>(got);
  }
}

}  // namespace sok
