// Which rows were used least: a heap whose entries may be out of date.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "core/base/types.h"

namespace sok {

struct UsedKey {
  uint32_t uses = 0;
  Key key = 0;
  bool operator>(const UsedKey& other) const {
    return uses != other.uses ? uses > other.uses : key > other.key;
  }
};

// Uses only grow between two calls of Clear. So an entry never says too many: the least one whose
// uses are still what it says is the least of all. Not thread-safe.
class LeastUsed {
 public:
  // Whether it knows every row. If not, Fill must come first.
  bool filled() const { return filled_; }
  void Fill(std::vector<UsedKey> rows) {
    heap_ = std::move(rows);
    std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
    filled_ = true;
  }
  void Clear() {
    heap_.clear();
    filled_ = false;
  }
  void Add(UsedKey row) {
    heap_.push_back(row);
    std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  }

  // Takes out the row of fewest uses, of equal ones that of the least key. uses_of(key) says how
  // many they are by now. False if there is none.
  template <typename UsesOf>
  bool Take(const UsesOf& uses_of, UsedKey* row) {
    while (!heap_.empty()) {
      *row = heap_.front();
      Pop();
      const uint32_t uses = uses_of(row->key);
      if (uses == row->uses) {
        // A row that went and came back may have several entries, which are equal by now.
        while (!heap_.empty() && !(heap_.front() > *row)) Pop();
        return true;
      }
      Add({uses, row->key});
    }
    return false;
  }

  size_t size() const { return heap_.size(); }
  uint64_t bytes() const { return heap_.capacity() * sizeof(UsedKey); }

 private:
  void Pop() {
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    heap_.pop_back();
  }

  std::vector<UsedKey> heap_;
  bool filled_ = false;
};

}  // namespace sok
