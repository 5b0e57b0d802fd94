// A set of keys: open addressing in one array, for sets that are filled once and asked often.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "core/base/hash.h"
#include "core/base/types.h"

namespace sok {

// Not thread-safe.
class KeySet {
 public:
  // Makes room for so many keys.
  void Reserve(size_t keys) {
    size_t slots = kLeastSlots;
    while (slots < 2 * keys) slots *= 2;
    if (slots > slots_.size()) Rehash(slots);
  }
  // Returns whether the key is new.
  bool Insert(Key key) {
    if (key == kFree) return !std::exchange(has_free_, true);
    if (2 * (size_ + 1) > slots_.size()) Rehash(slots_.empty() ? kLeastSlots : 2 * slots_.size());
    Key& slot = slots_[Find(key)];
    if (slot == key) return false;
    slot = key;
    ++size_;
    return true;
  }
  bool Contains(Key key) const {
    if (key == kFree) return has_free_;
    return !slots_.empty() && slots_[Find(key)] == key;
  }
  size_t size() const { return size_ + (has_free_ ? 1 : 0); }

 private:
  static constexpr size_t kLeastSlots = 16;
  static constexpr Key kFree = 0x9e3779b97f4a7c15ull;  // marks a free slot; has_free_ is for itself

  // Returns the slot where the key is, or would be.
  size_t Find(Key key) const {
    const size_t mask = slots_.size() - 1;
    size_t slot = Mix64(key) & mask;
    while (slots_[slot] != kFree && slots_[slot] != key) slot = (slot + 1) & mask;
    return slot;
  }
  void Rehash(size_t slots) {
    const std::vector<Key> before = std::exchange(slots_, std::vector<Key>(slots, kFree));
    for (Key key : before) {
      if (key != kFree) slots_[Find(key)] = key;
    }
  }

  std::vector<Key> slots_;  // a power of two
  size_t size_ = 0;
  bool has_free_ = false;
};

// Returns each key once, in the order of first appearance.
inline std::vector<Key> DistinctKeys(const std::vector<Key>& keys) {
  KeySet met;
  met.Reserve(keys.size());
  std::vector<Key> distinct;
  for (Key key : keys) {
    if (met.Insert(key)) distinct.push_back(key);
  }
  return distinct;
}

}  // namespace sok
