// Gradients that wait for the commit of their step.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/bfloat16.h"
#include "core/base/status.h"
#include "core/tables/coordinates.h"
#include "core/tables/ticket_places.h"
#include "core/tables/tickets.h"

namespace sok {

// The place of a deposit among the deposits of its step. Threads deposit in any order. Gradients of
// equal keys are summed in this order, so that a run can be repeated bit by bit.
struct DepositOrder {
  int64_t call = 0;      // which call of a graph the lookup is; 0 where calls run one by one
  uint64_t lookup = 0;   // DepositQueue::NextLookup() of the lookup
  int64_t gradient = 0;  // the number of the gradient in its graph; 0 in eager mode

  friend bool operator<(const DepositOrder& a, const DepositOrder& b) {
    return std::tie(a.call, a.lookup, a.gradient) < std::tie(b.call, b.lookup, b.gradient);
  }
};

// Holds gradients until a commit redeems them. Keys describes the keys of a deposit's gradients: it
// has their number, n, and their order; with norms also square() and Dot(other). Thread-safe.
template <typename Keys>
class DepositQueue {
 public:
  struct Deposit {
    Keys keys;
    std::shared_ptr<const void> hold;  // keeps the gradients alive
    const float* gradients;            // one of the two is set
    const BFloat16* gradients_bf16;
    Ticket ticket = {};
    std::optional<Coordinates> coordinates = std::nullopt;
    bool fits_all = true;   // of the coordinates: see FitsAll
    bool restated = false;  // its coordinates are those of other gradients than its keys: Restated
    // The factor that the gradients are multiplied by. Products of loss scales do not fit into
    // float32.
    double factor = 1.0;
    int missed = 0;  // commits that have not redeemed it
  };
  // After so many commits that have not redeemed it, a deposit is dropped. Until then gradients
  // that no commit applies cost memory.
  static constexpr int kMostMissed = 16;

  // Numbers lookups as they run.
  uint64_t NextLookup() { return ++lookups_; }

  // Takes gradients without naming them in the anchor's gradient.
  void Add(Keys keys, std::shared_ptr<const void> hold, const float* gradients,
           const BFloat16* gradients_bf16) {
    std::lock_guard<std::mutex> guard(mu_);
    deposits_.push_back(
        {std::move(keys), std::move(hold), gradients, gradients_bf16, places_.GiveUnnamed()});
  }

  // Takes gradients, and adds their mark to the gradient of their anchor (kAnchorSize); with
  // `needs_norm` also their coordinates, beside the deposits that wait. Returns the ticket's
  // number.
  uint64_t Add(Keys keys, std::shared_ptr<const void> hold, const float* gradients,
               const BFloat16* gradients_bf16, float* anchor_gradient, bool needs_norm = true) {
    std::lock_guard<std::mutex> guard(mu_);
    Deposit added{std::move(keys), std::move(hold), gradients, gradients_bf16};
    std::optional<double> norm;
    if (needs_norm) {
      Measure(&added);
      AddCoordinates(*added.coordinates, anchor_gradient);
      norm = std::sqrt(added.keys.square());
    }
    added.ticket = places_.Give(norm);
    AddMark(added.ticket, anchor_gradient);
    deposits_.push_back(std::move(added));
    return deposits_.back().ticket.number;
  }

  // Calls restate(deposit) for each deposit with coordinates since the last commit, which changes
  // the keys of those whose gradients will be applied to other rows than they were measured for,
  // and returns true for these. Their coordinates have been handed out and stay. With the next
  // deposit, the coordinates of all since the last commit have the norm of their gradients again.
  template <typename Restate>
  void Restated(const Restate& restate) {
    std::lock_guard<std::mutex> guard(mu_);
    for (Deposit& deposit : deposits_) {
      if (deposit.missed > 0 || !IsMeasured(deposit) || !restate(&deposit)) continue;
      deposit.restated = restated_ = off_ = true;
    }
  }

  bool empty() const {
    std::lock_guard<std::mutex> guard(mu_);
    return deposits_.empty();
  }

