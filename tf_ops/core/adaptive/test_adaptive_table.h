// Helpers for tests of an adaptive table: making one, and lookups, deposits and commits of vectors.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/adaptive/adaptive_table.h"
#include "core/base/test_result.h"
#include "core/base/test_threads.h"
#include "core/tables/test_contents.h"

namespace sok {

constexpr int kAdaptiveDim = 3;

// There are so many counters that a few keys do not meet in them: counts are exact.
inline AdaptiveConfig ExactConfig(uint64_t buckets, uint32_t promote_after) {
  AdaptiveConfig config;
  config.static_buckets = buckets;
  config.promote_after = promote_after;
  config.sketch_capacity = 20000;
  return config;
}

struct AdaptiveRowsConfig {
  bool step_clock = false;  // the clock of own rows counts steps
};

inline Result<std::unique_ptr<AdaptiveTable>> TryAdaptive(const AdaptiveConfig& config,
                                                          const AdaptiveRowsConfig& of_rows = {}) {
  TableSpec rows;
  rows.dim = kAdaptiveDim;
  rows.step_clock = of_rows.step_clock;
  auto own = Table::Make(rows);
  if (!own.ok()) return own.status();
  rows.direct = true;
  rows.owners = config.owners;
  rows.owner = config.owner;
  rows.max_rows = (config.static_buckets + config.owners - 1) / config.owners;
  auto statics = Table::Make(rows);
  if (!statics.ok()) return statics.status();
  return AdaptiveTable::Make(std::move(own.value()), std::move(statics.value()), config);
}

inline std::unique_ptr<AdaptiveTable> MakeAdaptive(const AdaptiveConfig& config,
                                                   const AdaptiveRowsConfig& rows = {}) {
  return Value(TryAdaptive(config, rows));
}

// A batch that owns what it points to, as an op's tensors do. Where counts or mask are empty, the
// pointer is null.
struct AdaptiveBatch {
  std::vector<Key> keys;
  std::vector<int64_t> counts;
  std::vector<int32_t> mask;

