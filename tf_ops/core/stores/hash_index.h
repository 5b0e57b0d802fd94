// From any 64-bit key to the number of its row: one shard's open-addressing index.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/hash.h"
#include "core/page_memory.h"
#include "core/status.h"
#include "core/stores/control_group.h"
#include "core/stores/index_config.h"
#include "core/types.h"

namespace sok {

// Not thread-safe: the shard that owns it holds the lock.
//
// A lookup is three steps apart, so that a batch can run each step over many keys and the memory
// reads of one key overlap with those of the others: Hash and PrefetchControl, then Candidate,
// which prefetches the entry, then Resolve.
class HashIndex {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  HashIndex() = default;
  HashIndex(const IndexConfig&, uint32_t /*shard*/) {}

  static uint64_t Hash(Key key, const IndexConfig&) { return Hash(key); }
  static uint64_t Hash(Key key) { return Mix64(key + 0x9e3779b97f4a7c15ull); }
  // The highest bits choose the shard, the lowest the slot and the tag.
  static uint32_t ShardOf(uint64_t hash, int shard_bits) {
    return static_cast<uint32_t>(hash >> (64 - shard_bits));
  }

  void PrefetchControl(uint64_t hash) const {
    if (capacity_ > 0) __builtin_prefetch(control_ + FirstGroup(hash) * kGroupWidth);
  }

  // The slot to look at first, kNone if there is no such key, or kElsewhere.
  uint32_t Candidate(uint64_t hash) const {
    if (capacity_ == 0) return kNone;
    const uint64_t group = FirstGroup(hash);
    const ControlGroup control(control_ + group * kGroupWidth);
    const uint32_t match = control.Match(Tag(hash));
    const auto slot =
        static_cast<uint32_t>(group * kGroupWidth + __builtin_ctz(match | 1u << (kGroupWidth - 1)));
    // In arithmetic: nobody can predict a branch on the match where many keys are absent. For those
    // entry 0 is prefetched, an address that is valid and in the cache already.
    const uint32_t absent = match == 0, goes_on = control.MatchEmpty() == 0;
    __builtin_prefetch(EntryAt(slot & (absent - 1)));
    return (slot | (0 - absent)) - (absent & goes_on);
  }

  // The row of the key, or kNone.
  uint32_t Resolve(Key key, uint64_t hash, uint32_t candidate) const {
    if (candidate >= kElsewhere) return candidate == kNone ? kNone : Find(key, hash);
    return KeyAt(candidate) == key ? RowAt(candidate) : Find(key, hash);
  }

  uint32_t Find(Key key, uint64_t hash) const {
    const uint32_t slot = FindSlot(key, hash);
    return slot == kNone ? kNone : RowAt(slot);
  }

  // Makes room for `more` keys beyond those that are there. On an error nothing has changed.
  Status Reserve(uint32_t more);

  // The key must be absent and room for it reserved.
  void Insert(Key key, uint64_t hash, uint32_t row);

  // The row that the key had, or kNone if it was absent.
  uint32_t Erase(Key key, uint64_t hash);

  uint32_t size() const { return size_; }
  size_t bytes() const { return memory_.bytes(); }

  // Calls fn(key, row) for every key, in the order of the slots.
  template <typename Fn>
  void ForEach(const Fn& fn) const {
    for (uint32_t slot = 0; slot < capacity_; ++slot) {
      if (control_[slot] < kEmpty) fn(KeyAt(slot), RowAt(slot));
    }
  }

 private:
  // Of a key that is not in its first group, which has no empty slot, and may be in another one.
  static constexpr uint32_t kElsewhere = kNone - 1;

  // Key and row, packed: 12 bytes, so that one entry is nearly always one cache line.
  static constexpr size_t kEntryBytes = sizeof(Key) + sizeof(uint32_t);

  static uint8_t Tag(uint64_t hash) { return hash & 0x7f; }
  uint64_t FirstGroup(uint64_t hash) const { return (hash >> 7) & group_mask_; }
  char* EntryAt(uint32_t slot) const { return entries_ + slot * kEntryBytes; }
  Key KeyAt(uint32_t slot) const {
    Key key;
    std::memcpy(&key, EntryAt(slot), sizeof(key));
    return key;
  }
  uint32_t RowAt(uint32_t slot) const {
    uint32_t row;
    std::memcpy(&row, EntryAt(slot) + sizeof(Key), sizeof(row));
    return row;
  }
  uint32_t FindSlot(Key key, uint64_t hash) const;
  Status Rehash(uint64_t capacity);

  uint8_t* control_ = nullptr;
  char* entries_ = nullptr;
  uint64_t group_mask_ = 0;
  uint32_t capacity_ = 0;  // slots; a power of two, or 0
  uint32_t size_ = 0;
  uint32_t room_ = 0;  // how many empty slots may still be filled before the load is 7/8
  PageBuffer memory_;
};

}  // namespace sok
