// One open-addressing array of keys and row numbers, of a fixed capacity.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "core/base/hash.h"
#include "core/base/page_memory.h"
#include "core/base/types.h"
#include "core/rows/control_bin.h"

namespace sok {

inline uint64_t HashOfKey(Key key) { return Mix64(key + 0x9e3779b97f4a7c15ull); }

// HashIndex consists of one such array, or of two while keys move from one to the other. Not
// thread-safe. The object fills a cache line, so that one of two is found by a shift.
class alignas(64) HashCells {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;
  // Candidate returns this for a key that is not in its first bin, but may be in another one, since
  // the first has no empty cell. Numbers of cells are below half of it.
  static constexpr uint32_t kElsewhere = kNone - 1;

  // Makes an array of one bin, which is always empty. All such arrays share it.
  HashCells() = default;
  // Makes an array of `bins` bins of 16 cells. If there is no memory, makes the array above
  // instead.
  explicit HashCells(uint64_t bins);
  HashCells(HashCells&& other) noexcept { *this = std::move(other); }
  HashCells& operator=(HashCells&& other) noexcept;

  // Returns how many bins fit into the pages that `bins` bins take.
  static uint64_t WholePages(uint64_t bins);
  static size_t BytesFor(uint64_t bins) { return bins * kBinBytes; }

  // Returns the bin in which the search for a hash begins. It is in proportion to 32 bits of the
  // hash. So in any two arrays, of whatever sizes, the keys have the same order: the first bins of
  // both have the same keys.
  uint64_t FirstBin(uint64_t hash) const {
    return (static_cast<uint32_t>(hash >> 16) * bins_) >> 32;
  }

  void PrefetchControl(uint64_t bin) const { __builtin_prefetch(control_ + bin * kBinWidth); }

  // Returns the cell of the bin to look at first, kNone if there is no such key, or kElsewhere.
  uint32_t Candidate(uint64_t hash, uint64_t bin) const {
    const ControlBin control(control_ + bin * kBinWidth);
    const uint32_t match = control.Match(Tag(hash));
    const auto cell =
        static_cast<uint32_t>(bin * kBinWidth + __builtin_ctz(match | 1u << (kBinWidth - 1)));
    // This is done in arithmetic: a branch on the match would be mispredicted where many keys are
    // absent. For those entry 0 is prefetched, an address that is valid and in the cache already.
    const uint32_t absent = match == 0, goes_on = control.MatchEmpty() == 0;
    const char* const entry = EntryAt(cell & (absent - 1));
    __builtin_prefetch(entry);
    __builtin_prefetch(entry + kEntryBytes - 1);
    return (cell | (0 - absent)) - (absent & goes_on);
  }

  Key KeyAt(uint32_t cell) const {
    Key key;
    std::memcpy(&key, EntryAt(cell), sizeof(key));
    return key;
  }
  uint32_t RowAt(uint32_t cell) const {
    uint32_t row;
    std::memcpy(&row, EntryAt(cell) + sizeof(Key), sizeof(row));
    return row;
  }

  // Returns the cell of the key, or kNone.
  uint32_t Find(Key key, uint64_t hash) const;

  // Inserts a key. It must be absent, and used() below the capacity afterwards.
  void Insert(Key key, uint64_t hash, uint32_t row);

  void Erase(uint32_t cell);

  // Moves the keys whose first bin is `bin` to another array.
  void MoveBin(uint64_t bin, HashCells* to);

  uint64_t bins() const { return memory_.data() == nullptr ? 0 : bins_; }
  uint64_t capacity() const { return bins() * kBinWidth; }
  uint32_t size() const { return size_; }
  uint64_t used() const { return used_; }  // cells that are not empty: those erased count
  const PageBuffer& memory() const { return memory_; }

  // Returns the bytes that are resident once the first `bins` bins have been written to.
  size_t ResidentBytes(uint64_t bins) const;

  // Calls fn(key, row) for every key. The order spreads over all hashes from the start: whoever
  // puts the keys into another index, which grows meanwhile, does not crowd some of its bins.
  template <typename Fn>
  void ForEach(const Fn& fn) const {
    const uint64_t bins = this->bins(), stride = Stride();
    for (uint64_t i = 0, bin = 0, ahead = kAhead * stride % bins_; i < bins; ++i) {
      Prefetch(ahead);
      const ControlBin control(control_ + bin * kBinWidth);
      for (uint32_t full = control.MatchFull(); full != 0; full &= full - 1) {
        const auto cell = static_cast<uint32_t>(bin * kBinWidth + __builtin_ctz(full));
        fn(KeyAt(cell), RowAt(cell));
      }
      bin = Wrapped(bin + stride);
      ahead = Wrapped(ahead + stride);
    }
  }

 private:
  // An entry has key and row, packed: 12 bytes. One of eight lies on two cache lines.
  static constexpr size_t kEntryBytes = sizeof(Key) + sizeof(uint32_t);
  static constexpr size_t kBinBytes = kBinWidth * (1 + kEntryBytes);
  static constexpr uint64_t kAhead = 8;
  alignas(kBinWidth) static constexpr uint8_t kEmptyBin[kBinWidth] = {};

  static uint8_t Tag(uint64_t hash) { return std::max(static_cast<uint8_t>(hash), kLeastTag); }
  const char* EntryAt(uint32_t cell) const { return entries_ + cell * kEntryBytes; }
  char* EntryAt(uint32_t cell) { return entries_ + cell * kEntryBytes; }

  uint64_t Wrapped(uint64_t bin) const { return bin < bins_ ? bin : bin - bins_; }
  // Returns the bin where a search goes on after its `step`-th one. It takes triangular steps
  // first, which leave crowded bins behind, then goes one by one, since only that visits every
  // bin.
  uint64_t Next(uint64_t bin, uint64_t* step) const {
    constexpr uint64_t kTriangular = 8;
    const uint64_t by = *step < kTriangular ? (*step)++ : 1;
    return bins_ <= kTriangular ? Wrapped(bin + 1) : Wrapped(bin + by);
  }
  // Returns about bins / 1.618, without a common divisor with bins.
  uint64_t Stride() const;
  void Prefetch(uint64_t bin) const {
    __builtin_prefetch(control_ + bin * kBinWidth);
    const char* const entries = entries_ + bin * (kBinWidth * kEntryBytes);
    for (size_t at = 0; at < kBinWidth * kEntryBytes; at += 64) __builtin_prefetch(entries + at);
  }

  // Without memory this is never written to, since the array has no room for keys.
  uint8_t* control_ = const_cast<uint8_t*>(kEmptyBin);
  char* entries_ = nullptr;
  uint64_t bins_ = 1;
  uint32_t size_ = 0;
  uint32_t used_ = 0;
  PageBuffer memory_;
};

}  // namespace sok
