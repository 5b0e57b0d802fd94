// Groups the items of a batch: by a small number, with a counting sort, or by value, in the order
// in which values appear first. Both keep the order of equal items.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/hash.h"

namespace sok {

// Places items as a counting sort does. The caller counts the group of every item, calls Start,
// takes a place for every item in the same order, and calls Finish. Then group g holds the places
// [starts[g], starts[g + 1]).
class CountingSort {
 public:
  // starts (groups + 1) is the caller's, and is set to zeros here. There are fewer than 2^32 items.
  CountingSort(uint32_t* starts, uint32_t groups) : starts_(starts), groups_(groups) {
    std::fill_n(starts, groups + 1, 0);
  }

  // Items are counted one place up, so that the sums are the starts.
  void Count(uint64_t group) { ++starts_[group + 1]; }
  void Start() {
    for (uint32_t group = 0; group < groups_; ++group) starts_[group + 1] += starts_[group];
  }
  // A start moves on with every place that is taken, up to where the next group begins.
  uint32_t Take(uint64_t group) { return starts_[group]++; }
  void Finish() {
    std::copy_backward(starts_, starts_ + groups_, starts_ + groups_ + 1);
    starts_[0] = 0;
  }

 private:
  uint32_t* const starts_;
  const uint32_t groups_;
};

// Numbers distinct values from 0, in the order in which they appear first. The caller keeps the
// values: value_of(number) returns the value with that number. Not thread-safe; an object that is
// used again keeps its memory.
class DistinctIndex {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  // Forgets all values. From here on there are at most n distinct ones, fewer than 2^32 - 1.
  void Reset(size_t n) {
    size_t cells = 16;
    while (cells < 2 * n) cells *= 2;
    cells_.assign(cells, 0);
    size_ = 0;
  }

  // Returns the number of a value. If it is size(), the value is new and has that number from now.
  template <typename ValueOf>
  uint32_t FindOrAdd(uint64_t value, const ValueOf& value_of) {
    uint32_t& cell = cells_[CellOf(value, value_of)];
    if (cell == 0) cell = ++size_;
    return cell - 1;
  }
  // Returns the number of a value, or kNone.
  template <typename ValueOf>
  uint32_t Find(uint64_t value, const ValueOf& value_of) const {
    return cells_[CellOf(value, value_of)] - 1;
  }
  uint32_t size() const { return size_; }

 private:
  // Returns where the value is, or the free cell where it would be. The hash is not Mix64(value),
  // since the values are often from one shard, which was chosen by bits of Mix64(value).
  template <typename ValueOf>
  size_t CellOf(uint64_t value, const ValueOf& value_of) const {
    const size_t mask = cells_.size() - 1;
    size_t cell = Mix64(value ^ 0x9e3779b97f4a7c15ull) & mask;
    while (cells_[cell] != 0 && value_of(cells_[cell] - 1) != value) cell = (cell + 1) & mask;
    return cell;
  }

  std::vector<uint32_t> cells_;  // a power of two; 0 if free, else a number and 1
  uint32_t size_ = 0;
};

}  // namespace sok
