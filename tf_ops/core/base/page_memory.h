// Memory that is taken from the operating system in whole pages, so that freed memory returns to
// the system at once instead of staying in the heap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

namespace sok {

// Asks the system for huge pages for memory that is about to be written for the first time, so that
// far fewer page faults occur. Does nothing for memory of less than a few huge pages.
void PreferHugePages(void* data, size_t bytes);

// One zero-filled mapping of memory. It can be moved, and is freed when it goes.
class PageBuffer {
 public:
  PageBuffer() = default;
  // Maps `bytes` rounded up to pages. With huge_pages, the mapping is aligned to 2 MiB and marked
  // for transparent huge pages: a random read then seldom misses the TLB, but a touch makes 2 MiB
  // resident. Some systems give huge pages to every mapping that is large enough, without being
  // asked. On failure data() is null.
  PageBuffer(size_t bytes, bool huge_pages);
  ~PageBuffer();
  PageBuffer(PageBuffer&& other) noexcept { *this = std::move(other); }
  PageBuffer& operator=(PageBuffer&& other) noexcept;

  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }

  // Returns how many bytes become resident when one is touched: the size of a page.
  size_t page_bytes() const { return page_bytes_; }

  // Gives the memory of [offset, offset + length), which are whole pages, back to the system. The
  // place stays, and reads as zero.
  void Release(size_t offset, size_t length);

 private:
  char* data_ = nullptr;
  size_t bytes_ = 0;
  size_t page_bytes_ = 1;
};

// Hands out 64-byte aligned blocks that live, in place, until they are freed or the arena goes. It
// maps little memory at first; from kHugeFrom on it maps huge pages, in steps that grow with what
// it already holds. Pages without a block go back to the system; their places are kept for blocks
// of the same size. Thread-safe.
class Arena {
 public:
  // Returns a block, or null if the system has no memory left. The block is zero if it is new, and
  // may hold anything where another one was freed.
  char* Allocate(size_t bytes);

  // Frees a block, which must come from Allocate with the same `bytes`.
  void Free(char* block, size_t bytes);

  // Returns the sum of the sizes of the blocks in use.
  size_t bytes_used() const;

  // Returns the memory of all pages that have a block, as if every block had been written to.
  size_t resident_bytes() const;

  // Returns the size of the page on which this place of a block is.
  size_t PageBytesAt(const char* place) const;

  static constexpr size_t kHugeFrom = size_t{8} << 20;

 private:
  struct Chunk {
    PageBuffer pages;
    std::vector<uint32_t> blocks;  // (pages) how many blocks are on each
  };
  using Chunks = std::map<uintptr_t, Chunk>;  // the mappings, by where they begin

  // Adds the block to the counts of its pages, or takes it away.
  void Count(char* block, size_t bytes, bool comes);
  const Chunk& ChunkOf(const char* place) const;

  mutable std::mutex mu_;
  Chunks chunks_;
  Chunk* last_ = nullptr;  // the one that new blocks come from
  size_t next_ = 0;        // offset of its first byte that was never handed out
  size_t used_ = 0;
  size_t resident_ = 0;
  // The places that are free, by size. The places at the lowest addresses are used first, so that
  // pages at higher addresses become empty.
  std::map<size_t, std::set<char*>> free_;
};

}  // namespace sok
