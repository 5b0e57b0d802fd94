// Helpers for tests of exports and restores: contents of a table that own their memory.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/test_result.h"
#include "core/tables/table.h"

namespace sok {

struct OwnedContents {
  TableState state;
  int64_t step_clock = TableContents::kSeconds;
  int slot_floats = 0;
  std::vector<Key> keys;
  std::vector<float> embeddings, slots, slot_start;
  std::vector<int64_t> update_nums, update_times;
  std::string admission;

  // As Restore takes it. Where a test names no counts or times, they are 0.
  TableContents View() {
    update_nums.resize(keys.size());
    update_times.resize(keys.size());
    TableContents contents;
    contents.rule = state.rule;
    contents.steps = state.steps;
    contents.step_clock = step_clock;
    contents.n = keys.size();
    contents.rows.keys = keys.data();
    contents.rows.embeddings = embeddings.data();
    contents.rows.slots = slots.data();
    contents.rows.update_nums = update_nums.data();
    contents.rows.update_times = update_times.data();
    contents.slot_floats = slot_floats;
    contents.slot_start = slot_start.data();
    contents.admission = admission;
    return contents;
  }
};

inline OwnedContents Owned(const Table::Snapshot& snapshot, int dim) {
  OwnedContents owned;
  owned.state = snapshot.state();
  owned.step_clock = snapshot.step_clock();
  owned.slot_floats = snapshot.slot_floats();
  owned.slot_start = snapshot.slot_start();
  const size_t n = snapshot.size();
  owned.keys.resize(n);
  owned.embeddings.resize(n * dim);
  owned.slots.resize(n * owned.slot_floats);
  owned.update_nums.resize(n);
  owned.update_times.resize(n);
  REQUIRE(snapshot
              .Write({owned.keys.data(), owned.embeddings.data(), owned.slots.data(),
                      owned.update_nums.data(), owned.update_times.data()})
              .ok());
  for (const std::string& piece : Value(snapshot.DumpAdmission())) owned.admission += piece;
  return owned;
}

inline Status Restore(Table& table, OwnedContents contents, const ParallelFor& parallel_for) {
  return table.Restore(contents.View(), parallel_for).status();
}

}  // namespace sok
