#include "core/dump/row_checks.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>
#include <utility>

#include "core/exchange.h"
#include "core/initializer.h"
#include "core/stores/group_meta.h"

namespace sok {
namespace {

// By Keras' names, which all rules share.
bool SumsSquares(const std::string& slot) {
  return slot == "velocity" || slot == "velocity_hat" || slot == "accumulator";
}

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

Status TwiceStatus(Key key) {
  return InvalidArgument("expected every key once, got key " + Signed(key) +
                         " twice; whatever wrote it mixed up rows of two tables or two times");
}

// Names the group, so that one bad group of many is found.
Status InGroup(const std::string& path, int group, const Status& status) {
  if (status.ok()) return status;
  return Status(status.code(),
                "'" + path + "', group " + std::to_string(group) + ": " + status.message());
}

// The keys come in any order, and are sorted here.
Status SortAndCheckDistinct(std::vector<Key>* keys) {
  std::sort(keys->begin(), keys->end());
  const auto twice = std::adjacent_find(keys->begin(), keys->end());
  return twice == keys->end() ? Status() : TwiceStatus(*twice);
}

Result<TableState> StateOf(const DumpGroup& group) {
  auto meta = GroupMeta::FromJson(group.meta);
  if (!meta.ok()) return meta.status();
  const GroupMeta& told = meta.value();
  if (told.dim != group.dim) {
    return Status(Code::kDataLoss, "its description has dimension " + std::to_string(told.dim) +
                                       ", its rows have " + std::to_string(group.dim));
  }
  if (Status status = CheckState(told.state, told.dim); !status.ok()) return status;
  const int floats = RowLayout(told.dim, told.state.slots).slot_floats();
  if (floats != group.slot_floats) {
    return Status(Code::kDataLoss, "its description has slots of " + std::to_string(floats) +
                                       " floats, its rows have " +
                                       std::to_string(group.slot_floats));
  }
  if (!told.initializer.empty()) {
    const auto made = Initializer::Make(told.initializer, told.initializer_a, told.initializer_b,
                                        told.seed, group.group);
    if (!made.ok()) return made.status();
  }
  return told.state;
}

}  // namespace

SlotChecks::SlotChecks(const std::vector<Slot>& slots, int dim) : dim_(dim) {
  size_t begin = 0;
  for (const Slot& slot : slots) {
    const size_t end = begin + static_cast<size_t>(slot.width);
    if (SumsSquares(slot.name)) squares_.push_back({slot.name, begin, end});
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
                             ", which sums squares, to be at least 0, got " + Text(slots[i]) +
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
    const auto optimizer = MakeRowOptimizer(state.rule, {});
    if (!optimizer.ok()) return optimizer.status();
    expected = optimizer.value()->slots(dim);
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
    return InvalidArgument("expected the slots of optimizer '" + state.rule + "' at dimension " +
                           std::to_string(dim) + ", " + shown(expected) + ", got " +
                           shown(state.slots));
  }
  for (const Slot& slot : state.slots) {
    if (std::isfinite(slot.initial) && (slot.initial >= 0 || !SumsSquares(slot.name))) continue;
    return InvalidArgument("expected the slot '" + slot.name + "' to start from a finite number" +
                           (SumsSquares(slot.name) ? " of at least 0" : "") + ", got " +
                           Text(slot.initial));
  }
  return Status();
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

Status CheckRows(const TableState& state, int dim, const Key* keys, size_t n,
                 const float* embeddings, const float* slots, const int64_t* update_nums,
                 const ParallelFor& parallel_for) {
  if (Status status = CheckState(state, dim); !status.ok()) return status;
  if (Status status = CheckDistinct(keys, n, parallel_for); !status.ok()) return status;
  const SlotChecks checks(state.slots, dim);
  const auto slot_floats = static_cast<size_t>(RowLayout(dim, state.slots).slot_floats());
  std::mutex mu;
  Status failure;
  parallel_for(static_cast<int64_t>(n), 5 + static_cast<int64_t>(slot_floats) / 4,
               [&](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i) {
                   Status status = CheckUpdates(keys[i], update_nums[i]);
                   if (status.ok()) {
                     status = checks.Check(keys[i], embeddings + i * dim, slots + i * slot_floats);
                   }
                   if (status.ok()) continue;
                   std::lock_guard<std::mutex> guard(mu);
                   if (failure.ok()) failure = std::move(status);
                   return;
                 }
               });
  return failure;
}

Status CheckDump(const DumpReader& reader, const std::string& path, const DumpProgress& progress) {
  std::map<int, SlotChecks> checks;
  for (const DumpGroup& group : reader.groups()) {
    const auto state = StateOf(group);
    if (!state.ok()) return InGroup(path, group.group, state.status());
    checks.emplace(group.group, SlotChecks(state.value().slots, group.dim));
  }
  // Rows are dumped in the order of their keys; only others need all keys at once.
  std::map<int, std::vector<Key>> unordered;
  std::optional<Key> last;
  int last_group = -1;
  Status status = reader.ForEachBlock(
      [&](const DumpGroup& group, const DumpRows& rows) {
        const SlotChecks& of_group = checks.at(group.group);
        const size_t stride = static_cast<size_t>(group.dim) + group.slot_floats;
        if (group.group != last_group) last.reset();
        last_group = group.group;
        for (size_t i = 0; i < rows.size; ++i) {
          if (last.has_value() && rows.keys[i] <= *last) unordered[group.group];
          last = rows.keys[i];
          const float* row = rows.floats + i * stride;
          const Status found = of_group.Check(rows.keys[i], row, row + group.dim);
          if (!found.ok()) return InGroup(path, group.group, found);
        }
        return Status();
      },
      progress);
  if (!status.ok() || unordered.empty()) return status;
  status = reader.ForEachBlock([&](const DumpGroup& group, const DumpRows& rows) {
    const auto found = unordered.find(group.group);
    if (found != unordered.end()) {
      found->second.insert(found->second.end(), rows.keys, rows.keys + rows.size);
    }
    return Status();
  });
  for (auto& [group, keys] : unordered) {
    if (status.ok()) status = InGroup(path, group, SortAndCheckDistinct(&keys));
  }
  return status;
}

Status CheckDamoDump(const DamoDumpReader& reader, const std::string& path) {
  std::map<int, std::vector<Key>> keys;
  Status status = reader.ForEach([&](int group, Key key, const float*) {
    keys[group].push_back(key);
    return Status();
  });
  for (auto& [group, of_group] : keys) {
    if (status.ok()) status = InGroup(path, group, SortAndCheckDistinct(&of_group));
  }
  return status;
}

}  // namespace sok
