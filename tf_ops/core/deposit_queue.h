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

#include "core/bfloat16.h"
#include "core/coordinates.h"
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

// What gradients wait as until a commit redeems them. Keys is what a deposit has gradients of: it
// has their number, n, and their order; with norms also square() and Dot(other). Thread-safe.
template <typename Keys>
class DepositQueue {
 public:
  struct Deposit {
    Keys keys;
    std::shared_ptr<const void> hold;  // keeps the gradients alive
    const float* gradients;            // one of the two is set
    const BFloat16* gradients_bf16;
    uint64_t ticket;
    std::optional<Coordinates> coordinates = std::nullopt;
    float factor = 1.0f;  // that the gradients are multiplied by
    int missed = 0;       // commits that have not redeemed it
  };
  // Who redeems a deposit later comes too late. Gradients that nobody applies cost memory until
  // then.
  static constexpr int kMostMissed = 16;

  // Numbers lookups as they run.
  uint64_t NextLookup() { return ++lookups_; }

  // Takes gradients whose anchor's gradient names nothing.
  void Add(Keys keys, std::shared_ptr<const void> hold, const float* gradients,
           const BFloat16* gradients_bf16) {
    std::lock_guard<std::mutex> guard(mu_);
    deposits_.push_back({std::move(keys), std::move(hold), gradients, gradients_bf16, ++tickets_});
  }

  // Takes gradients, and adds to the gradient of their anchor (kAnchorSize) what names them; with
  // `measures` also the norm that they have beside those that wait. Returns the ticket.
  uint64_t Add(Keys keys, std::shared_ptr<const void> hold, const float* gradients,
               const BFloat16* gradients_bf16, float* anchor_gradient, bool measures = true) {
    std::lock_guard<std::mutex> guard(mu_);
    if (!measures) {
      deposits_.push_back(
          {std::move(keys), std::move(hold), gradients, gradients_bf16, ++tickets_});
      AddMark(tickets_, anchor_gradient);
      return tickets_;
    }
    std::vector<Coordinates> others;
    std::vector<double> products;
    for (Deposit& deposit : deposits_) {
      if (!deposit.coordinates.has_value()) continue;
      others.push_back(*deposit.coordinates);
      products.push_back(deposit.keys.Dot(keys));
    }
    const Coordinates own = CoordinatesOf(others, products, keys.square());
    deposits_.push_back(
        {std::move(keys), std::move(hold), gradients, gradients_bf16, ++tickets_, own});
    AddMark(tickets_, anchor_gradient);
    AddCoordinates(own, anchor_gradient);
    return tickets_;
  }

  bool empty() const {
    std::lock_guard<std::mutex> guard(mu_);
    return deposits_.empty();
  }

  // Takes those that `arrived` (kAnchorSize) names, which is what has reached an optimizer of the
  // anchor's gradient, in their order. Those that were not redeemed for too long go. `plain`: the
  // gradients may have been added up and multiplied on their way, and nothing else.
  // Error: kFailedPrecondition if it names others than those that wait, some of more than a place
  // can tell apart, or gradients that were changed otherwise. Nothing has changed then.
  Result<std::vector<Deposit>> Redeem(const float* arrived, bool plain) {
    std::vector<Deposit> dropped;  // goes without the lock
    std::lock_guard<std::mutex> guard(mu_);
    std::vector<std::pair<Deposit*, float>> redeemed;
    for (int place = 0; place < kPlaces; ++place) {
      const float sum = arrived[place], weighted = arrived[kPlaces + place];
      if (sum == 0.0f && weighted == 0.0f) continue;
      if (Status status = FindAt(place, sum, weighted, &redeemed); !status.ok()) return status;
    }
    if (plain && !IsPlain(arrived, redeemed)) return NotPlain();
    for (Deposit& deposit : deposits_) ++deposit.missed;
    for (const auto& [deposit, factor] : redeemed) {
      deposit->factor = factor;
      deposit->missed = kRedeemed;
    }
    std::vector<Deposit> taken = TakeIf([](const Deposit& d) { return d.missed == kRedeemed; });
    dropped = TakeIf([](const Deposit& d) { return d.missed >= kMostMissed; });
    return InOrder(std::move(taken));
  }

  // Takes all, as they are, in their order.
  std::vector<Deposit> TakeAll() {
    std::lock_guard<std::mutex> guard(mu_);
    return InOrder(std::exchange(deposits_, {}));
  }

  // Returns how many gradients there were.
  uint64_t Drop() { return GradientsOf(TakeAll()); }

  uint64_t gradients() const {
    std::lock_guard<std::mutex> guard(mu_);
    return GradientsOf(deposits_);
  }

 private:
  // Ratios of weights are at least 1 / 65536 apart; a few roundings of float32 are not as much.
  static constexpr double kTolerance = 4e-6;

  // What float32 makes of sums of coordinates; whoever changes single elements changes more.
  static constexpr double kPlainTolerance = 1e-3;
  static constexpr double kLeast = 1e-30;  // what is shorter may have lost digits
  static constexpr int kRedeemed = -1;

  static bool Near(double value, double expected) {
    return std::abs(value - expected) <= kTolerance * expected;
  }

  // Finds the deposits of a place that two sums of marks stand for: all of them, or one.
  Status FindAt(int place, float sum, float weighted,
                std::vector<std::pair<Deposit*, float>>* found) {
    std::vector<Deposit*> waiting;
    double weights = 0.0;
    for (Deposit& deposit : deposits_) {
      if (PlaceOf(deposit.ticket) != place) continue;
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

  // Whether the coordinates that have arrived are the sum of those that were redeemed.
  static bool IsPlain(const float* arrived,
                      const std::vector<std::pair<Deposit*, float>>& redeemed) {
    Coordinates rest{};
    for (int i = 0; i < kCoordinates; ++i) rest[i] = arrived[2 * kPlaces + i];
    double length = 0.0;
    for (const auto& [deposit, factor] : redeemed) {
      if (!deposit->coordinates.has_value()) return true;
      const Coordinates& own = *deposit->coordinates;
      for (int i = 0; i < kCoordinates; ++i) rest[i] -= factor * own[i];
      length += std::abs(factor) * std::sqrt(Product(own, own));
    }
    const double off = std::sqrt(Product(rest, rest));
    return !std::isfinite(off) || !std::isfinite(length) ||
           off <= kPlainTolerance * length + kLeast;
  }

  static Status NotPlain() {
    return Status(Code::kFailedPrecondition,
                  "expected gradients of this table as a tape gives them, added up or multiplied. "
                  "Received: some whose elements were changed one by one, which nobody can tell of "
                  "rows. Clip values by the optimizer's clipvalue, and norms by tf.clip_by_norm, "
                  "tf.clip_by_global_norm or the optimizer's arguments; average them over workers "
                  "without compression");
  }

  template <typename Wanted>
  std::vector<Deposit> TakeIf(const Wanted& wanted) {
    const auto gone =
        std::stable_partition(deposits_.begin(), deposits_.end(),
                              [&](const Deposit& deposit) { return !wanted(deposit); });
    std::vector<Deposit> taken(std::make_move_iterator(gone),
                               std::make_move_iterator(deposits_.end()));
    deposits_.erase(gone, deposits_.end());
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
  uint64_t tickets_ = 0;
  std::vector<Deposit> deposits_;
};

}  // namespace sok
