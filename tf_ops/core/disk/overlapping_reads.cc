#include "core/disk/overlapping_reads.h"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <vector>

namespace sok {
namespace {

// A read of so many bytes belongs to a walk through the file, which would fill the system's cache
// for nothing.
constexpr size_t kDirectBytes = size_t{256} << 10;
// Direct I/O needs addresses, offsets and lengths that are multiples of the device's block, of 512
// bytes or 4 KiB.
constexpr uint64_t kAlignment = 4096;

}  // namespace

std::unique_ptr<OverlappingReads> OverlappingReads::Open(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return nullptr;
  return std::unique_ptr<OverlappingReads>(new OverlappingReads(file));
}

OverlappingReads::~OverlappingReads() { close(file_); }

void OverlappingReads::Read(Request* requests, size_t n) const {
  std::vector<Request*> rest;
  for (size_t i = 0; i < n; ++i) {
    const bool is_long = requests[i].size >= kDirectBytes;
    if ((n > 1 || is_long) && ReadCached(&requests[i])) continue;
    if (!is_long || !ReadDirect(&requests[i])) rest.push_back(&requests[i]);
  }
  // These calls return as soon as the device has the requests.
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

bool OverlappingReads::ReadDirect(Request* request) const {
#ifdef O_DIRECT
  const auto to = reinterpret_cast<uintptr_t>(request->to);
  if (request->offset % kAlignment != 0 || request->size % kAlignment != 0 ||
      to % kAlignment != 0) {
    return false;
  }
  // Opens the file of file_ once more, through /proc: its path may lead to another file by now, and
  // other threads read with file_.
  char name[40];
  std::snprintf(name, sizeof(name), "/proc/self/fd/%d", file_);
  const int direct = open(name, O_RDONLY | O_DIRECT | O_CLOEXEC);
  if (direct < 0) return false;
  const ssize_t got =
      pread(direct, request->to, request->size, static_cast<off_t>(request->offset));
  if (got < 0 && errno != EINVAL && errno != EINTR) request->error = errno;
  close(direct);
  if (got > 0) request->read = static_cast<size_t>(got);
  // The rest, unless it lies after the end of the file, is read as other places are.
  return request->error != 0 || request->read == request->size;
#else
  return false;
#endif
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
