// How what a table holds goes out and comes back: snapshots and restores.
#include <algorithm>
#include <utility>

#include "core/policies/admission_counts.h"
#include "core/tables/row_checks.h"
#include "core/tables/table.h"

namespace sok {
namespace {

// What the slots of a rule are, which start as the contents say.
Result<std::vector<Slot>> SlotsOf(const TableContents& contents, int dim) {
  std::vector<Slot> slots;
  if (!contents.rule.empty()) {
    auto optimizer = MakeRowOptimizer(contents.rule, {});
    if (!optimizer.ok()) return optimizer.status();
    slots = optimizer.value()->slots(dim);
  }
  int floats = 0;
  for (const Slot& slot : slots) floats += slot.width;
  if (floats != contents.slot_floats) {
    return InvalidArgument(
        "rule '{rule}' keeps {expected} slot values a row at dim {dim}, got {got}",
        {{"rule", RuleName{contents.rule}},
         {"expected", floats},
         {"dim", dim},
         {"got", contents.slot_floats}});
  }
  const float* start = contents.slot_start;
  for (Slot& slot : slots) {
    slot.initial = *start;
    start += slot.width;
  }
  return Result<std::vector<Slot>>(std::move(slots));
}

}  // namespace

Result<AdmissionChunks> Table::CountsOf(const TableContents& contents) const {
  if (contents.admission.empty()) return AdmissionChunks{};
  auto counts = ReadCounts(contents.admission);
  if (!counts.ok()) return counts.status();
  if (admission_ == nullptr) return AdmissionChunks{};
  const AdmissionConfig config = admission_->config(), &saved = counts.value().config;
  if (!SameAdmission(config, saved)) {
    return InvalidArgument("expected counts of the table's admission, " + Described(config) +
                           ", got those of " + Described(saved) +
                           "; give the table that one, or restore without counts");
  }
  return Result<AdmissionChunks>(std::move(counts.value().chunks));
}

Result<TableState> Table::CheckRestore(const TableContents& contents,
                                       const ParallelFor& parallel_for) const {
  Status status = CheckRange(contents.rows.keys, contents.n);
  if (!status.ok()) return status;
  if (config_.max_rows > 0 && contents.n > config_.max_rows) {
    return Status(Code::kResourceExhausted,
                  "a table of at most " + std::to_string(config_.max_rows) +
                      " rows cannot take up " + std::to_string(contents.n));
  }
  auto slots = SlotsOf(contents, config_.dim);
  if (!slots.ok()) return slots.status();
  TableState state{contents.rule, std::move(slots.value()), contents.steps};
  status = CheckRows(state, config_.dim, contents, parallel_for);
  if (!status.ok()) return status;
  const auto counts = CountsOf(contents);
  if (!counts.ok()) return counts.status();
  if (admission_ != nullptr) status = admission_->CheckChunks(counts.value());
  if (!status.ok()) return status;
  return Result<TableState>(std::move(state));
}

Result<RestoreOutcome> Table::Restore(const TableContents& contents,
                                      const ParallelFor& parallel_for) {
  auto checked = CheckRestore(contents, parallel_for);
  if (!checked.ok()) return checked.status();
  TableState state = std::move(checked.value());
  auto counts = CountsOf(contents);
  if (!counts.ok()) return counts.status();
  RestoreOutcome outcome;
  outcome.dropped_counts = admission_ == nullptr && !contents.admission.empty();
  outcome.dropped_times = !SharesClock(contents);

  auto layout = std::make_shared<const RowLayout>(config_.dim, state.slots);
  std::lock_guard<std::mutex> commit(commit_mu_);
  DropDeposits();
  ++removals_;
  if (evictor_ != nullptr) evictor_->Forget();
  if (ticks_ != nullptr) {
    *ticks_ =
        static_cast<uint32_t>(outcome.dropped_times ? std::min<int64_t>(contents.steps, UINT32_MAX)
                                                    : contents.step_clock);
  }
  const uint32_t now = this->now();
  const auto time_of = [&](size_t i) {
    if (outcome.dropped_times) return now;
    return static_cast<uint32_t>(std::min<int64_t>(contents.rows.update_times[i], now));
  };
  // Which rows of the contents the table takes up; empty: all.
  std::vector<size_t> places;
  std::vector<Key> kept;
  const Key* keys = contents.rows.keys;
  size_t n = contents.n;
  if (clock_->ttl() > 0) {
    for (size_t i = 0; i < n; ++i) {
      if (clock_->Expired(time_of(i), now)) continue;
      places.push_back(i);
      kept.push_back(keys[i]);
    }
    keys = kept.data();
    n = kept.size();
  }
  const int dim = config_.dim, slot_floats = contents.slot_floats;
  Status status = store_->Replace(
      layout, state, keys, n, now,
      [&](size_t place, RowRef row, bool) {
        const size_t i = places.empty() ? place : places[place];
        std::copy_n(contents.rows.embeddings + i * dim, dim, row.embedding);
        std::copy_n(contents.rows.slots + i * slot_floats, slot_floats, row.embedding + dim);
        row.meta->update_num = static_cast<uint32_t>(contents.rows.update_nums[i]);
        row.meta->update_time = time_of(i);
      },
      parallel_for);
  // After an error too, the store's layout tells which rows it has.
  if (store_->layout() == layout) state_ = std::move(state);
  if (status.ok() && admission_ != nullptr) status = admission_->Restore(counts.value());
  if (!status.ok()) return status;
  return outcome;
}

Status Table::Snapshot::Write(const WritableRowColumns& columns) const {
  const size_t size = rows_->size();
  size_t i = 0;
  const Status status = rows_->ForEach([&](Key key, RowRef row) {
    const size_t at = i++;
    if (at >= size) return;
    if (columns.keys != nullptr) columns.keys[at] = key;
    if (columns.embeddings != nullptr) {
      std::copy_n(row.embedding, dim_, columns.embeddings + at * dim_);
    }
    if (columns.slots != nullptr) {
      std::copy_n(row.embedding + dim_, slot_floats(), columns.slots + at * slot_floats());
    }
    if (columns.update_nums != nullptr) columns.update_nums[at] = row.meta->update_num;
    if (columns.update_times != nullptr) columns.update_times[at] = row.meta->update_time;
  });
  if (!status.ok() || i == size) return status;
  return Status(Code::kInternal, "expected " + std::to_string(size) +
                                     " rows in what an export reads, found " + std::to_string(i) +
                                     "; what it has written is of no use");
}

Result<std::vector<std::string>> Table::Snapshot::DumpAdmission() const {
  if (admission_ == nullptr) return std::vector<std::string>{};
  return DumpCounts(*admission_);
}

Result<Table::Snapshot> Table::Freeze() {
  Snapshot snapshot;
  snapshot.commits_ = std::unique_lock<std::mutex>(commit_mu_);
  auto rows = store_->Freeze();
  if (!rows.ok()) return rows.status();
  snapshot.rows_ = std::move(rows.value());
  snapshot.admission_ = admission_;
  snapshot.state_ = state_;
  if (ticks_ != nullptr) snapshot.step_clock_ = ticks_->load();
  snapshot.dim_ = config_.dim;
  snapshot.slot_start_ = RowLayout(config_.dim, state_.slots).slot_start();
  return Result<Snapshot>(std::move(snapshot));
}

}  // namespace sok
