// Trains a table: deposits, commits, updates.
#include <algorithm>
#include <cmath>
#include <utility>

#include "core/base/status_macros.h"
#include "core/tables/table.h"

namespace sok {
namespace {

// If all batches have the same factor, as is nearly always so, sets it to 1 in all of them and
// returns it, for the step to multiply by. Otherwise returns 1.
float TakeCommonFactor(std::vector<GradientBatch>* batches) {
  const auto first = std::find_if(batches->begin(), batches->end(),
                                  [](const GradientBatch& batch) { return batch.n > 0; });
  const float factor = first == batches->end() ? 1.0f : first->factor;
  const bool is_common = std::all_of(first, batches->end(), [factor](const GradientBatch& batch) {
    return batch.n == 0 || batch.factor == factor;
  });
  if (!is_common) return 1.0f;
  for (GradientBatch& batch : *batches) batch.factor = 1.0f;
  return factor;
}

// Below this a factor multiplies the gradients before they are summed. Gradients under a loss scale
// of more than 2^60 may be so near to the largest float32 that a sum of several would overflow, and
// a factor of less than FLT_MIN would be taken for 0.
constexpr double kLeastFactor = 0x1p-60;

// Multiplies the gradients of a deposit by its factor at once, if the factor is too small to be
// left to the step.
template <typename Deposit>
void ApplySmallFactor(int dim, const ParallelFor& parallel_for, Deposit* deposit) {
  LookupKeys& keys = deposit->keys;
  const double factor = deposit->factor * keys.factor;
  if (factor == 0.0 || !(std::abs(factor) < kLeastFactor) || keys.n == 0) return;
  size_t rows = keys.n;
  for (size_t i = 0; keys.positions != nullptr && i < keys.n; ++i) {
    rows = std::max<size_t>(rows, keys.positions[i] + size_t{1});
  }
  auto scaled = std::make_shared<std::vector<float>>(rows * dim);
  parallel_for(static_cast<int64_t>(rows), dim, [&](int64_t begin, int64_t end) {
    for (size_t i = static_cast<size_t>(begin) * dim; i < static_cast<size_t>(end) * dim; ++i) {
      const float gradient = deposit->gradients != nullptr ? deposit->gradients[i]
                                                           : ToFloat(deposit->gradients_bf16[i]);
      (*scaled)[i] = static_cast<float>(factor * gradient);
    }
  });
  deposit->gradients = scaled->data();
  deposit->gradients_bf16 = nullptr;
  deposit->hold = std::move(scaled);
  deposit->factor = keys.factor = 1.0;
  keys.summed = nullptr;  // it has sums of the gradients before this
}

// Returns the distinct keys of batches, ascending.
std::vector<Key> DistinctKeys(const std::vector<GradientBatch>& batches) {
  std::vector<Key> keys;
  for (const GradientBatch& batch : batches) {
    keys.insert(keys.end(), batch.keys, batch.keys + batch.n);
  }
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  return keys;
}

}  // namespace

std::shared_ptr<SummedGradients> Table::SumByKey(const LookupKeys& keys, const float* gradients,
                                                 const BFloat16* gradients_bf16,
                                                 const ParallelFor& parallel_for) const {
  auto summed = summed_pool_->Make();
  summed->Build(*store_, {keys.keys, gradients, gradients_bf16, keys.n, keys.positions}, spec_.dim,
                parallel_for);
  return summed;
}

Status Table::Deposit(LookupKeys keys, std::shared_ptr<const void> hold, const float* gradients,
                      const BFloat16* gradients_bf16, const AnchorGradient& anchor,
                      const ParallelFor& parallel_for) {
  TransferPin(&keys);
  if (anchor.gradient == nullptr) {
    deposits_.Add(std::move(keys), std::move(hold), gradients, gradients_bf16);
    return Status();
  }
  if (anchor.needs_norm) {
    SOK_RETURN_IF_ERROR(ToHost(spec_.dim, &keys, &hold, &gradients, &gradients_bf16));
    keys.summed = SumByKey(keys, gradients, gradients_bf16, parallel_for);
  }
  deposits_.Add(std::move(keys), std::move(hold), gradients, gradients_bf16, anchor.gradient,
                anchor.needs_norm);
  return Status();
}

Status Table::BringToHost(Deposits* deposits, uint64_t removals, bool lists_keys) const {
  const auto stays = [&](const auto& deposit) {
    const LookupKeys& keys = deposit.keys;
    const double factor = std::abs(deposit.factor * keys.factor);
    // The host must make rows that have gone since the lookup, unless they are left out, and must
    // multiply gradients by very small factors.
    const bool makes_none = keys.leave_absent || keys.removals == removals;
    return keys.device.has_value() && keys.rows_made && makes_none &&
           (factor == 0.0 || !(factor < kLeastFactor));
  };
  if (!lists_keys && std::all_of(deposits->begin(), deposits->end(), stays)) return Status();
  for (auto& deposit : *deposits) {
    SOK_RETURN_IF_ERROR(ToHost(spec_.dim, &deposit.keys, &deposit.hold, &deposit.gradients,
                               &deposit.gradients_bf16));
  }
  return Status();
}

Status Table::MakeDepositedRows(const Deposits& deposits, uint64_t removals, uint32_t now,
                                uint64_t* left_out, std::vector<Key>* made, LookupCounts* met,
                                const ParallelFor& parallel_for) {
  std::vector<Key> absent;
  size_t changed = 0;
  for (const auto& deposit : deposits) {
    const LookupKeys& keys = deposit.keys;
    changed += keys.n;
    if (keys.leave_absent || (keys.rows_made && keys.removals == removals)) continue;
    // Keys that the lookup has counted and not admitted get no row, nor do keys whose row has gone
    // since.
    if (keys.rows_made && admission_ != nullptr) continue;
    SOK_ASSIGN_OR_RETURN(auto missing, store_->Missing(keys.keys, keys.n, parallel_for));
    std::sort(missing.begin(), missing.end());
    // One lookup may have several deposits; the first one counts its keys.
    const bool counts = keys.counted == nullptr || !keys.counted->exchange(true);
    SOK_RETURN_IF_ERROR(Admit(keys.keys, keys.counts, counts, &missing, met));
    for (uint32_t i : missing) absent.push_back(keys.keys[i]);
  }
  if (absent.empty()) return Status();
  SOK_RETURN_IF_ERROR(store_->CheckRoom(changed));
  return MakeRowsThatFit(absent, now, left_out, made, parallel_for);
}

Status Table::CheckRule(const std::string& rule) const {
  if (!kept_.has_value() || state_.slots.empty() || state_.rule == rule || kept_->leave->load()) {
    return Status();
  }
  return Status(
      Code::kFailedPrecondition,
      "{group} has been trained with '{trained}', and this is a step of '{got}', which "
      "would lose what '{trained}' keeps of every row; train on with '{trained}', or give "
      "'{got}' another group; the storage's reset_slots=True has it lost for good",
      {{"group", kept_->owner}, {"trained", RuleName{state_.rule}}, {"got", RuleName{rule}}});
}

std::vector<GradientBatch> Table::BatchesOf(Deposits& deposits, const ParallelFor& parallel_for) {
  std::vector<GradientBatch> batches;
  const bool summed = std::any_of(deposits.begin(), deposits.end(), [](const auto& deposit) {
    return deposit.keys.summed != nullptr;
  });
  for (auto& deposit : deposits) ApplySmallFactor(spec_.dim, parallel_for, &deposit);
  for (auto& deposit : deposits) {
    LookupKeys& keys = deposit.keys;
    if (summed && keys.summed == nullptr) {
      keys.summed = SumByKey(keys, deposit.gradients, deposit.gradients_bf16, parallel_for);
    }
    batches.push_back({keys.keys, deposit.gradients, deposit.gradients_bf16, keys.n, keys.positions,
                       keys.summed.get(), static_cast<float>(deposit.factor * keys.factor),
                       keys.distinct, keys.found.get(),
                       keys.device.has_value() ? &*keys.device : nullptr});
  }
  return batches;
}

Result<CommitOutcome> Table::Commit(const CommitOptions& options, const ParallelFor& parallel_for) {
  const auto lock = LockCommits();
  SOK_ASSIGN_OR_RETURN(Deposits deposits,
                       options.redeemed == nullptr
                           ? Result<Deposits>(deposits_.TakeAll())
                           : deposits_.Redeem(options.redeemed, options.plain, options.clipped_to));
  SOK_ASSIGN_OR_RETURN(auto optimizer, MakeRowOptimizer(options.rule, options.hypers));
  return CommitLocked(options, *optimizer, std::move(deposits), parallel_for);
}

Result<CommitOutcome> Table::CommitLocked(const CommitOptions& options,
                                          const RowOptimizer& optimizer, Deposits deposits,
                                          const ParallelFor& parallel_for) {
  SOK_RETURN_IF_ERROR(CheckRule(options.rule));
  const Committer who{options.optimizer, options.step, options.first_step};
  history_.Record(who, state_.steps);
  CommitOutcome outcome;
  if (options.lists_keys) outcome.keys.resize(1);
  if (deposits.empty()) return outcome;
  // A row that is removed from here on is not made anew in this step.
  const uint64_t removals = this->removals();
  SOK_RETURN_IF_ERROR(BringToHost(&deposits, removals, options.lists_keys));

  if (ticks_ != nullptr) ++*ticks_;
  const uint32_t now = this->now();
  const uint64_t evicted = evicted_for_room();
  std::vector<Key> made;
  LookupCounts met;
  SOK_RETURN_IF_ERROR(
      MakeDepositedRows(deposits, removals, now, &outcome.left_out, &made, &met, parallel_for));
  outcome.first_left_out = outcome.left_out > 0 && left_out_ == 0;
  const Status status = StepLocked(options, optimizer, now, &deposits, &outcome, parallel_for);
  if (!outcome.stepped) return WithEvictions(TakeBack(status, made, parallel_for), evicted);
  ForgetCounts(made);  // the counts of keys without a row stay
  left_out_ += outcome.left_out;
  Count(met);
  if (!status.ok()) return WithEvictions(status, evicted);
  if (eviction_ != nullptr) {
    deposits.clear();  // this ends their claims
    SOK_RETURN_IF_ERROR(EvictAfterStep(state_.steps, nullptr, 0, parallel_for));
  }
  return outcome;
}

Status Table::StepLocked(const CommitOptions& options, const RowOptimizer& optimizer, uint32_t now,
                         Deposits* deposits, CommitOutcome* outcome,
                         const ParallelFor& parallel_for) {
  outcome->restarted = history_.StartsAnew(state_.rule, options.rule);
  outcome->previous = state_.rule;
  const std::vector<Slot> slots = optimizer.slots(spec_.dim);
  SOK_RETURN_IF_ERROR(Relayout(options.rule, slots, outcome->restarted, parallel_for));
  TableState after = state_;
  if (outcome->restarted) {
    after.steps = 0;
    history_.DropEarlierSteps();
  }
  after.rule = options.rule;
  after.steps = after.next_step();

  std::vector<GradientBatch> batches = BatchesOf(*deposits, parallel_for);
  if (options.lists_keys) outcome->keys[0] = DistinctKeys(batches);
  CommitStep step;
  const Committer who{options.optimizer, options.step, options.first_step};
  step.number = history_.StepOf(who, after.steps);
  step.scale = options.scale * TakeCommonFactor(&batches);
  step.clip_value = options.clip_value;
  step.now = now;
  step.applied = &outcome->stepped;
  SOK_ASSIGN_OR_RETURN(outcome->rows, ApplyStep(batches, optimizer, std::move(step),
                                                std::move(after), parallel_for));
  outcome->stepped = true;
  history_.Stepped();
  return Status();
}

Status Table::Relayout(const std::string& rule, const std::vector<Slot>& slots, bool restart,
                       const ParallelFor& parallel_for) {
  if (restart && !state_.slots.empty()) {
    auto bare = LayoutOf({});
    SOK_RETURN_IF_ERROR(store_->Relayout(std::move(bare), {}, parallel_for).status());
    state_ = {};  // as before the table's first step
  }
  if (!restart && state_.rule == rule && store_->IsLaidOut(slots)) {
    if (state_.slots != slots) state_.slots = slots;
    return Status();
  }
  // The rule is set as soon as the rows have its slots: the step may fail, and other threads may
  // look at the table before it ends.
  TableState ready = state_;
  ready.rule = rule;
  ready.slots = slots;
  if (restart) ready.steps = 0;
  auto layout = LayoutOf(slots);
  SOK_RETURN_IF_ERROR(store_->Relayout(std::move(layout), ready, parallel_for).status());
  state_ = std::move(ready);
  return Status();
}

Result<uint64_t> Table::ApplyStep(const std::vector<GradientBatch>& batches,
                                  const RowOptimizer& optimizer, CommitStep step, TableState after,
                                  const ParallelFor& parallel_for) {
  step.state = after;
  auto rows = store_->Apply(batches, optimizer, step, parallel_for);
  if (rows.ok() || *step.applied) state_ = std::move(after);
  return rows;
}

Status Table::Update(const Key* keys, size_t n, const float* gradients, const std::string& rule,
                     const RowOptimizer& optimizer, const UpdateOptions& options,
                     const ParallelFor& parallel_for) {
  SOK_RETURN_IF_ERROR(CheckRange(keys, n));
  std::lock_guard<std::mutex> commit(commit_mu_);
  if (!state_.rule.empty() && state_.rule != rule) {
    return Status(Code::kFailedPrecondition,
                  "the table has been trained with '{trained}', and this update is one of '{got}'; "
                  "give each optimizer a group of its own",
                  {{"trained", RuleName{state_.rule}}, {"got", RuleName{rule}}});
  }
  const uint32_t now = this->now();
  SOK_ASSIGN_OR_RETURN(auto missing, store_->Missing(keys, n, parallel_for));
  SOK_RETURN_IF_ERROR(Admit(keys, nullptr, /*observe=*/false, &missing, /*met=*/nullptr));
  std::vector<Key> absent;
  for (uint32_t i : missing) absent.push_back(keys[i]);
  const uint64_t evicted = evicted_for_room();
  std::vector<Key> made;
  if (!absent.empty()) {
    SOK_RETURN_IF_ERROR(store_->CheckRoom(n));
    const auto make = [&] { return MakeRows(absent, now, &made, parallel_for); };
    SOK_RETURN_IF_ERROR(MakeInRoom(keys, n, absent, now, make, parallel_for));
  }
  bool applied = false;
  const auto apply = [&] {
    if (state_.rule.empty()) {
      SOK_RETURN_IF_ERROR(
          Relayout(rule, optimizer.slots(spec_.dim), /*restart=*/false, parallel_for));
    }
    TableState after = state_;
    after.rule = rule;
    after.steps = after.next_step();
    CommitStep step;
    step.now = now;
    step.sequential = options.sequential;
    step.applied = &applied;
    return ApplyStep({{keys, gradients, nullptr, n}}, optimizer, std::move(step), std::move(after),
                     parallel_for)
        .status();
  };
  const Status status = apply();
  if (!status.ok() && !applied) return WithEvictions(TakeBack(status, made, parallel_for), evicted);
  ForgetCounts(absent);
  if (!status.ok()) return WithEvictions(status, evicted);
  return EvictAfterStep(state_.steps, keys, n, parallel_for);
}

}  // namespace sok