  size_t size() const { return keys.size(); }
  AdaptiveKeys View() const {
    const auto held = std::make_shared<const AdaptiveBatch>(*this);
    AdaptiveKeys view;
    view.keys = held->keys.data();
    view.counts = counts.empty() ? nullptr : held->counts.data();
    view.mask = mask.empty() ? nullptr : held->mask.data();
    view.n = keys.size();
    view.hold = held;
    return view;
  }
};

inline Status TryLook(AdaptiveTable& table, const AdaptiveBatch& batch, bool training,
                      std::vector<float>* out, const ParallelFor& parallel_for = SerialFor) {
  out->assign(batch.size() * kAdaptiveDim, -77.0f);
  return table.Lookup(batch.View(), training, out->data(), parallel_for);
}

inline std::vector<float> Look(AdaptiveTable& table, const AdaptiveBatch& batch, bool training,
                               const ParallelFor& parallel_for = SerialFor) {
  std::vector<float> out;
  const Status status = TryLook(table, batch, training, &out, parallel_for);
  REQUIRE_MESSAGE(status.ok(), status.message());
  return out;
}

// Returns a batch with one key, so many times.
inline AdaptiveBatch Times(Key key, size_t times) { return {std::vector<Key>(times, key), {}, {}}; }

inline void DepositOn(AdaptiveTable& table, const AdaptiveBatch& batch,
                      const std::vector<float>& gradients, float* anchor_gradient = nullptr) {
  const auto hold = std::make_shared<const std::vector<float>>(gradients);
  REQUIRE(table.Deposit(batch.View(), hold, hold->data(), nullptr, {anchor_gradient}).ok());
}

inline void DepositOnes(AdaptiveTable& table, const AdaptiveBatch& batch,
                        float* anchor_gradient = nullptr) {
  DepositOn(table, batch, std::vector<float>(batch.size() * kAdaptiveDim, 1.0f), anchor_gradient);
}

inline CommitOptions Options(const std::string& rule, double rate = 0.5) {
  CommitOptions options;
  options.rule = rule;
  options.hypers = {{"learning_rate", rate}};
  return options;
}

inline CommitOutcome CommitOn(AdaptiveTable& table, const CommitOptions& options,
                              const ParallelFor& parallel_for = SerialFor) {
  return Value(table.Commit(options, parallel_for));
}

// Makes a step of SGD that changes nothing but the number of steps.
inline void IdleStep(AdaptiveTable& table, Key key = 0) {
  DepositOn(table, {{key}, {}, {0}}, std::vector<float>(kAdaptiveDim, 0.0f));
  CommitOn(table, Options("sgd"));
}

struct RowContents {
  std::vector<float> embedding, slots;
  int64_t update_num;
  int64_t update_time = 0;  // two tables that are trained alike need not be in the same second
  bool operator==(const RowContents& other) const {
    return embedding == other.embedding && slots == other.slots && update_num == other.update_num;
  }
};
using RowsByKey = std::map<Key, RowContents>;

inline RowsByKey ContentsOf(const Table::Snapshot& snapshot) {
  const OwnedContents owned = Owned(snapshot, kAdaptiveDim);
  RowsByKey contents;
  for (size_t i = 0; i < owned.keys.size(); ++i) {
    const auto embedding = owned.embeddings.begin() + i * kAdaptiveDim;
    const auto slots = owned.slots.begin() + i * owned.slot_floats;
    contents[owned.keys[i]] = {{embedding, embedding + kAdaptiveDim},
                               {slots, slots + owned.slot_floats},
                               owned.update_nums[i],
                               owned.update_times[i]};
  }
  return contents;
}

// Everything that a table holds, in an order that says nothing of where it lay.
struct AdaptiveState {
  RowsByKey own, statics;
  TableState own_state, statics_state;
  int64_t step_clock;  // of own rows
  std::vector<float> slot_start;
  std::string sketch;
  std::vector<int64_t> counters;
};

inline AdaptiveState ContentsOf(AdaptiveTable& table) {
  const AdaptiveTable::Snapshot snapshot = Value(table.Freeze());
  return {ContentsOf(snapshot.own),  ContentsOf(snapshot.statics),
          snapshot.own.state(),      snapshot.statics.state(),
          snapshot.own.step_clock(), snapshot.own.slot_start(),
          snapshot.sketch,           snapshot.counters};
}

inline bool Same(const AdaptiveState& a, const AdaptiveState& b) {
  return a.own == b.own && a.statics == b.statics && a.own_state.rule == b.own_state.rule &&
         a.own_state.steps == b.own_state.steps && a.statics_state.rule == b.statics_state.rule &&
         a.statics_state.steps == b.statics_state.steps && a.sketch == b.sketch &&
         a.counters == b.counters;
}

// Its rows as Restore takes them.
inline OwnedContents RestoreRows(const RowsByKey& rows, const TableState& state, int64_t step_clock,
                                 const std::vector<float>& start) {
  OwnedContents owned;
  owned.state = state;
  owned.step_clock = step_clock;
  owned.slot_start = start;
  owned.slot_floats = static_cast<int>(start.size());
  for (const auto& [key, row] : rows) {
    owned.keys.push_back(key);
    owned.embeddings.insert(owned.embeddings.end(), row.embedding.begin(), row.embedding.end());
    owned.slots.insert(owned.slots.end(), row.slots.begin(), row.slots.end());
    owned.update_nums.push_back(row.update_num);
    owned.update_times.push_back(row.update_time);
  }
  return owned;
}

struct RestoreParts {
  explicit RestoreParts(const AdaptiveState& from)
      : own(RestoreRows(from.own, from.own_state, from.step_clock, from.slot_start)),
        statics(RestoreRows(from.statics, from.statics_state, from.step_clock, from.slot_start)),
        sketch(from.sketch),
        counters(from.counters) {}
  Status Into(AdaptiveTable& table, const ParallelFor& parallel_for = SerialFor) const {
    OwnedContents of_own = own, of_statics = statics;
    return table.Restore({of_own.View(), of_statics.View(), sketch, counters}, parallel_for)
        .status();
  }
  OwnedContents own, statics;
  std::string sketch;
  std::vector<int64_t> counters;
};

inline std::vector<Key> OwnKeys(AdaptiveTable& table) {
  std::vector<Key> keys;
  for (const auto& [key, row] : ContentsOf(Value(table.own()->Freeze()))) keys.push_back(key);
  return keys;
}

// Returns the embedding of one key, as an evaluation sees it.
inline std::vector<float> See(AdaptiveTable& table, Key key) {
  return Look(table, {{key}, {}, {}}, false);
}
inline std::vector<float> SeeStatic(AdaptiveTable& table, Key key) {
  return Look(table, {{key}, {}, {0}}, false);
}

// Returns the first `n` keys from `from` on that share the static row of `bucket`.
inline std::vector<Key> KeysOfBucket(uint64_t bucket, uint64_t buckets, size_t n, Key from = 0) {
  std::vector<Key> keys;
  for (Key key = from; keys.size() < n; ++key) {
    if (AdaptiveBucket(key, buckets) == bucket) keys.push_back(key);
  }
  return keys;
}

}  // namespace sok
