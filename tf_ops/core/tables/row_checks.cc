#include "core/tables/row_checks.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <sstream>
#include <utility>

#include "core/base/status_macros.h"
#include "core/partition/partition.h"

namespace sok {
namespace {

std::string Text(double number) {
  std::ostringstream text;
  text << number;
  return text.str();
}

std::string Signed(Key key) { return std::to_string(static_cast<int64_t>(key)); }

Status CheckUpdates(Key key, int64_t updates) {
  if (updates >= 0 && updates <= RowMeta::kMostUpdates) return Status();
  return InvalidArgument("expected a number of updates in [0, 2^32 - 1], got " +
                         std::to_string(updates) + " for key " + Signed(key));
}

// `latest` is the time of a step clock or, for times in seconds, the last time that a row can have.
Status CheckTime(Key key, int64_t time, int64_t latest) {
  if (time >= 0 && time <= latest) return Status();
  const bool beyond_clock = time > 0 && time <= TableContents::kLatest;
  return InvalidArgument("expected the time of an update in [0, " + std::to_string(latest) + "], " +
                         (beyond_clock ? "where the step clock stands" : "in seconds or steps") +
                         ", got " + std::to_string(time) + " for key " + Signed(key));
}

Status CheckClock(int64_t step_clock) {
  if (step_clock >= TableContents::kSeconds && step_clock <= TableContents::kLatest)
    return Status();
  return InvalidArgument(
      "expected a step clock in [0, 2^32 - 1], or -1 for times in seconds, got " +
      std::to_string(step_clock));
}

Status TwiceStatus(Key key) {
  return InvalidArgument("expected every key once, got key " + Signed(key) +
                         " twice; whatever wrote it mixed up rows of two tables or two times");
}

}  // namespace

SlotChecks::SlotChecks(const std::string& rule, int dim) : dim_(dim) {
  size_t begin = 0;
  for (const Slot& slot : RowOptimizerSlots(rule, dim)) {
    const size_t end = begin + static_cast<size_t>(slot.width);
    if (slot.sums_squares) squares_.push_back({slot.name, begin, end});
    begin = end;
  }
}

Status SlotChecks::Check(Key key, const float* embedding, const float* slots) const {
  for (const Squares& squares : squares_) {
    for (size_t i = squares.begin; i < squares.end; ++i) {
      if (slots[i] >= 0) continue;
      const bool diverged =
          std::isnan(slots[i]) &&
          std::any_of(embedding, embedding + dim_, [](float x) { return std::isnan(x); });
      if (diverged) continue;
      return InvalidArgument("expected the slot '" + squares.name + "' of key " + Signed(key) +
                             " to be at least 0, got " + Text(slots[i]) +
                             "; no training leaves that, so save the rows anew");
    }
  }
  return Status();
}

Status CheckState(const TableState& state, int dim) {
  if (state.steps < 0 || state.steps > TableState::kMostSteps) {
    return InvalidArgument("expected a number of steps in [0, 2^53], got " +
                           std::to_string(state.steps));
  }
  std::vector<Slot> expected;
  if (!state.rule.empty()) {
    SOK_ASSIGN_OR_RETURN(const auto optimizer, MakeRowOptimizer(state.rule, {}));
    expected = optimizer->slots(dim);
  }
  const auto shown = [](const std::vector<Slot>& slots) {
    std::string text;
    for (const Slot& slot : slots) {
      text += (text.empty() ? "" : ", ") + slot.name + " of " + std::to_string(slot.width);
    }
    return text.empty() ? std::string("none") : text;
  };
  const bool same = std::equal(
      expected.begin(), expected.end(), state.slots.begin(), state.slots.end(),
      [](const Slot& a, const Slot& b) { return a.name == b.name && a.width == b.width; });
  if (!same) {
    return InvalidArgument(
        "expected the slots of optimizer '{rule}' at dimension {dim}, {expected}, got {got}",
        {{"rule", RuleName{state.rule}},
         {"dim", dim},
         {"expected", shown(expected)},
         {"got", shown(state.slots)}});
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    const float initial = state.slots[i].initial;
    const bool sums_squares = expected[i].sums_squares;
    if (std::isfinite(initial) && (initial >= 0 || !sums_squares)) continue;
    return InvalidArgument("expected the slot '" + expected[i].name +
                           "' to start from a finite number" +
                           (sums_squares ? " of at least 0" : "") + ", got " + Text(initial));
  }
  return Status();
}

Status SortAndCheckDistinct(std::vector<Key>* keys) {
  std::sort(keys->begin(), keys->end());
  const auto twice = std::adjacent_find(keys->begin(), keys->end());
  return twice == keys->end() ? Status() : TwiceStatus(*twice);
}

Status CheckDistinct(const Key* keys, size_t n, const ParallelFor& parallel_for) {
  if (n > INT32_MAX) {
    std::vector<Key> sorted(keys, keys + n);
    return SortAndCheckDistinct(&sorted);
  }
  std::vector<int32_t> positions(n);
  const size_t distinct =
      UniqueAndPartition(keys, n, 1, positions.data(), parallel_for).keys.size();
  if (distinct == n) return Status();
  std::vector<bool> seen(distinct, false);
  for (size_t i = 0; i < n; ++i) {
    if (seen[positions[i]]) return TwiceStatus(keys[i]);
    seen[positions[i]] = true;
  }
  return Status();
}

Status CheckRows(const TableState& state, int dim, const TableContents& contents,
                 const ParallelFor& parallel_for) {
  const RowColumns& rows = contents.rows;
  SOK_RETURN_IF_ERROR(CheckState(state, dim));
  SOK_RETURN_IF_ERROR(CheckClock(contents.step_clock));
  SOK_RETURN_IF_ERROR(CheckDistinct(rows.keys, contents.n, parallel_for));
  const int64_t latest =
      contents.step_clock == TableContents::kSeconds ? TableContents::kLatest : contents.step_clock;
  const SlotChecks checks(state.rule, dim);
  const auto slot_floats = static_cast<size_t>(RowLayout(dim, state.slots).slot_floats());
  std::mutex mu;
  Status failure;
  parallel_for(static_cast<int64_t>(contents.n), 5 + static_cast<int64_t>(slot_floats) / 4,
               [&](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i) {
                   const Key key = rows.keys[i];
                   Status status = CheckUpdates(key, rows.update_nums[i]);
                   if (status.ok()) status = CheckTime(key, rows.update_times[i], latest);
                   if (status.ok()) {
                     status =
                         checks.Check(key, rows.embeddings + i * dim, rows.slots + i * slot_floats);
                   }
                   if (status.ok()) continue;
                   std::lock_guard<std::mutex> guard(mu);
                   if (failure.ok()) failure = std::move(status);
                   return;
                 }
               });
  return failure;
}

}  // namespace sok
