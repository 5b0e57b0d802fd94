#include "core/page_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

namespace sok {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

char* Map(size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? nullptr : static_cast<char*>(p);
}

// Maps more than is needed and trims both ends to the alignment.
char* MapAligned(size_t bytes, size_t alignment) {
  char* raw = Map(bytes + alignment);
  if (raw == nullptr) return nullptr;
  const size_t head =
      RoundUp(reinterpret_cast<uintptr_t>(raw), alignment) - reinterpret_cast<uintptr_t>(raw);
  if (head > 0) munmap(raw, head);
  if (alignment > head) munmap(raw + head + bytes, alignment - head);
  return raw + head;
}

}  // namespace

PageBuffer::PageBuffer(size_t bytes, bool huge_pages) {
  if (bytes == 0) return;
  static const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  bytes = RoundUp(bytes, huge_pages ? kHugePage : page);
  data_ = huge_pages ? MapAligned(bytes, kHugePage) : Map(bytes);
  if (data_ == nullptr) return;
  bytes_ = bytes;
#ifdef MADV_HUGEPAGE
  if (huge_pages) madvise(data_, bytes_, MADV_HUGEPAGE);
#endif
}

PageBuffer::~PageBuffer() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

PageBuffer& PageBuffer::operator=(PageBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

char* Arena::Allocate(size_t bytes) {
  constexpr size_t kFirst = size_t{256} << 10, kLargest = size_t{256} << 20;
  bytes = RoundUp(bytes, 64);
  std::lock_guard<std::mutex> lock(mu_);
  if (chunks_.empty() || chunks_.back().bytes() - next_ < bytes) {
    const bool huge = used_ >= kHugeFrom;
    const size_t wanted = std::max(bytes, std::clamp(used_ / 4, kFirst, kLargest));
    PageBuffer chunk(wanted, huge);
    if (chunk.data() == nullptr) return nullptr;
    chunks_.push_back(std::move(chunk));
    next_ = 0;
  }
  char* block = chunks_.back().data() + next_;
  next_ += bytes;
  used_ += bytes;
  return block;
}

size_t Arena::bytes_used() const {
  std::lock_guard<std::mutex> lock(mu_);
  return used_;
}

}  // namespace sok
