// Writes a file from its beginning to its end, with direct I/O (without the system's cache) where
// that is possible.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>

#include "core/base/forked_child.h"
#include "core/base/page_memory.h"
#include "core/base/status.h"

namespace sok {

// Gathers bytes in memory; while one buffer fills, a thread writes the other one. With direct I/O
// that thread sleeps while the device works, the processor copies nothing into the cache, and the
// cache keeps the data of other files: see docs/decisions/direct-io.md.
//
// One thread at a time may use it. An error is returned by a later call, at the latest by Finish;
// after an error the file is useless.
class FileStream {
 public:
  // The file is new and open for writing. `path` is for errors.
  FileStream(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  // Closes the file. Without a Finish before, some bytes are lost.
  ~FileStream();
  FileStream(const FileStream&) = delete;
  FileStream& operator=(const FileStream&) = delete;

  // Errors: as SystemError returns; kResourceExhausted if there is no memory for a buffer.
  Status Write(const void* bytes, size_t size);
  // Writes the bytes that are left, and flushes the file to the device. Nothing may be written
  // afterwards.
  Status Finish();

  // Returns how many bytes Write has taken.
  uint64_t bytes() const { return bytes_; }

 private:
  static constexpr size_t kBufferBytes = size_t{4} << 20;

  // Hands the full buffer to the thread to write.
  Status WriteBuffer();
  // Returns the first error that the thread has met.
  Status WaitForThread();
  // The thread runs this until StopThread is called.
  void Run();
  void StopThread();
  Status WriteOut(const char* bytes, size_t size);
  void GiveUpDirect();

  const int fd_;
  const std::string path_;
  PageBuffer filling_, passed_;
  size_t filled_ = 0;  // bytes in filling_
  uint64_t bytes_ = 0;

  // While there is a thread, it alone uses these three.
  bool direct_ = false;
  uint64_t written_ = 0;
  uint64_t pushed_ = 0;  // bytes that the system was told to bring to the device

  ThreadOfProcess thread_;
  std::mutex mu_;
  std::condition_variable changed_;
  bool is_passed_ = false;  // passed_ is full and not written yet
  bool is_ended_ = false;
  Status status_;
};

}  // namespace sok
