// Gradients that wait for the commit of their step.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <iterator>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "core/bfloat16.h"

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

// Keys is what a deposit has gradients of: it has their number, n, and their order. Thread-safe.
template <typename Keys>
class DepositQueue {
 public:
  struct Deposit {
    Keys keys;
    std::shared_ptr<const void> hold;  // keeps the gradients alive
    const float* gradients;            // one of the two is set
    const BFloat16* gradients_bf16;
    int64_t optimizer;  // that accumulates it; kNobody until one has seen it
  };
  static constexpr int64_t kNobody = -1;

  // Numbers lookups as they run.
  uint64_t NextLookup() { return ++lookups_; }

  void Add(Keys keys, std::shared_ptr<const void> hold, const float* gradients,
           const BFloat16* gradients_bf16) {
    std::lock_guard<std::mutex> guard(mu_);
    deposits_.push_back({std::move(keys), std::move(hold), gradients, gradients_bf16, kNobody});
  }

  // Whether there are some that Take would return.
  bool HasFor(int64_t optimizer) const {
    std::lock_guard<std::mutex> guard(mu_);
    return std::any_of(deposits_.begin(), deposits_.end(),
                       [optimizer](const Deposit& deposit) { return IsFor(deposit, optimizer); });
  }

  // Those that no other optimizer accumulates, in their order.
  std::vector<Deposit> Take(int64_t optimizer) {
    std::vector<Deposit> taken;
    {
      std::lock_guard<std::mutex> guard(mu_);
      const auto others = std::stable_partition(
          deposits_.begin(), deposits_.end(),
          [optimizer](const Deposit& deposit) { return IsFor(deposit, optimizer); });
      taken.assign(std::make_move_iterator(deposits_.begin()), std::make_move_iterator(others));
      deposits_.erase(deposits_.begin(), others);
    }
    std::stable_sort(taken.begin(), taken.end(), [](const Deposit& a, const Deposit& b) {
      return a.keys.order < b.keys.order;
    });
    return taken;
  }

  // Leaves those that nobody accumulates to an optimizer.
  void Accumulate(int64_t optimizer) {
    std::lock_guard<std::mutex> guard(mu_);
    for (Deposit& deposit : deposits_) {
      if (deposit.optimizer == kNobody) deposit.optimizer = optimizer;
    }
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
  static bool IsFor(const Deposit& deposit, int64_t optimizer) {
    return deposit.optimizer == kNobody || deposit.optimizer == optimizer;
  }
  static uint64_t GradientsOf(const std::vector<Deposit>& deposits) {
    uint64_t gradients = 0;
    for (const Deposit& deposit : deposits) gradients += deposit.keys.n;
    return gradients;
  }

  std::atomic<uint64_t> lookups_{0};
  mutable std::mutex mu_;
  std::vector<Deposit> deposits_;
};

}  // namespace sok
