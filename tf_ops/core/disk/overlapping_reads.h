// A file whose places are read from the device several at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace sok {

// Reads of places that the system's cache does not have are asked for together before the first is
// waited for. It takes no thread and no io_uring, which containers often forbid. What that cache
// does not have of a long piece is read past it, if the piece is whole pages of memory and of the
// file. Thread-safe.
class OverlappingReads {
 public:
  struct Request {
    uint64_t offset;
    size_t size;
    char* to;
    size_t read = 0;  // how many bytes there were: fewer at the end of the file
    int error = 0;    // of errno
  };

  // Returns null, and sets errno, if the file cannot be opened.
  static std::unique_ptr<OverlappingReads> Open(const std::string& path);
  ~OverlappingReads();
  OverlappingReads(const OverlappingReads&) = delete;

  void Read(Request* requests, size_t n) const;
  // Tells the system that bytes will be read soon, or how the file will be: see posix_fadvise.
  // Nothing changes if the system ignores it.
  void Advise(uint64_t offset, size_t size, int advice) const;

 private:
  explicit OverlappingReads(int file) : file_(file) {}
  // Reads what the system has in memory. Returns false if that is not all of it.
  bool ReadCached(Request* request) const;
  // Reads past the system's cache. Returns false if some is left to be read otherwise.
  bool ReadDirect(Request* request) const;
  void ReadWaiting(Request* request) const;

  const int file_;
};

}  // namespace sok
