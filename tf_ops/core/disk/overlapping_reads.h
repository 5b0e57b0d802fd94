// A file whose places are read from the device several at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace sok {

// Requests all places that the system's cache does not have before it waits for the first. It needs
// neither threads nor io_uring, which containers often forbid. A long piece that the cache does not
// have is read without filling the cache, if it consists of whole pages of memory and of the file.
// Thread-safe.
class OverlappingReads {
 public:
  struct Request {
    uint64_t offset;
    size_t size;
    char* to;
    size_t read = 0;  // bytes that were read: fewer at the end of the file
    int error = 0;    // of errno
  };

  // Returns null, and sets errno, if the file cannot be opened.
  static std::unique_ptr<OverlappingReads> Open(const std::string& path);
  ~OverlappingReads();
  OverlappingReads(const OverlappingReads&) = delete;

  void Read(Request* requests, size_t n) const;
  // Tells the system which bytes will be read soon, or how the file will be read: see
  // posix_fadvise. The system may ignore it.
  void Advise(uint64_t offset, size_t size, int advice) const;

 private:
  explicit OverlappingReads(int file) : file_(file) {}
  // Reads the part that the system has in memory. Returns false if that is not all.
  bool ReadCached(Request* request) const;
  // Reads without the system's cache. Returns false if a part is left, to be read through it.
  bool ReadDirect(Request* request) const;
  void ReadWaiting(Request* request) const;

  const int file_;
};

}  // namespace sok
