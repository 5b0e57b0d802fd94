// Gradients that wait for the commit of their step.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/bfloat16.h"
#include "core/status.h"
#include "core/tickets.h"

namespace sok {

// The place of a deposit among those of its step. Threads deposit as they come; gradients of equal
// keys are summed in this order, so that a run can be repeated bit by bit.
struct DepositOrder {
  int64_t call = 0;      // which call of a graph the lookup is; 0 where calls run one by one
  uint64_t lookup = 0;   // DepositQueue::NextLookup() of the lookup
  int64_t gradient = 0;  // which gradient of a graph it is; 0 where they are taken one by one

  friend bool operator<(const DepositOrder& a, const DepositOrder& b) {
    return std::tie(a.call, a.lookup, a.gradient) < std::tie(b.call, b.lookup, b.gradient);
  }
};

// What gradients wait as until an optimizer is given them, and until it applies them. Keys is what
// a deposit has gradients of: it has their number, n, and their order. Thread-safe.
//
// A deposit belongs to nobody at first. An optimizer redeems it by what reaches it of the anchor's
// gradient; then it is that optimizer's.
template <typename Keys>
class DepositQueue {
 public:
  struct Deposit {
    Keys keys;
    std::shared_ptr<const void> hold;  // keeps the gradients alive
    const float* gradients;            // one of the two is set
    const BFloat16* gradients_bf16;
    uint64_t ticket;
    int64_t optimizer = kNobody;  // whose it is
    float factor = 1.0f;          // that the gradients are multiplied by
    int missed = 0;               // commits that have not redeemed it
  };
  static constexpr int64_t kNobody = -1;
  // Who redeems a deposit later comes too late. Gradients that nobody applies cost memory until
  // then.
  static constexpr int kMostMissed = 16;

  // Numbers lookups as they run.
  uint64_t NextLookup() { return ++lookups_; }

  // Returns the deposit's ticket.
  uint64_t Add(Keys keys, std::shared_ptr<const void> hold, const float* gradients,
               const BFloat16* gradients_bf16) {
    std::lock_guard<std::mutex> guard(mu_);
    deposits_.push_back({std::move(keys), std::move(hold), gradients, gradients_bf16, ++tickets_});
    return tickets_;
  }

  // Whether there are some that are nobody's or the optimizer's.
  bool HasFor(int64_t optimizer) const {
    std::lock_guard<std::mutex> guard(mu_);
    return std::any_of(deposits_.begin(), deposits_.end(), [optimizer](const Deposit& deposit) {
      return deposit.optimizer == kNobody || deposit.optimizer == optimizer;
    });
  }

  // Gives an optimizer those that `arrived` (kAnchorSize) names, which is what has reached it of
  // the anchor's gradient. Those that were not redeemed for too long go. Error: kFailedPrecondition
  // if it names others than those that wait, or some of more than a place can tell apart. Nothing
  // has changed then.
  Status Redeem(const float* arrived, int64_t optimizer) {
    std::vector<Deposit> dropped;  // goes without the lock
    std::lock_guard<std::mutex> guard(mu_);
    std::vector<std::pair<Deposit*, float>> redeemed;
    for (int place = 0; place < kPlaces; ++place) {
      const float sum = arrived[place], weighted = arrived[kPlaces + place];
      if (sum == 0.0f && weighted == 0.0f) continue;
      if (Status status = FindAt(place, sum, weighted, &redeemed); !status.ok()) return status;
    }
    for (const auto& [deposit, factor] : redeemed) {
      deposit->optimizer = optimizer;
      deposit->factor = factor;
    }
    const auto gone =
        std::stable_partition(deposits_.begin(), deposits_.end(), [](Deposit& deposit) {
          return deposit.optimizer != kNobody || ++deposit.missed < kMostMissed;
        });
    dropped.assign(std::make_move_iterator(gone), std::make_move_iterator(deposits_.end()));
    deposits_.erase(gone, deposits_.end());
    return Status();
  }

  // Gives an optimizer all that are nobody's, as they are.
  void RedeemAll(int64_t optimizer) {
    std::lock_guard<std::mutex> guard(mu_);
    for (Deposit& deposit : deposits_) {
      if (deposit.optimizer == kNobody) deposit.optimizer = optimizer;
    }
  }

  // Those of an optimizer, in their order.
  std::vector<Deposit> Take(int64_t optimizer) {
    std::vector<Deposit> taken;
    {
      std::lock_guard<std::mutex> guard(mu_);
      const auto others = std::stable_partition(
          deposits_.begin(), deposits_.end(),
          [optimizer](const Deposit& deposit) { return deposit.optimizer == optimizer; });
      taken.assign(std::make_move_iterator(deposits_.begin()), std::make_move_iterator(others));
      deposits_.erase(deposits_.begin(), others);
    }
    std::stable_sort(taken.begin(), taken.end(), [](const Deposit& a, const Deposit& b) {
      return a.keys.order < b.keys.order;
    });
    return taken;
  }

  // Returns how many gradients there were.
  uint64_t Drop() {
    std::vector<Deposit> dropped;
    {
      std::lock_guard<std::mutex> guard(mu_);
      dropped.swap(deposits_);
    }
    return GradientsOf(dropped);
  }

  uint64_t gradients() const {
    std::lock_guard<std::mutex> guard(mu_);
    return GradientsOf(deposits_);
  }

 private:
  // Ratios of weights are at least 1 / 65536 apart; a few roundings of float32 are not as much.
  static constexpr double kTolerance = 4e-6;

  static bool Near(double value, double expected) {
    return std::abs(value - expected) <= kTolerance * expected;
  }

  // Finds the deposits of a place that two sums of marks stand for: all of them, or one.
  Status FindAt(int place, float sum, float weighted,
                std::vector<std::pair<Deposit*, float>>* found) {
    std::vector<Deposit*> waiting;
    double weights = 0.0;
    for (Deposit& deposit : deposits_) {
      if (deposit.optimizer != kNobody || PlaceOf(deposit.ticket) != place) continue;
      waiting.push_back(&deposit);
      weights += WeightOf(deposit.ticket);
    }
    if (!std::isfinite(sum) || !std::isfinite(weighted)) {
      // A factor of NaN makes one of every 0 too, also where nothing is.
      for (Deposit* deposit : waiting) found->emplace_back(deposit, sum);
      return Status();
    }
    const double ratio = static_cast<double>(weighted) / sum;
    const double count = static_cast<double>(waiting.size());
    if (!waiting.empty() && Near(ratio, weights / count)) {
      const auto factor = static_cast<float>(sum / count / kMark);
      for (Deposit* deposit : waiting) found->emplace_back(deposit, factor);
      return Status();
    }
    for (Deposit* deposit : waiting) {
      if (!Near(ratio, WeightOf(deposit->ticket))) continue;
      found->emplace_back(deposit, sum / kMark);
      return Status();
    }
    return Status(
        Code::kFailedPrecondition,
        "expected gradients of this table that no optimizer was given before, and that were taken "
        "at most " +
            std::to_string(kMostMissed) +
            " steps ago. Received: others. Take the gradients anew for each step; of a layer that "
            "is called more than " +
            std::to_string(kPlaces) + " times in a step, give all to one optimizer, by one factor");
  }

  static uint64_t GradientsOf(const std::vector<Deposit>& deposits) {
    uint64_t gradients = 0;
    for (const Deposit& deposit : deposits) gradients += deposit.keys.n;
    return gradients;
  }

  std::atomic<uint64_t> lookups_{0};
  mutable std::mutex mu_;
  uint64_t tickets_ = 0;
  std::vector<Deposit> deposits_;
};

}  // namespace sok
