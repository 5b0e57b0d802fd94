#include "core/disk/cache_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <new>

namespace sok {

void CacheMemory::Register(Holder* holder) {
  std::lock_guard<std::mutex> guard(holders_mu_);
  holders_.push_back(holder);
}

void CacheMemory::Unregister(Holder* holder) {
  std::lock_guard<std::mutex> guard(holders_mu_);
  holders_.erase(std::remove(holders_.begin(), holders_.end(), holder), holders_.end());
}

char* CacheMemory::Allocate(Holder* holder, size_t bytes, bool beyond_budget) {
  if (used_.fetch_add(bytes) + bytes > limit() && !beyond_budget) {
    used_ -= bytes;
    return nullptr;
  }
  char* block = nullptr;
  if (bytes == block_bytes_) {
    std::lock_guard<std::mutex> guard(mu_);
    if (!free_.empty()) {
      block = free_.back();
      free_.pop_back();
    }
  }
  if (block == nullptr) {
    block = bytes == block_bytes_ ? NewBlock() : static_cast<char*>(std::aligned_alloc(64, bytes));
  }
  if (block == nullptr) {
    used_ -= bytes;
    return nullptr;
  }
  holder->held_ += bytes;
  return block;
}

char* CacheMemory::NewBlock() {
  std::lock_guard<std::mutex> guard(mu_);
  try {
    // Free must not need memory.
    if (free_.capacity() <= blocks_) free_.reserve(2 * (blocks_ + 1));
    char* const block = arena_.Allocate(block_bytes_);
    blocks_ += block != nullptr;
    return block;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void CacheMemory::Free(Holder* holder, char* block, size_t bytes) {
  holder->held_ -= bytes;
  if (bytes == block_bytes_) {
    std::lock_guard<std::mutex> guard(mu_);
    free_.push_back(block);
    // Beyond the limit its pages go back to the system; the address range stays.
    if (blocks_ * block_bytes_ > limit()) madvise(block, bytes, MADV_DONTNEED);
  } else {
    std::free(block);  // blocks of long rows differ in size from group to group
  }
  used_ -= bytes;
}

bool CacheMemory::TakeFromRichest(Holder* holder, uint64_t margin) {
  std::lock_guard<std::mutex> guard(holders_mu_);
  Holder* richest = nullptr;
  for (Holder* other : holders_) {
    if (other != holder && (richest == nullptr || other->held() > richest->held())) richest = other;
  }
  if (richest == nullptr || richest->held() < holder->held() + margin) return false;
  return richest->GiveUpBlock();
}

void CacheMemory::EndAhead() {
  if (ahead() < limit() / kAheadPart / 2) return;
  std::lock_guard<std::mutex> guard(holders_mu_);
  for (Holder* holder : holders_) holder->EndAhead();
}

}  // namespace sok
