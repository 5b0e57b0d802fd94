// Trains an adaptive table: routes deposits, commits steps and removes the rows that a step
// expires.
#include <algorithm>
#include <numeric>
#include <utility>

#include "core/adaptive/adaptive_table.h"
#include "core/base/status_macros.h"
#include "core/rows/key_set.h"

namespace sok {
namespace {

// The part of a deposit that belongs to one of the two tables, with the objects that must outlive
// it.
struct Share {
  std::vector<Key> keys;
  std::vector<uint32_t> positions;
  void Reserve(size_t n) {
    keys.reserve(n);
    positions.reserve(n);
  }
};

constexpr size_t kCounters = 5;
constexpr int64_t kCountersVersion = 1;

}  // namespace

Status AdaptiveTable::Deposit(AdaptiveKeys batch, std::shared_ptr<const void> hold,
                              const float* gradients, const BFloat16* gradients_bf16,
                              const AnchorGradient& anchor, const ParallelFor& parallel_for) {
  SOK_RETURN_IF_ERROR(LearnOnce(batch, parallel_for));
  if (anchor.gradient == nullptr) {
    deposits_.Add(std::move(batch), std::move(hold), gradients, gradients_bf16);
    return Status();
  }
  std::unique_lock<std::mutex> guard(mu_, std::defer_lock);
  if (anchor.needs_norm) {
    guard.lock();  // no key gets or loses its row between the products of the deposits
    SOK_RETURN_IF_ERROR(SplitAnew(parallel_for));
    SOK_ASSIGN_OR_RETURN(batch.split, SummedSplit(batch, gradients, gradients_bf16, parallel_for));
  }
  deposits_.Add(std::move(batch), std::move(hold), gradients, gradients_bf16, anchor.gradient,
                anchor.needs_norm);
  return Status();
}

uint64_t AdaptiveTable::DropDeposits() {
  std::lock_guard<std::mutex> guard(mu_);  // no commit may come between the two tables of a step
  return DropDepositsLocked();
}

uint64_t AdaptiveTable::DropDepositsLocked() {
  return deposits_.Drop() + own_->DropDeposits() + statics_->DropDeposits();
}

Result<std::shared_ptr<AdaptiveSplit>> AdaptiveTable::Split(const AdaptiveKeys& batch,
                                                            const ParallelFor& parallel_for) {
  auto split = std::make_shared<AdaptiveSplit>();
  split->changes = changes_;
  SOK_ASSIGN_OR_RETURN(auto missing, own_->Missing(batch.keys, batch.n, parallel_for));
  std::vector<uint8_t> is_own(batch.n, 1);
  for (uint32_t i : missing) is_own[i] = 0;
  for (size_t i = 0; batch.mask != nullptr && i < batch.n; ++i) is_own[i] &= batch.mask[i] != 0;
  auto own = std::make_shared<Share>(), statics = std::make_shared<Share>();
  own->Reserve(batch.n - missing.size());
  statics->Reserve(missing.size());
  for (size_t i = 0; i < batch.n; ++i) {
    Share& share = is_own[i] != 0 ? *own : *statics;
    share.keys.push_back(is_own[i] != 0 ? batch.keys[i]
                                        : AdaptiveBucket(batch.keys[i], config_.static_buckets));
    share.positions.push_back(static_cast<uint32_t>(i));
  }
  const auto keys_of = [&](std::shared_ptr<Share> share, LookupKeys* keys) {
    keys->keys = share->keys.data();
    keys->positions = share->positions.data();
    keys->n = share->keys.size();
    keys->order = batch.order;
    keys->hold = std::move(share);
  };
  keys_of(std::move(own), &split->own);
  keys_of(std::move(statics), &split->statics);
  split->own.leave_absent = true;
  return split;
}

Result<std::shared_ptr<AdaptiveSplit>> AdaptiveTable::SummedSplit(const AdaptiveKeys& batch,
                                                                  const float* gradients,
                                                                  const BFloat16* gradients_bf16,
                                                                  const ParallelFor& parallel_for) {
  SOK_ASSIGN_OR_RETURN(auto split, Split(batch, parallel_for));
  for (const auto& [table, part] : PartsOf(split.get())) {
    part->summed = table->SumByKey(*part, gradients, gradients_bf16, parallel_for);
  }
  return split;
}

Status AdaptiveTable::SplitAnew(const ParallelFor& parallel_for) {
  if (moved_.empty()) return Status();
  KeySet moved;
  moved.Reserve(moved_.size());
  for (Key key : moved_) moved.Insert(key);
  Status status;
  deposits_.Restated([&](auto* deposit) {
    AdaptiveKeys& keys = deposit->keys;
    if (!status.ok() || keys.split->changes == changes_) return false;
    keys.split->changes = changes_;
    const auto has_moved = [&](Key key) { return moved.Contains(key); };
    if (std::none_of(keys.keys, keys.keys + keys.n, has_moved)) return false;
    auto split = SummedSplit(keys, deposit->gradients, deposit->gradients_bf16, parallel_for);
    status = split.status();
    if (!split.ok()) return false;
    keys.split = std::move(split.value());
    return true;
  });
  return status;
}

void AdaptiveTable::NoteMoved(const std::vector<Key>& keys) {
  ++changes_;
  if (deposits_.empty()) {
    moved_.clear();
  } else {
    moved_.insert(moved_.end(), keys.begin(), keys.end());
  }
}

std::array<std::pair<Table*, LookupKeys*>, 2> AdaptiveTable::PartsOf(AdaptiveSplit* split) const {
  return {std::pair(own_.get(), &split->own), std::pair(statics_.get(), &split->statics)};
}

Status AdaptiveTable::Route(const Deposits& deposits, const ParallelFor& parallel_for) {
  // An empty deposit makes both tables count the same steps.
  SOK_RETURN_IF_ERROR(own_->Deposit({}, nullptr, nullptr, nullptr));
  SOK_RETURN_IF_ERROR(statics_->Deposit({}, nullptr, nullptr, nullptr));
  for (const auto& deposit : deposits) {
    std::shared_ptr<AdaptiveSplit> split = deposit.keys.split;
    if (split == nullptr || split->changes != changes_) {
      SOK_ASSIGN_OR_RETURN(split, Split(deposit.keys, parallel_for));
    }
    for (const auto& [table, part] : PartsOf(split.get())) {
      part->factor = deposit.factor;
      SOK_RETURN_IF_ERROR(
          table->Deposit(*part, deposit.hold, deposit.gradients, deposit.gradients_bf16));
    }
  }
  return Status();
}

Result<CommitOutcome> AdaptiveTable::Commit(const CommitOptions& options,
                                            const ParallelFor& parallel_for) {
  std::lock_guard<std::mutex> guard(mu_);
  SOK_ASSIGN_OR_RETURN(auto redeemed,
                       options.redeemed == nullptr
                           ? Result<Deposits>(deposits_.TakeAll())
                           : deposits_.Redeem(options.redeemed, options.plain, options.clipped_to));
  moved_.clear();
  CommitOptions of_both = options;
  of_both.redeemed = nullptr;  // the two tables receive deposits that are redeemed already
  if (!redeemed.empty() || statics_->has_deposits() || own_->has_deposits()) {
    Status status = Route(redeemed, parallel_for);
    if (!status.ok()) {
      own_->DropDeposits();
      statics_->DropDeposits();
      return status;
    }
  }
  auto statics = statics_->Commit(of_both, parallel_for);
  auto own = own_->Commit(of_both, parallel_for);
  if (!statics.ok()) return statics;
  if (!own.ok()) return own;
  if (own.value().stepped) SOK_RETURN_IF_ERROR(AfterStep(parallel_for));
  CommitOutcome outcome = own.value();
  outcome.rows += statics.value().rows;
  for (auto& keys : statics.value().keys) outcome.keys.push_back(std::move(keys));
  return outcome;
}

Status AdaptiveTable::AfterStep(const ParallelFor& parallel_for) {
  if (config_.decay_every > 0 && static_cast<uint64_t>(own_->steps()) % config_.decay_every == 0) {
    sketch_->Halve(parallel_for);
    least_used_.Clear();
  }
  const uint32_t now = own_->now();
  if (too_old_ == nullptr || !too_old_->Due(own_->steps(), now)) return Status();
  SOK_ASSIGN_OR_RETURN(auto gone, own_->Evict({too_old_.get()}, parallel_for));
  too_old_->Passed(now);
  return Demoted(gone, parallel_for);
}

Result<uint64_t> AdaptiveTable::Demote(const Key* keys, size_t n, const ParallelFor& parallel_for) {
  std::lock_guard<std::mutex> guard(mu_);
  return DemoteLocked(std::vector<Key>(keys, keys + n), parallel_for);
}

Result<uint64_t> AdaptiveTable::DemoteLocked(std::vector<Key> keys,
                                             const ParallelFor& parallel_for) {
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  SOK_ASSIGN_OR_RETURN(auto gone, own_->Evict(keys.data(), keys.size(), parallel_for));
  SOK_RETURN_IF_ERROR(Demoted(gone, parallel_for));
  return uint64_t{gone.keys.size()};
}

Status AdaptiveTable::Demoted(const EvictedRows& rows, const ParallelFor& parallel_for) {
  demoted_ += rows.keys.size();
  NoteMoved(rows.keys);
  if (config_.demote_blend == 0 || rows.keys.empty()) return Status();
  // In the order of keys, so that sums do not depend on where rows lie in memory.
  std::vector<uint32_t> order(rows.keys.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return rows.keys[a] < rows.keys[b]; });
  std::vector<Key> buckets(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    buckets[i] = AdaptiveBucket(rows.keys[order[i]], config_.static_buckets);
  }
  const int dim = this->dim();
  const auto share = static_cast<float>(config_.demote_blend);
  return statics_->Visit(
      buckets.data(), buckets.size(),
      [&](size_t i, float* row, int) {
        const float* own = rows.embeddings.data() + size_t{order[i]} * dim;
        for (int j = 0; j < dim; ++j) row[j] += share * (own[j] - row[j]);
      },
      parallel_for);
}