  // Takes the deposits that `arrived` (kAnchorSize) names, in their order; `arrived` is the
  // anchor's gradient as the optimizer received it. Drops deposits that kMostMissed commits have
  // not redeemed. `plain` says that anchor gradients may have been added up and multiplied on their
  // way, then clipped to [-clipped_to, clipped_to] element by element (unless clipped_to is 0), and
  // not changed otherwise.
  // Error, after which nothing has changed: kFailedPrecondition if `arrived` names deposits that do
  // not wait, names some but not all of several deposits at one place, was changed in another way,
  // or is a sum of so many gradients that its norm was not known.
  Result<std::vector<Deposit>> Redeem(const float* arrived, bool plain, float clipped_to = 0.0f) {
    std::vector<Deposit> dropped;  // destroyed after the lock is released
    std::lock_guard<std::mutex> guard(mu_);
    Redeemed redeemed;
    for (int place = 0; place < kPlaces; ++place) {
      const float sum = arrived[place], weighted = arrived[kPlaces + place];
      if (HasVanished(sum, weighted)) continue;
      const size_t waiting = FindAt(place, sum, weighted, &redeemed);
      if (waiting != kFound) return UnknownSum(arrived, waiting);
    }
    if (redeemed.empty() && !IsFinite(arrived)) return NotFinite();
    if (plain && !IsPlain(arrived, redeemed, clipped_to)) return NotPlain();
    if (!HasItsNorm(redeemed)) return TooManyForNorms();
    for (Deposit& deposit : deposits_) ++deposit.missed;
    restated_ = off_ = false;
    for (const auto& [deposit, factor] : redeemed) {
      deposit->factor = factor;
      deposit->missed = kRedeemed;
    }
    std::vector<Deposit> taken = TakeIf([](const Deposit& d) { return d.missed == kRedeemed; });
    dropped = TakeIf([](const Deposit& d) { return d.missed >= kMostMissed; });
    return InOrder(std::move(taken));
  }

  // Takes all deposits in their order, with the factor 1.
  std::vector<Deposit> TakeAll() {
    std::lock_guard<std::mutex> guard(mu_);
    restated_ = off_ = false;
    return InOrder(TakeIf([](const Deposit&) { return true; }));
  }

  // Drops all deposits. Returns how many gradients they had.
  uint64_t Drop() { return GradientsOf(TakeAll()); }

  uint64_t gradients() const {
    std::lock_guard<std::mutex> guard(mu_);
    return GradientsOf(deposits_);
  }

 private:
  // Deposits and the factors that they are to be multiplied by.
  using Redeemed = std::vector<std::pair<Deposit*, double>>;

  // Ratios of weights are at least 1 / 131072 apart. A few roundings of float32 change a ratio by
  // less.
  static constexpr double kTolerance = 3e-6;

  // The rounding error of float32 in sums of coordinates; a change of single elements is larger.
  static constexpr double kPlainTolerance = 1e-3;
  static constexpr double kLeast = 0x1p-62;  // shorter ones may have lost their marks: tickets.h
  // A norm counts as right if its error is at most this share of the lengths that are added up.
  static constexpr double kNormTolerance = 1e-5;
  static constexpr int kRedeemed = -1;
  static constexpr size_t kFound = SIZE_MAX;

  static bool Near(double value, double expected) {
    return std::abs(value - expected) <= kTolerance * expected;
  }

  // A norm that includes a value that is not finite is not finite.
  static bool IsMeasured(const Deposit& deposit) {
    return deposit.coordinates.has_value() && std::isfinite((*deposit.coordinates)[0]);
  }

  // Computes the coordinates of a new deposit, given the deposits that wait.
  void Measure(Deposit* added) {
    if (restated_ && std::isfinite(added->keys.square())) {
      MeasureBesideRestated(added);
      return;
    }
    // Gradients of one step, and of accumulated steps, are added up later. So deposits since the
    // last commit come first in `all`, the newest in front.
    std::vector<Neighbor> fresh, missed;
    for (auto it = deposits_.rbegin(); it != deposits_.rend(); ++it) {
      if (!IsMeasured(*it)) continue;
      (it->missed == 0 ? fresh : missed).push_back({*it->coordinates, it->keys.Dot(added->keys)});
    }
    std::vector<Neighbor> all = fresh;
    all.insert(all.end(), missed.begin(), missed.end());
    std::vector<Neighbor> fitted = all;
    if (all.size() >= kCoordinates) fitted.resize(kCoordinates - 1);
    if (fresh.size() >= kCoordinates) {
      // Many gradients of few rows lie in the span of the first ones. The first ones stay the same;
      // a basis of the newest would turn a little with each deposit.
      const std::vector<Neighbor> first(fresh.rbegin(), fresh.rbegin() + kCoordinates - 1);
      added->coordinates = CoordinatesOf(first, added->keys.square());
      added->fits_all = FitsAll(*added->coordinates, all);
      if (added->fits_all) return;
      // Not all products fit, but the product with their sum does, and a long window of accumulated
      // gradients is applied as this sum.
      Neighbor sum{{}, 0.0};
      for (const Neighbor& each : fresh) {
        for (int i = 0; i < kCoordinates; ++i) sum.coordinates[i] += each.coordinates[i];
        sum.product += each.product;
      }
      fitted.back() = sum;
    }
    added->coordinates = CoordinatesOf(fitted, added->keys.square());
    added->fits_all = FitsAll(*added->coordinates, all);
  }

