// One open-addressing array of keys and row numbers, of a fixed capacity.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/base/hash.h"
#include "core/base/page_memory.h"
#include "core/base/types.h"
#include "core/rows/control_group.h"

namespace sok {

inline uint64_t HashOfKey(Key key) { return Mix64(key + 0x9e3779b97f4a7c15ull); }

// HashIndex is made of these: of one array, or of two while keys move from one to the other. Not
// thread-safe. It takes a cache line, so that one of two is found by a shift.
class alignas(64) HashSlots {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;
  // Stands for the cell of a key that is not in its first group, which has no empty cell, and may
  // be in another one. Numbers of cells are below half of this.
  static constexpr uint32_t kElsewhere = kNone - 1;

  // Makes an array of one group, always empty, which all such arrays share.
  HashSlots() = default;
  // Makes an array of `groups` groups of 16 cells. Without memory it is as above.
  explicit HashSlots(uint64_t groups);
  HashSlots(HashSlots&& other) noexcept { *this = std::move(other); }
  HashSlots& operator=(HashSlots&& other) noexcept;

  // Returns how many groups fit into the pages that `groups` groups take.
  static uint64_t WholePages(uint64_t groups);
  static size_t BytesFor(uint64_t groups) { return groups * kGroupBytes; }

  // Returns the group in which the search for a hash begins. It is in proportion to 32 bits of the
  // hash, so that keys come in the same order in arrays of any two numbers of groups: those of the
  // first groups of one are those of the first groups of the other.
  uint64_t FirstGroup(uint64_t hash) const {
    return (static_cast<uint32_t>(hash >> 16) * groups_) >> 32;
  }

  void PrefetchControl(uint64_t group) const { __builtin_prefetch(control_ + group * kGroupWidth); }

  // Returns the cell of the group to look at first, kNone if there is no such key, or kElsewhere.
  uint32_t Candidate(uint64_t hash, uint64_t group) const {
    const ControlGroup control(control_ + group * kGroupWidth);
    const uint32_t match = control.Match(Tag(hash));
    const auto cell =
        static_cast<uint32_t>(group * kGroupWidth + __builtin_ctz(match | 1u << (kGroupWidth - 1)));
    // This is done in arithmetic: nobody can predict a branch on the match where many keys are
    // absent. For those entry 0 is prefetched, an address that is valid and in the cache already.
    const uint32_t absent = match == 0, goes_on = control.MatchEmpty() == 0;
    __builtin_prefetch(EntryAt(cell & (absent - 1)));
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

  // Moves the keys whose first group is `group` to another array.
  void MoveGroup(uint64_t group, HashSlots* to);

  uint64_t groups() const { return memory_.data() == nullptr ? 0 : groups_; }
  uint64_t capacity() const { return groups() * kGroupWidth; }
  uint32_t size() const { return size_; }
  uint64_t used() const { return used_; }  // cells that are not empty: those erased count
  const PageBuffer& memory() const { return memory_; }

  // Returns the bytes that are resident once the first `groups` groups have been written to.
  size_t ResidentBytes(uint64_t groups) const;

  // Calls fn(key, row) for every key. The order spreads over all hashes from the start: whoever
  // puts the keys into another index, which grows meanwhile, does not crowd some of its groups.
  template <typename Fn>
  void ForEach(const Fn& fn) const {
    const uint64_t groups = this->groups(), stride = Stride();
    for (uint64_t i = 0, group = 0, ahead = kAhead * stride % groups_; i < groups; ++i) {
      Prefetch(ahead);
      const ControlGroup control(control_ + group * kGroupWidth);
      for (uint32_t full = control.MatchFull(); full != 0; full &= full - 1) {
        const auto cell = static_cast<uint32_t>(group * kGroupWidth + __builtin_ctz(full));
        fn(KeyAt(cell), RowAt(cell));
      }
      group = Wrapped(group + stride);
      ahead = Wrapped(ahead + stride);
    }
  }

 private:
  // An entry has key and row, packed: 12 bytes, so that one entry is nearly always one cache line.
  static constexpr size_t kEntryBytes = sizeof(Key) + sizeof(uint32_t);
  static constexpr size_t kGroupBytes = kGroupWidth * (1 + kEntryBytes);
  static constexpr uint64_t kAhead = 8;
  alignas(kGroupWidth) static constexpr uint8_t kEmptyGroup[kGroupWidth] = {};

  static uint8_t Tag(uint64_t hash) { return static_cast<uint8_t>(hash) | kFull; }
  const char* EntryAt(uint32_t cell) const { return entries_ + cell * kEntryBytes; }
  char* EntryAt(uint32_t cell) { return entries_ + cell * kEntryBytes; }

  uint64_t Wrapped(uint64_t group) const { return group < groups_ ? group : group - groups_; }
  // Returns the group where a search goes on after its `step`-th one. It takes triangular steps
  // first, which leave crowded groups behind, then goes one by one, since only that visits every
  // group.
  uint64_t Next(uint64_t group, uint64_t* step) const {
    constexpr uint64_t kTriangular = 8;
    const uint64_t by = *step < kTriangular ? (*step)++ : 1;
    return groups_ <= kTriangular ? Wrapped(group + 1) : Wrapped(group + by);
  }
  // Returns about groups / 1.618, without a common divisor with groups.
  uint64_t Stride() const;
  void Prefetch(uint64_t group) const {
    __builtin_prefetch(control_ + group * kGroupWidth);
    const char* const entries = entries_ + group * (kGroupWidth * kEntryBytes);
    for (size_t at = 0; at < kGroupWidth * kEntryBytes; at += 64) __builtin_prefetch(entries + at);
  }

  // Without memory this is never written to: there is no room.
  uint8_t* control_ = const_cast<uint8_t*>(kEmptyGroup);
  char* entries_ = nullptr;
  uint64_t groups_ = 1;
  uint32_t size_ = 0;
  uint32_t used_ = 0;
  PageBuffer memory_;
};

}  // namespace sok
