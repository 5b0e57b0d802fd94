// The contents of a table, for a file or an op's tensors: Table::Snapshot writes it, Table::Restore
// reads it.
//
// The rows are columns in the caller's memory, such as the tensors of an op or the arrays of a
// test, so that a table that fills half of the memory is not copied twice. A dump, whose rows lie
// on disk, is written and read in pieces: each has some of the rows, and does not repeat the rule
// and its steps, which the description of the group has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include "core/base/types.h"

namespace sok {

// Columns of n rows. Writers leave out columns that are null.
template <bool kWritable>
struct BasicRowColumns {
  template <typename T>
  using Column = std::conditional_t<kWritable, T*, const T*>;

  Column<Key> keys = nullptr;             // (n)
  Column<float> embeddings = nullptr;     // (n, dim)
  Column<float> slots = nullptr;          // (n, slot_floats)
  Column<int64_t> update_nums = nullptr;  // (n) the updates of each row
  // (n) The time of the last update, or the time when the row was made, by the table's clock.
  Column<int64_t> update_times = nullptr;
};
using RowColumns = BasicRowColumns<false>;
using WritableRowColumns = BasicRowColumns<true>;

struct TableContents {
  // A step_clock of this value says that times are seconds since 1970.
  static constexpr int64_t kSeconds = -1;
  static constexpr int64_t kLatest = UINT32_MAX;  // the last time that a row can have

  std::string rule;   // of the last commit; empty before the first
  int64_t steps = 0;  // commits that found deposits
  // The time of the table's clock, if it counts steps; else kSeconds.
  int64_t step_clock = kSeconds;
  size_t n = 0;  // rows, with distinct keys
  RowColumns rows;
  int slot_floats = 0;
  const float* slot_start = nullptr;  // (slot_floats) start values of the slots of later rows
  // The result of DumpCounts of the table's admission; empty if the table has none.
  std::string_view admission;
};

// Says which parts of the contents a Restore has left out, since the table's config differs from
// the saved one.
struct RestoreOutcome {
  // True if counts of keys were left out: the table has no admission, so every key gets a row.
  bool dropped_counts = false;
  // True if times were left out, since one of the two clocks counts steps and the other one
  // seconds. All rows get the present time.
  bool dropped_times = false;
};

}  // namespace sok