  // Computes the coordinates of a new deposit, where some since the last commit were restated: with
  // it, the sum of all since then gets the norm that the gradients have by now. As far as that can
  // be, its own norm, and its products with deposits that were not restated, are right too.
  void MeasureBesideRestated(Deposit* added) {
    std::vector<Deposit*> fresh;
    std::vector<Neighbor> fitted;
    Neighbor all{{}, 0.0}, restated{{}, 0.0};  // sums
    const auto add = [](const Neighbor& each, Neighbor* sum) {
      for (int i = 0; i < kCoordinates; ++i) sum->coordinates[i] += each.coordinates[i];
      sum->product += each.product;
    };
    for (Deposit& deposit : deposits_) {
      if (deposit.missed > 0 || !IsMeasured(deposit)) continue;
      const Neighbor each{*deposit.coordinates, deposit.keys.Dot(added->keys)};
      add(each, &all);
      if (deposit.restated) {
        add(each, &restated);
      } else {
        fitted.push_back(each);
      }
      fresh.push_back(&deposit);
    }
    const double measured = Product(all.coordinates, all.coordinates);
    double square = measured;  // of the sum of the gradients
    if (off_) {
      square = 0.0;
      for (size_t i = 0; i < fresh.size(); ++i) {
        square += fresh[i]->keys.square();
        for (size_t j = 0; j < i; ++j) square += 2.0 * fresh[i]->keys.Dot(fresh[j]->keys);
      }
      off_ = false;
    }
    if (fitted.size() + 1 >= kCoordinates) {
      fitted.clear();
      restated = all;
    }
    // The product with the restated ones makes up for what the sum is off by.
    restated.product += (square - measured) / 2.0;
    fitted.push_back(restated);
    const double own = added->keys.square();
    Coordinates found = CoordinatesOf(fitted, own);
    const double norm = std::sqrt(std::max(0.0, square + 2.0 * all.product + own));
    double reached = 0.0;
    for (int i = 0; i < kCoordinates; ++i) reached += std::pow(all.coordinates[i] + found[i], 2);
    const double length = std::sqrt(measured);
    if (std::abs(std::sqrt(reached) - norm) > kNormTolerance / 10 * (length + norm)) {
      // No vector of that norm does it.
      found = length == 0.0 ? Coordinates{norm} : all.coordinates;
      for (double& x : found) x *= length == 0.0 ? 1.0 : norm / length - 1.0;
    }
    added->coordinates = found;
    added->fits_all = false;
  }

  // Finds which deposits of a place two sums of marks stand for: all of them, or one. Returns
  // kFound, or otherwise how many deposits wait at the place.
  size_t FindAt(int place, float sum, float weighted, Redeemed* found) {
    std::vector<Deposit*> waiting;
    double marks = 0.0, weighted_marks = 0.0;
    bool is_mixed = false;
    for (Deposit& deposit : deposits_) {
      if (deposit.ticket.place != place) continue;
      waiting.push_back(&deposit);
      marks += deposit.ticket.mark;
      weighted_marks += deposit.ticket.weighted();
      is_mixed = is_mixed || deposit.ticket.mark != waiting[0]->ticket.mark;
    }
    if (!std::isfinite(sum) || !std::isfinite(weighted)) {
      // A factor of NaN turns every 0 of the anchor's gradient into NaN, even at places where
      // nothing waits.
      for (Deposit* deposit : waiting) found->emplace_back(deposit, sum);
      return kFound;
    }
    const double ratio = static_cast<double>(weighted) / sum;
    const bool are_all = !waiting.empty() && Near(ratio, weighted_marks / marks);
    const auto one = std::find_if(waiting.begin(), waiting.end(), [ratio](const Deposit* deposit) {
      return Near(ratio, deposit->ticket.weight);
    });
    // A mark that is much larger swallows the others, and their sum looks like that one alone.
    if (waiting.empty() || (!are_all && one == waiting.end()) ||
        (is_mixed && are_all && one != waiting.end())) {
      return waiting.size();
    }
    if (are_all) {
      for (Deposit* deposit : waiting) found->emplace_back(deposit, sum / marks);
    } else {
      found->emplace_back(*one, double{sum} / (*one)->ticket.mark);
    }
    return kFound;
  }

