#include "core/base/file_stream.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "core/base/file.h"
#include "core/base/status_macros.h"

namespace sok {
namespace {

// Direct I/O needs addresses, offsets and lengths that are multiples of a block of the device.
// Common devices have blocks of 512 bytes or 4 KiB, and memory pages are multiples of both.
constexpr size_t kAlignment = 4096;
// A write into the page cache is not preempted: a writer of low priority would keep the core from a
// thread of high priority, so each write has at most this length.
constexpr size_t kCachedBytes = size_t{64} << 10;
// Each time after this many bytes, the kernel is asked to start writing them to the device.
constexpr uint64_t kPushedBytes = uint64_t{16} << 20;

}  // namespace

FileStream::~FileStream() {
  StopThread();
  close(fd_);
}

Status FileStream::Write(const void* bytes, size_t size) {
  const char* from = static_cast<const char*>(bytes);
  while (size > 0) {
    if (filled_ == kBufferBytes) SOK_RETURN_IF_ERROR(WriteBuffer());
    if (filling_.data() == nullptr) {
      filling_ = PageBuffer(kBufferBytes, /*huge_pages=*/false);
      if (filling_.data() == nullptr) return OutOfMemory(kBufferBytes, path_);
    }
    const size_t part = std::min(size, kBufferBytes - filled_);
    std::memcpy(filling_.data() + filled_, from, part);
    filled_ += part;
    bytes_ += part;
    from += part;
    size -= part;
  }
  return Status();
}

Status FileStream::Finish() {
  Status status = WaitForThread();
  StopThread();
  if (!status.ok()) return status;
  // The end of a file is seldom a whole block, which direct I/O needs.
  GiveUpDirect();
  SOK_RETURN_IF_ERROR(WriteOut(filling_.data(), filled_));
  filled_ = 0;
  return fsync(fd_) == 0 ? Status() : SystemError(errno, "bring to the device", path_);
}

Status FileStream::WriteBuffer() {
  SOK_RETURN_IF_ERROR(WaitForThread());
  if (!thread_.is_started()) {
#ifdef O_DIRECT
    const int flags = fcntl(fd_, F_GETFL);
    direct_ = flags >= 0 && fcntl(fd_, F_SETFL, flags | O_DIRECT) == 0;
#endif
    try {
      thread_.Start([this] { Run(); });
    } catch (const std::system_error&) {
      // The system cannot start another thread, so the thread of the caller writes.
      filled_ = 0;
      return WriteOut(filling_.data(), kBufferBytes);
    }
  }
  {
    std::lock_guard<std::mutex> guard(mu_);
    std::swap(filling_, passed_);
    is_passed_ = true;
  }
  changed_.notify_all();
  filled_ = 0;
  return Status();
}

Status FileStream::WaitForThread() {
  std::unique_lock<std::mutex> lock(mu_);
  changed_.wait(lock, [this] { return !is_passed_; });
  return status_;
}

void FileStream::Run() {
  std::unique_lock<std::mutex> lock(mu_);
  for (;;) {
    changed_.wait(lock, [this] { return is_passed_ || is_ended_; });
    if (!is_passed_) return;
    lock.unlock();
    Status status = WriteOut(passed_.data(), kBufferBytes);
    lock.lock();
    status_ = std::move(status);
    is_passed_ = false;
    changed_.notify_all();
  }
}

void FileStream::StopThread() {
  if (!thread_.is_started() || thread_.is_elsewhere()) return;
  {
    std::lock_guard<std::mutex> guard(mu_);
    is_ended_ = true;
  }
  changed_.notify_all();
  thread_.Join();
}

Status FileStream::WriteOut(const char* bytes, size_t size) {
  for (size_t done = 0; done < size;) {
    const size_t part = direct_ ? size - done : std::min(size - done, kCachedBytes);
    const ssize_t wrote = write(fd_, bytes + done, part);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0 && errno == EINVAL && direct_) {
      // The file system accepts the flag, but not these lengths.
      GiveUpDirect();
      continue;
    }
    if (wrote < 0) {
      return SystemError(errno, "write byte " + std::to_string(written_) + " of", path_);
    }
    done += static_cast<size_t>(wrote);
    written_ += static_cast<uint64_t>(wrote);
    if (done % kAlignment != 0) GiveUpDirect();
#ifdef SYNC_FILE_RANGE_WRITE
    if (written_ - pushed_ < kPushedBytes) continue;
    // On a file system that cannot do this, Finish flushes everything.
    if (!direct_) {
      (void)sync_file_range(fd_, static_cast<off_t>(pushed_),
                            static_cast<off_t>(written_ - pushed_), SYNC_FILE_RANGE_WRITE);
    }
    pushed_ = written_;
#endif
  }
  return Status();
}

void FileStream::GiveUpDirect() {
  if (!std::exchange(direct_, false)) return;
#ifdef O_DIRECT
  const int flags = fcntl(fd_, F_GETFL);
  if (flags >= 0) (void)fcntl(fd_, F_SETFL, flags & ~O_DIRECT);
#endif
}

}  // namespace sok
