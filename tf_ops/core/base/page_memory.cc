#include "core/base/page_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>

namespace sok {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

char* Map(size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? nullptr : static_cast<char*>(p);
}

// Maps more than needed and unmaps what lies outside of the aligned part.
char* MapAligned(size_t bytes, size_t alignment) {
  char* raw = Map(bytes + alignment);
  if (raw == nullptr) return nullptr;
  const size_t head =
      RoundUp(reinterpret_cast<uintptr_t>(raw), alignment) - reinterpret_cast<uintptr_t>(raw);
  if (head > 0) munmap(raw, head);
  if (alignment > head) munmap(raw + head + bytes, alignment - head);
  return raw + head;
}

// Returns whether the system gives huge pages also to mappings that did not ask for them.
bool HugePagesForAll() {
  std::ifstream setting("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string words;
  return std::getline(setting, words) && words.find("[always]") != std::string::npos;
}

}  // namespace

void PreferHugePages([[maybe_unused]] void* data, [[maybe_unused]] size_t bytes) {
#ifdef MADV_HUGEPAGE
  if (data == nullptr || bytes < 2 * kHugePage) return;
  const auto begin = reinterpret_cast<uintptr_t>(data);
  const size_t first = RoundUp(begin, kHugePage), last = (begin + bytes) / kHugePage * kHugePage;
  madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#endif
}

PageBuffer::PageBuffer(size_t bytes, bool huge_pages) {
  if (bytes == 0) return;
  static const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  static const bool for_all = HugePagesForAll();
  huge_pages |= for_all && bytes >= kHugePage;
  page_bytes_ = huge_pages ? kHugePage : page;
  bytes = RoundUp(bytes, page_bytes_);
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
  std::swap(page_bytes_, other.page_bytes_);
  return *this;
}

void PageBuffer::Release(size_t offset, size_t length) {
  if (length > 0) madvise(data_ + offset, length, MADV_DONTNEED);
}

char* Arena::Allocate(size_t bytes) {
  constexpr size_t kFirst = size_t{256} << 10, kLargest = size_t{256} << 20;
  bytes = RoundUp(bytes, 64);
  std::lock_guard<std::mutex> lock(mu_);
  char* block;
  if (const auto freed = free_.find(bytes); freed != free_.end()) {
    block = *freed->second.begin();
    freed->second.erase(freed->second.begin());
    if (freed->second.empty()) free_.erase(freed);
  } else {
    if (last_ == nullptr || last_->pages.bytes() - next_ < bytes) {
      const bool huge = used_ >= kHugeFrom;
      const size_t wanted = std::max(bytes, std::clamp(used_ / 4, kFirst, kLargest));
      Chunk chunk{PageBuffer(wanted, huge), {}};
      if (chunk.pages.data() == nullptr) return nullptr;
      chunk.blocks.resize(chunk.pages.bytes() / chunk.pages.page_bytes());
      const auto place = reinterpret_cast<uintptr_t>(chunk.pages.data());
      last_ = &chunks_.emplace(place, std::move(chunk)).first->second;
      next_ = 0;
    }
    block = last_->pages.data() + next_;
    next_ += bytes;
  }
  used_ += bytes;
  Count(block, bytes, /*comes=*/true);
  return block;
}

void Arena::Free(char* block, size_t bytes) {
  bytes = RoundUp(bytes, 64);
  std::lock_guard<std::mutex> lock(mu_);
  used_ -= bytes;
  Count(block, bytes, /*comes=*/false);
  free_[bytes].insert(block);
}

void Arena::Count(char* block, size_t bytes, bool comes) {
  auto& chunk = const_cast<Chunk&>(ChunkOf(block));
  const size_t page = chunk.pages.page_bytes();
  const size_t offset = block - chunk.pages.data();
  const size_t first = offset / page, last = (offset + bytes - 1) / page;
  // Only the first and the last page of a block may contain parts of other blocks.
  size_t begin = last + 1, end = begin;
  for (size_t p = first; p <= last; ++p) {
    uint32_t& blocks = chunk.blocks[p];
    const bool changes = comes ? blocks++ == 0 : --blocks == 0;
    if (!changes) continue;
    begin = std::min(begin, p);
    end = p + 1;
  }
  if (begin >= end) return;
  if (comes) {
    resident_ += (end - begin) * page;
  } else {
    resident_ -= (end - begin) * page;
    chunk.pages.Release(begin * page, (end - begin) * page);
  }
}

const Arena::Chunk& Arena::ChunkOf(const char* place) const {
  return std::prev(chunks_.upper_bound(reinterpret_cast<uintptr_t>(place)))->second;
}

size_t Arena::bytes_used() const {
  std::lock_guard<std::mutex> lock(mu_);
  return used_;
}

size_t Arena::resident_bytes() const {
  std::lock_guard<std::mutex> lock(mu_);
  return resident_;
}

size_t Arena::PageBytesAt(const char* place) const {
  std::lock_guard<std::mutex> lock(mu_);
  return ChunkOf(place).pages.page_bytes();
}

}  // namespace sok