  // Returns the error for sums of marks that stand for neither one nor all of the deposits that
  // wait at their place.
  static Status UnknownSum(const float* arrived, size_t waiting) {
    if (waiting > 1) {
      return Status(
          Code::kFailedPrecondition,
          "expected one or all, by one factor, of the " + std::to_string(waiting) +
              " gradients of this table that share a place in the gradient of its "
              "anchor. Received: a sum of them that is neither. Of a layer that is called more "
              "than " +
              std::to_string(kPlaces) +
              " times in a step, give all gradients to one optimizer, by one factor, and "
              "call drop_gradients() of the table where gradients were taken that are "
              "not applied");
    }
    if (!HasWeights(arrived)) return NotPlain();
    return Status(
        Code::kFailedPrecondition,
        "expected gradients of this table that no optimizer was given before, and that were taken "
        "at most " +
            std::to_string(kMostMissed) +
            " steps ago. Received: gradients that do not wait any more, since they were applied or "
            "dropped, or are older, or were accumulated in another process. Take the gradients "
            "anew for each step; where an earlier version has saved the model amid "
            "gradient_accumulation_steps, compile it with a new optimizer");
  }

  // Returns true if the two sums of each place have a ratio in (1, 2), the range of weights. A
  // factor of the whole gradient does not change these ratios; a change of single elements changes
  // some.
  static bool HasWeights(const float* arrived) {
    for (int place = 0; place < kPlaces; ++place) {
      const float sum = arrived[place], weighted = arrived[kPlaces + place];
      const double ratio = static_cast<double>(weighted) / sum;
      if (!HasVanished(sum, weighted) && !(ratio > 1.0 + kTolerance && ratio < 2.0)) return false;
    }
    return true;
  }

  // The sum of the coordinates of deposits, and the sum of their lengths. Empty if some deposits
  // have no coordinates.
  struct Sum {
    Coordinates coordinates{};
    double length = 0.0;
  };
  static std::optional<Sum> SumOf(const Redeemed& redeemed) {
    Sum sum;
    for (const auto& [deposit, factor] : redeemed) {
      if (!deposit->coordinates.has_value()) return std::nullopt;
      const Coordinates& own = *deposit->coordinates;
      for (int i = 0; i < kCoordinates; ++i) sum.coordinates[i] += factor * own[i];
      sum.length += std::abs(factor) * std::sqrt(Product(own, own));
    }
    return sum;
  }

  // Returns true if the coordinates in `arrived` are the sum of the coordinates of the redeemed
  // deposits.
  static bool IsPlain(const float* arrived, const Redeemed& redeemed, double clipped_to) {
    const std::optional<Sum> sum = SumOf(redeemed);
    if (!sum.has_value()) return true;
    Coordinates rest;
    for (int i = 0; i < kCoordinates; ++i) {
      double expected = sum->coordinates[i];
      if (clipped_to > 0.0) expected = std::clamp(expected, -clipped_to, clipped_to);
      rest[i] = arrived[2 * kPlaces + i] - expected;
    }
    const double off = std::sqrt(Product(rest, rest));
    return !std::isfinite(off) || !std::isfinite(sum->length) ||
           off <= kPlainTolerance * sum->length + kLeast;
  }

