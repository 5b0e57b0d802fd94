// Finds the counter of any 64-bit key, by open addressing with linear probing.
#pragma once

#include <cstdint>

#include "core/base/hash.h"
#include "core/base/page_memory.h"
#include "core/base/status.h"
#include "core/base/types.h"

namespace sok {

// Erasing moves the following counters back (Knuth, TAOCP vol. 3, 6.4, algorithm R), so the table
// stays as fast as if erased keys had never been there. Not thread-safe.
class CounterTable {
 public:
  static uint64_t Hash(Key key) { return Mix64(key + 0x9e3779b97f4a7c15ull); }

  // Returns the key's counter, or null. It is valid until the next Reserve, Insert or Erase, and
  // must not be set to 0.
  uint32_t* Find(Key key, uint64_t hash) {
    Entry* entry = FindEntry(key, hash);
    return entry == nullptr ? nullptr : &entry->count;
  }
  const uint32_t* Find(Key key, uint64_t hash) const {
    const Entry* entry = FindEntry(key, hash);
    return entry == nullptr ? nullptr : &entry->count;
  }

  // Makes room for `more` keys beyond those that are there.
  // Errors: kResourceExhausted; nothing has changed then.
  Status Reserve(uint64_t more);

  // Inserts a key. It must be absent, the count above 0, and room for it reserved.
  void Insert(Key key, uint64_t hash, uint32_t count);

  // Erases a key. Returns false if it is absent.
  bool Erase(Key key, uint64_t hash);

  uint64_t size() const { return size_; }
  uint64_t bytes() const { return memory_.bytes(); }

  // Calls fn(key, count) for every key, in the order of the slots.
  template <typename Fn>
  void ForEach(const Fn& fn) const {
    for (uint64_t slot = 0; slot < capacity_; ++slot) {
      if (entries_[slot].count != 0) fn(entries_[slot].key(), entries_[slot].count);
    }
  }

 private:
  // The key in halves, because a uint64_t would pad the entry from 12 bytes to 16. Zeroed memory is
  // a table of empty slots: count 0.
  struct Entry {
    uint32_t low, high, count;
    Key key() const { return uint64_t{high} << 32 | low; }
  };

  Entry* FindEntry(Key key, uint64_t hash) const {
    if (capacity_ == 0) return nullptr;
    for (uint64_t slot = hash & mask();; slot = (slot + 1) & mask()) {
      if (entries_[slot].count == 0) return nullptr;
      if (entries_[slot].key() == key) return &entries_[slot];
    }
  }
  uint64_t mask() const { return capacity_ - 1; }

  Entry* entries_ = nullptr;
  uint64_t capacity_ = 0;  // slots; a power of two, or 0
  uint64_t size_ = 0;
  PageBuffer memory_;
};

}  // namespace sok
