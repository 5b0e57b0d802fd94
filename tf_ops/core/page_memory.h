// Memory taken from the operating system in whole pages, so that what is given back leaves the
// process at once instead of staying in the heap.
#pragma once

#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

namespace sok {

// One zero-filled mapping. Movable, freed when it goes.
class PageBuffer {
 public:
  PageBuffer() = default;
  // Maps `bytes` rounded up to pages. With huge_pages, aligned to 2 MiB and marked for transparent
  // huge pages: a random read then seldom misses the TLB, but a touch makes 2 MiB resident.
  // On failure data() is null.
  PageBuffer(size_t bytes, bool huge_pages);
  ~PageBuffer();
  PageBuffer(PageBuffer&& other) noexcept { *this = std::move(other); }
  PageBuffer& operator=(PageBuffer&& other) noexcept;

  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  char* data_ = nullptr;
  size_t bytes_ = 0;
};

// Hands out 64-byte aligned blocks that live, in place, as long as the arena. Small at first; from
// kHugeFrom on it maps huge pages, in steps that grow with what it already holds. Thread-safe.
class Arena {
 public:
  // Null if the system has no memory left.
  char* Allocate(size_t bytes);

  // Bytes handed out so far. What is mapped beyond that has not been touched.
  size_t bytes_used() const;

  static constexpr size_t kHugeFrom = size_t{16} << 20;

 private:
  mutable std::mutex mu_;
  std::vector<PageBuffer> chunks_;
  size_t next_ = 0;  // offset of the first free byte in chunks_.back()
  size_t used_ = 0;
};

}  // namespace sok