Result<AdaptiveTable::Snapshot> AdaptiveTable::Freeze() {
  Snapshot snapshot;
  snapshot.lock = std::unique_lock<std::mutex>(mu_);
  snapshot.sketch = sketch_->Dump();
  snapshot.counters = {kCountersVersion, static_cast<int64_t>(promoted_),
                       static_cast<int64_t>(demoted_), static_cast<int64_t>(lookups_),
                       static_cast<int64_t>(own_lookups_)};
  SOK_ASSIGN_OR_RETURN(auto own, own_->Freeze());
  SOK_ASSIGN_OR_RETURN(auto statics, statics_->Freeze());
  snapshot.own = std::move(own);
  snapshot.statics = std::move(statics);
  return Result<Snapshot>(std::move(snapshot));
}

Status AdaptiveTable::CheckContents(const AdaptiveContents& contents) const {
  const TableContents &own = contents.own, &statics = contents.statics;
  const std::vector<int64_t>& counters = contents.counters;
  if (counters.size() != kCounters || counters[0] != kCountersVersion) {
    return InvalidArgument("expected " + std::to_string(kCounters) + " counters of version " +
                           std::to_string(kCountersVersion) + ", got " +
                           std::to_string(counters.size()) +
                           (counters.empty() ? "" : " of version " + std::to_string(counters[0])));
  }
  if (own.rule != statics.rule || own.slot_floats != statics.slot_floats) {
    return InvalidArgument("expected own and static rows of one rule, got '{own}' and '{statics}'",
                           {{"own", RuleName{own.rule}}, {"statics", RuleName{statics.rule}}});
  }
  if (config_.max_rows > 0 && own.n > config_.max_rows) {
    return Status(Code::kResourceExhausted,
                  "a table of at most " + std::to_string(config_.max_rows) +
                      " own rows cannot take up " + std::to_string(own.n));
  }
  if (*std::min_element(counters.begin(), counters.end()) < 0) {
    return InvalidArgument("expected counters of at least 0, got a negative one");
  }
  if (std::min(own.steps, statics.steps) < 0) {
    return InvalidArgument("expected a number of steps of at least 0, got " +
                           std::to_string(std::min(own.steps, statics.steps)));
  }
  return CheckBatch({nullptr, own.rows.keys, nullptr, nullptr, own.n});
}

