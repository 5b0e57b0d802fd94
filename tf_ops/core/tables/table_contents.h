// The contents of a table, for a file or an op's tensors: Table::Snapshot writes it, Table::Restore
// reads it.
//
// The rows are columns in memory of the caller's, the tensors of an op or the arrays of a test: a
// table that fills half of the memory is not copied twice. A dump, whose rows lie on disk, is
// written and read in pieces: contents of some rows each, without what stands in the group's
// description, the rule and its steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include "core/base/types.h"

namespace sok {

// Columns of n rows. Writers leave out those that are null.
template <bool kWritable>
struct BasicRowColumns {
  template <typename T>
  using Column = std::conditional_t<kWritable, T*, const T*>;

  Column<Key> keys = nullptr;             // (n)
  Column<float> embeddings = nullptr;     // (n, dim)
  Column<float> slots = nullptr;          // (n, slot_floats)
  Column<int64_t> update_nums = nullptr;  // (n) the updates of each row
  // (n) by the table's clock, of the last of them, or of when the row was made.
  Column<int64_t> update_times = nullptr;
};
using RowColumns = BasicRowColumns<false>;
using WritableRowColumns = BasicRowColumns<true>;

struct TableContents {
  // Instead of a step clock's time: times are seconds since 1970.
  static constexpr int64_t kSeconds = -1;
  static constexpr int64_t kLatest = UINT32_MAX;  // time of a row

  std::string rule;   // of the last commit; empty before the first
  int64_t steps = 0;  // commits that found deposits
  // The time of the table's clock, where it counts steps; else kSeconds.
  int64_t step_clock = kSeconds;
  size_t n = 0;  // rows, with distinct keys
  RowColumns rows;
  int slot_floats = 0;
  const float* slot_start = nullptr;  // (slot_floats) that the slots of rows to come start from
  // The result of DumpCounts of the table's admission; empty: it has none.
  std::string_view admission;
};

// The parts that a Restore has left out, since the table's config differs from the one that was
// saved.
struct RestoreOutcome {
  // The table has no admission, so every key gets a row: there is nothing to count.
  bool dropped_counts = false;
  // One of the two clocks counts steps and the other one seconds: rows are as old as now.
  bool dropped_times = false;
};

}  // namespace sok
