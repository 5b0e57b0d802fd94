// Work on many tables at once. Internal to this room.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "core/base/types.h"

namespace sok {

// The work that a call has for one table.
struct TableWork {
  size_t table = 0;
  size_t items = 0;  // keys, or rows
  // True if the work may block on a lock whose holder waits for the pool, and so must run on the
  // calling thread.
  bool on_caller = false;
};

// Runs fn(table, parallel_for) for every table of the list. Tables with much to do run one after
// another, each on all threads. Tables with little to do run side by side, each on one thread, and
// get a parallel_for of one thread. item_cost is in nanoseconds.
inline void ForEachTable(
    const std::vector<TableWork>& tables, int64_t item_cost, const ParallelFor& parallel_for,
    const std::function<void(size_t table, const ParallelFor& parallel_for)>& fn) {
  constexpr size_t kLargeTable = 16384;
  constexpr int64_t kTableCost = 2000;  // in nanoseconds, for a table with any number of items
  size_t all = 0;
  for (const TableWork& work : tables) all += work.items;
  std::vector<TableWork> small;
  for (const TableWork& work : tables) {
    if (work.on_caller || work.items > kLargeTable || 4 * work.items > all) {
      fn(work.table, parallel_for);
    } else {
      small.push_back(work);
    }
  }
  if (small.empty()) return;
  // One thread does neighbors in the list, so tables with much and with little to do alternate in
  // it.
  std::sort(small.begin(), small.end(), [](const TableWork& a, const TableWork& b) {
    return a.items != b.items ? a.items > b.items : a.table < b.table;
  });
  std::vector<TableWork> mixed;
  for (size_t first = 0, last = small.size(); first < last;) {
    mixed.push_back(small[first++]);
    if (first < last) mixed.push_back(small[--last]);
  }
  const int64_t cost =
      kTableCost + item_cost * static_cast<int64_t>(all) / static_cast<int64_t>(small.size());
  parallel_for(static_cast<int64_t>(mixed.size()), cost, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) fn(mixed[i].table, SerialFor);
  });
}

}  // namespace sok
