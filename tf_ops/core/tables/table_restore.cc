// Snapshots and restores of a table's contents.
#include <algorithm>
#include <utility>

#include "core/base/status_macros.h"
#include "core/policies/admission_counts.h"
#include "core/tables/row_checks.h"
#include "core/tables/table.h"

namespace sok {
namespace {

// Returns the slots of the rule of the contents, with their start values.
Result<std::vector<Slot>> SlotsOf(const TableContents& contents, int dim) {
  std::vector<Slot> slots;
  if (!contents.rule.empty()) {
    SOK_ASSIGN_OR_RETURN(auto optimizer, MakeRowOptimizer(contents.rule, {}));
    slots = optimizer->slots(dim);
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

// The rows of contents that a table takes up: all that have not expired.
class TakenRows {
 public:
  // Rows whose time lies after `now` get the time `now`; with the last argument all rows do.
  TakenRows(const TableContents& contents, int dim, const Expiry& clock, uint32_t now, bool all_now)
      : contents_(contents), dim_(dim), now_(now), all_now_(all_now) {
    if (clock.ttl() == 0) return;
    filtered_ = true;
    for (size_t i = 0; i < contents.n; ++i) {
      if (clock.Expired(TimeOf(i), now)) continue;
      places_.push_back(i);
      kept_.push_back(contents.rows.keys[i]);
    }
  }

  const Key* keys() const { return filtered_ ? kept_.data() : contents_.rows.keys; }
  size_t n() const { return filtered_ ? kept_.size() : contents_.n; }

  // Fills the row of keys()[place].
  void Put(size_t place, RowRef row) const {
    const size_t i = filtered_ ? places_[place] : place;
    const auto slot_floats = static_cast<size_t>(contents_.slot_floats);
    std::copy_n(contents_.rows.embeddings + i * dim_, dim_, row.embedding);
    std::copy_n(contents_.rows.slots + i * slot_floats, slot_floats, row.embedding + dim_);
    row.meta->update_num = static_cast<uint32_t>(contents_.rows.update_nums[i]);
    row.meta->update_time = TimeOf(i);
  }

 private:
  uint32_t TimeOf(size_t i) const {
    if (all_now_) return now_;
    return static_cast<uint32_t>(std::min<int64_t>(contents_.rows.update_times[i], now_));
  }

  const TableContents& contents_;
  const size_t dim_;
  const uint32_t now_;
  const bool all_now_;
  bool filtered_ = false;
  std::vector<size_t> places_;  // the places in the contents of the keys that are kept
  std::vector<Key> kept_;
};

}  // namespace

Result<AdmissionChunks> Table::CountsOf(const TableContents& contents) const {
  if (contents.admission.empty()) return AdmissionChunks{};
  SOK_ASSIGN_OR_RETURN(auto counts, ReadCounts(contents.admission));
  if (admission_ == nullptr) return AdmissionChunks{};
  const AdmissionConfig config = admission_->config(), &saved = counts.config;
  if (!SameAdmission(config, saved)) {
    return InvalidArgument("expected counts of the table's admission, " + Described(config) +
                           ", got those of " + Described(saved) +
                           "; give the table that one, or restore without counts");
  }
  return Result<AdmissionChunks>(std::move(counts.chunks));
}

Result<TableState> Table::CheckRestore(const TableContents& contents,
                                       const ParallelFor& parallel_for) const {
  SOK_RETURN_IF_ERROR(CheckRange(contents.rows.keys, contents.n));
  if (spec_.max_rows > 0 && contents.n > spec_.max_rows) {
    return Status(Code::kResourceExhausted, "a table of at most " + std::to_string(spec_.max_rows) +
                                                " rows cannot take up " +
                                                std::to_string(contents.n));
  }
  SOK_ASSIGN_OR_RETURN(auto slots, SlotsOf(contents, spec_.dim));
  TableState state{contents.rule, std::move(slots), contents.steps};
  SOK_RETURN_IF_ERROR(CheckRows(state, spec_.dim, contents, parallel_for));
  SOK_ASSIGN_OR_RETURN(const auto counts, CountsOf(contents));
  if (admission_ != nullptr) SOK_RETURN_IF_ERROR(admission_->CheckChunks(counts));
  return Result<TableState>(std::move(state));
}

Result<RestoreOutcome> Table::Restore(const TableContents& contents,
                                      const ParallelFor& parallel_for) {
  SOK_ASSIGN_OR_RETURN(TableState state, CheckRestore(contents, parallel_for));
  SOK_ASSIGN_OR_RETURN(auto counts, CountsOf(contents));
  RestoreOutcome outcome;
  outcome.dropped_counts = admission_ == nullptr && !contents.admission.empty();
  outcome.dropped_times = !SharesClock(contents);

  auto layout = LayoutOf(state.slots);
  std::lock_guard<std::mutex> commit(commit_mu_);
  DropDeposits();
  ++removals_;
  removed_->AddAll();
  if (evictor_ != nullptr) evictor_->Forget();
  if (ticks_ != nullptr) {
    *ticks_ =
        static_cast<uint32_t>(outcome.dropped_times ? std::min<int64_t>(contents.steps, UINT32_MAX)
                                                    : contents.step_clock);
  }
  const uint32_t now = this->now();
  const TakenRows taken(contents, spec_.dim, *clock_, now, outcome.dropped_times);
  Status status = store_->Replace(
      layout, state, taken.keys(), taken.n(), now,
      [&](size_t place, RowRef row, bool) { taken.Put(place, row); }, parallel_for);
  removed_->AddAll();  // once more: TakeRemoved may have been called since the first time
  // After an error too, the store's layout shows whether it has the new rows.
  if (store_->layout() == layout) state_ = std::move(state);
  if (status.ok() && admission_ != nullptr) status = admission_->Restore(counts);
  if (!status.ok()) return status;
  return outcome;
}

Status Table::AddRows(const TableContents& piece, const ParallelFor& parallel_for) {
  SOK_RETURN_IF_ERROR(CheckRange(piece.rows.keys, piece.n));
  SOK_ASSIGN_OR_RETURN(auto slots, SlotsOf(piece, spec_.dim));
  SOK_RETURN_IF_ERROR(
      CheckRows({piece.rule, std::move(slots), piece.steps}, spec_.dim, piece, parallel_for));
  std::lock_guard<std::mutex> commit(commit_mu_);
  if (piece.rule != state_.rule) {
    return InvalidArgument("expected rows of the table's rule '{expected}', got those of '{rule}'",
                           {{"expected", RuleName{state_.rule}}, {"rule", RuleName{piece.rule}}});
  }
  const uint32_t now = this->now();
  const TakenRows taken(piece, spec_.dim, *clock_, now, !SharesClock(piece));
  SOK_ASSIGN_OR_RETURN(const auto missing, store_->Missing(taken.keys(), taken.n(), parallel_for));
  if (missing.size() != taken.n()) {
    return InvalidArgument("expected keys without a row, got " +
                           std::to_string(taken.n() - missing.size()) +
                           " that have one; whatever wrote the pieces wrote a key twice");
  }
  if (evictor_ != nullptr) evictor_->Forget();
  return store_->Upsert(
      taken.keys(), taken.n(), spec_.max_rows, now,
      [&](size_t place, RowRef row, bool) { taken.Put(place, row); }, parallel_for);
}

Status TableRows::Snapshot::Write(const WritableRowColumns& columns, uint64_t begin,
                                  uint64_t end) const {
  const size_t size = std::min(end, rows_->size()) - begin;
  size_t i = 0;
  const Status status = rows_->ForEachIn(begin, end, [&](Key key, RowRef row) {
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

Result<std::vector<std::string>> TableRows::Snapshot::DumpAdmission() const {
  if (admission_ == nullptr) return std::vector<std::string>{};
  return DumpCounts(*admission_);
}

Result<TableCapture> TableRows::BeginCapture(const CaptureOptions& options) {
  TableCapture capture;
  std::lock_guard<std::mutex> commits(commit_mu_);
  SOK_ASSIGN_OR_RETURN(capture.rows, store_->BeginCapture(options));
  if (admission_ != nullptr) {
    SOK_ASSIGN_OR_RETURN(capture.admission, DumpCounts(*admission_));
  }
  capture.state = state_;
  if (ticks_ != nullptr) capture.step_clock = ticks_->load();
  capture.dim = spec_.dim;
  capture.slot_start = RowLayout(spec_.dim, state_.slots).slot_start();
  return Result<TableCapture>(std::move(capture));
}

Result<TableRows::Snapshot> TableRows::Freeze() {
  Snapshot snapshot;
  snapshot.commits_ = std::unique_lock<std::mutex>(commit_mu_);
  SOK_ASSIGN_OR_RETURN(snapshot.rows_, store_->Freeze());
  snapshot.admission_ = admission_;
  snapshot.state_ = state_;
  if (ticks_ != nullptr) snapshot.step_clock_ = ticks_->load();
  snapshot.dim_ = spec_.dim;
  snapshot.slot_start_ = RowLayout(spec_.dim, state_.slots).slot_start();
  return Result<Snapshot>(std::move(snapshot));
}

}  // namespace sok
