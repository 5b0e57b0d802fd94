// The memory that the groups of a storage share for their cached rows.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "core/base/page_memory.h"

namespace sok {

// Hands out blocks of memory within a budget. Thread-safe. Blocks that are freed are kept for later
// calls.
class CacheMemory {
 public:
  // The interface of objects that hold blocks, and may be asked to give one up.
  class Holder {
   public:
    // Gives one block back, if that needs no waiting for a lock. Returns true if it did.
    virtual bool GiveUpBlock() = 0;
    // Gives back the room of rows that were read ahead and that lookups have used by now, if that
    // needs no waiting for a lock.
    virtual void EndAhead() = 0;
    uint64_t held() const { return held_.load(std::memory_order_relaxed); }

   protected:
    ~Holder() = default;

   private:
    friend class CacheMemory;
    std::atomic<uint64_t> held_{0};
  };

  explicit CacheMemory(uint64_t budget)
      : budget_(budget), block_bytes_(budget < kHugeFrom ? kBlockBytes : kHugeBlockBytes) {}
  CacheMemory(const CacheMemory&) = delete;

  void Register(Holder* holder);
  // Forgets the holder, after waiting until no thread asks it for a block.
  void Unregister(Holder* holder);

  // Returns a 64-byte aligned block; null if it would exceed the limit, unless beyond_budget, or if
  // the system has no memory left.
  char* Allocate(Holder* holder, size_t bytes, bool beyond_budget);
  // Takes a block back. This needs no memory.
  void Free(Holder* holder, char* block, size_t bytes);

  // Asks the holder with the most memory to give a block up, if it has at least `margin` more than
  // `holder`.
  bool TakeFromRichest(Holder* holder, uint64_t margin);

  // Counts memory other than blocks, such as indexes of rows, as part of the budget: `before` bytes
  // have become `after`. The first kFreeOfCharge of such bytes are not counted.
  void Charge(uint64_t before, uint64_t after) { charged_ += after - before; }
  // Returns the number of these bytes.
  uint64_t charged() const { return charged_.load(std::memory_order_relaxed); }

  // Reserves room for rows that are read ahead of their steps, which take up to a quarter of
  // limit(). Returns for how many of them there was room.
  size_t ReserveAhead(size_t rows, size_t row_bytes) {
    const uint64_t most = limit() / kAheadPart;
    uint64_t before = ahead_.load(std::memory_order_relaxed);
    for (;;) {
      rows = std::min<uint64_t>(rows, before < most ? (most - before) / row_bytes : 0);
      if (ahead_.compare_exchange_weak(before, before + rows * row_bytes)) return rows;
    }
  }
  void UnreserveAhead(size_t rows, size_t row_bytes) { ahead_ -= rows * row_bytes; }
  // Asks all holders to give room back, if half of it is taken.
  void EndAhead();
  uint64_t ahead() const { return ahead_.load(std::memory_order_relaxed); }

  uint64_t budget() const { return budget_; }
  // Returns the bytes of the budget that blocks may take: a quarter at least.
  uint64_t limit() const {
    const uint64_t charged = charged_.load(std::memory_order_relaxed);
    const uint64_t beside = charged < kFreeOfCharge ? 0 : charged - kFreeOfCharge;
    return budget_ - std::min(beside, budget_ - budget_ / 4);
  }
  uint64_t used() const { return used_.load(std::memory_order_relaxed); }

  // Returns the size of the blocks that rows are laid out in, except very long rows. In large
  // caches it is a whole huge page: if only a part of a huge page were given back, the system would
  // fill it up again.
  size_t block_bytes() const { return block_bytes_; }
  static constexpr size_t kBlockBytes = size_t{64} << 10;  // in small caches
  static constexpr size_t kHugeBlockBytes = size_t{2} << 20;
  static constexpr uint64_t kHugeFrom = uint64_t{1} << 30;  // from this budget on, huge pages
  static constexpr uint64_t kFreeOfCharge = uint64_t{4} << 20;
  static constexpr uint64_t kAheadPart = 4;  // rows read ahead take one byte in so many

 private:
  // Takes a block of block_bytes() from the system.
  char* NewBlock();

  const uint64_t budget_;
  const size_t block_bytes_;
  std::atomic<uint64_t> used_{0};
  std::atomic<uint64_t> charged_{0};
  std::atomic<uint64_t> ahead_{0};  // the bytes of rows that were read ahead, or will be
  std::mutex mu_;                   // guards the three below
  size_t blocks_ = 0;               // how many blocks of that size there are, free or not
  Arena arena_;                     // has them
  std::vector<char*> free_;         // blocks of block_bytes(); longer ones go back to the system
  std::mutex holders_mu_;
  std::vector<Holder*> holders_;
};

}  // namespace sok