  // Returns true if the sum of the coordinates of the redeemed deposits has the norm of the sum of
  // their gradients.
  bool HasItsNorm(const Redeemed& redeemed) {
    const auto fits = [](const auto& each) { return each.first->fits_all; };
    if (redeemed.size() < 2 || std::all_of(redeemed.begin(), redeemed.end(), fits)) return true;
    if (IsAllSinceCommit(redeemed)) return true;
    const std::optional<Sum> sum = SumOf(redeemed);
    if (!sum.has_value() || !std::isfinite(sum->length)) return true;
    double square = 0.0;
    for (size_t i = 0; i < redeemed.size(); ++i) {
      const auto& [deposit, factor] = redeemed[i];
      square += factor * factor * deposit->keys.square();
      for (size_t j = 0; j < i; ++j) {
        square += 2.0 * factor * redeemed[j].second * deposit->keys.Dot(redeemed[j].first->keys);
      }
    }
    const double norm = std::sqrt(Product(sum->coordinates, sum->coordinates));
    return std::abs(norm - std::sqrt(std::max(0.0, square))) <= kNormTolerance * sum->length;
  }

  // Returns true if the redeemed deposits are the first ones since the last commit, all with one
  // factor.
  bool IsAllSinceCommit(const Redeemed& redeemed) const {
    uint64_t last = 0;
    for (const auto& [deposit, factor] : redeemed) {
      // A factor that is the mean of several marks is rounded.
      const double off = std::abs(factor - redeemed[0].second);
      if (deposit->missed > 0 || !(off <= kTolerance * std::abs(factor))) return false;
      last = std::max(last, deposit->ticket.number);
    }
    const auto is_before = [last](const Deposit& deposit) {
      return deposit.missed == 0 && deposit.ticket.number <= last;
    };
    return std::count_if(deposits_.begin(), deposits_.end(), is_before) ==
           static_cast<std::ptrdiff_t>(redeemed.size());
  }

  static Status TooManyForNorms() {
    return Status(Code::kFailedPrecondition,
                  "expected a sum of gradients of this table whose norm is known: of at most " +
                      std::to_string(kCoordinates - 1) +
                      " that wait, or of all since the last step. Received: some of more. Give the "
                      "optimizer all of them at once, or call drop_gradients() of the table where "
                      "gradients were taken that are not applied");
  }

  static bool IsFinite(const float* arrived) {
    return std::all_of(arrived, arrived + kAnchorSize, [](float x) { return std::isfinite(x); });
  }

  static Status NotFinite() {
    return Status(Code::kFailedPrecondition,
                  "expected finite gradients of this table. Received: some that are infinite, and "
                  "that were divided by their norm or multiplied by 0, so that nobody can tell "
                  "which rows they belong to; a dense weight would become NaN in part. Skip such "
                  "steps, as a LossScaleOptimizer does, or clip by global_clipnorm");
  }

  static Status NotPlain() {
    return Status(
        Code::kFailedPrecondition,
        "expected gradients of this table as a tape gives them, added up or multiplied. "
        "Received: some whose elements were changed one by one, as by noise, a sign, a "
        "mean that is subtracted, or a clip of values, which nobody can tell of rows. "
        "Change gradients of dense weights alone, and give that of the layer's `anchor` "
        "to the optimizer as it is. Clip values by the optimizer's clipvalue, and norms "
        "by tf.clip_by_norm, tf.clip_by_global_norm or the optimizer's arguments; average "
        "gradients over workers without compression");
  }

  template <typename Wanted>
  std::vector<Deposit> TakeIf(const Wanted& wanted) {
    const auto gone =
        std::stable_partition(deposits_.begin(), deposits_.end(),
                              [&](const Deposit& deposit) { return !wanted(deposit); });
    std::vector<Deposit> taken(std::make_move_iterator(gone),
                               std::make_move_iterator(deposits_.end()));
    deposits_.erase(gone, deposits_.end());
    for (const Deposit& deposit : taken) places_.Leave(deposit.ticket);
    return taken;
  }

  static std::vector<Deposit> InOrder(std::vector<Deposit> deposits) {
    std::stable_sort(deposits.begin(), deposits.end(), [](const Deposit& a, const Deposit& b) {
      return a.keys.order < b.keys.order;
    });
    return deposits;
  }

  static uint64_t GradientsOf(const std::vector<Deposit>& deposits) {
    uint64_t gradients = 0;
    for (const Deposit& deposit : deposits) gradients += deposit.keys.n;
    return gradients;
  }

  std::atomic<uint64_t> lookups_{0};
  mutable std::mutex mu_;
  TicketPlaces places_;
  std::vector<Deposit> deposits_;
  bool restated_ = false;  // Restated has changed a deposit since the last commit
  bool off_ = false;       // and none has been measured since
};

}  // namespace sok