Result<std::unique_ptr<CountMinSketch>> AdaptiveTable::Checked(
    const AdaptiveContents& contents, const ParallelFor& parallel_for) const {
  SOK_RETURN_IF_ERROR(CheckContents(contents));
  auto loaded = CountMinSketch::Make(SketchOf(config_));
  if (!loaded.ok()) return loaded;
  SOK_RETURN_IF_ERROR(loaded.value()->Load(contents.sketch));
  for (const auto& [table, rows] :
       {std::pair(own_.get(), &contents.own), std::pair(statics_.get(), &contents.statics)}) {
    if (const auto checked = table->CheckRestore(*rows, parallel_for); !checked.ok()) {
      return checked.status();
    }
  }
  return loaded;
}

Status AdaptiveTable::CheckRestore(const AdaptiveContents& contents,
                                   const ParallelFor& parallel_for) const {
  return Checked(contents, parallel_for).status();
}

Result<RestoreOutcome> AdaptiveTable::Restore(const AdaptiveContents& contents,
                                              const ParallelFor& parallel_for) {
  std::lock_guard<std::mutex> guard(mu_);
  // All checks come before any change.
  SOK_ASSIGN_OR_RETURN(auto loaded, Checked(contents, parallel_for));
  // Both tables have the same number of steps.
  TableContents own = contents.own, statics = contents.statics;
  own.steps = statics.steps = std::max(own.steps, statics.steps);
  auto outcome = statics_->Restore(statics, parallel_for);
  if (!outcome.ok()) return outcome;
  const auto of_own = own_->Restore(own, parallel_for);
  if (!of_own.ok()) return of_own;
  outcome.value().dropped_counts |= of_own.value().dropped_counts;
  outcome.value().dropped_times |= of_own.value().dropped_times;
  DropDepositsLocked();
  sketch_ = std::move(loaded);
  ++changes_;
  least_used_.Clear();
  if (too_old_ != nullptr) too_old_->Passed(0);
  promoted_ = static_cast<uint64_t>(contents.counters[1]);
  demoted_ = static_cast<uint64_t>(contents.counters[2]);
  lookups_ = static_cast<uint64_t>(contents.counters[3]);
  own_lookups_ = static_cast<uint64_t>(contents.counters[4]);
  return outcome;
}

AdaptiveStats AdaptiveTable::Stats() {
  std::lock_guard<std::mutex> guard(mu_);
  AdaptiveStats stats{};
  stats.own = own_->Stats();
  stats.statics = statics_->Stats();
  stats.own.max_rows = config_.max_rows;
  stats.own.pending_gradients += deposits_.gradients();
  stats.promoted = promoted_;
  stats.demoted = demoted_;
  stats.lookups = lookups_;
  stats.own_lookups = own_lookups_;
  stats.sketch_bytes = sketch_->bytes() + least_used_.bytes();
  stats.sketch_saturation = sketch_->Saturation();
  return stats;
}

}  // namespace sok
