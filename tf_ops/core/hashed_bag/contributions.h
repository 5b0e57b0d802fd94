// What each entry of a batch adds to the gradient of the weight, slot by slot.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/hashed_bag/gradient.h"

namespace sok {

// The upstream gradient of each bag's entries: that of a mean is spread over its entries.
template <typename Sum>
class EntryGradients {
 public:
  EntryGradients(const BagGradient<Sum>& gradient, const ParallelFor& parallel_for)
      : dim_(gradient.slots.dim()), rows_(gradient.upstream) {
    if (gradient.mode != BagMode::kMean) return;
    const Bags& bags = gradient.bags;
    spread_.resize(static_cast<size_t>(bags.bags) * dim_);
    rows_ = spread_.data();
    parallel_for(bags.bags, 10 + dim_ / 2, [&](int64_t begin, int64_t end) {
      for (int64_t bag = begin; bag < end; ++bag) {
        const auto count = static_cast<Sum>(std::max<int64_t>(bags.Count(bag), 1));
        for (int64_t i = bag * dim_; i < (bag + 1) * dim_; ++i) {
          spread_[i] = gradient.upstream[i] / count;
        }
      }
    });
  }

  // (dim)
  const Sum* of_bag(int64_t bag) const { return rows_ + bag * dim_; }

 private:
  int64_t dim_;
  const Sum* rows_;
  std::vector<Sum> spread_;
};

// Finds the bags of entries that are asked for in ascending order.
class BagFinder {
 public:
  BagFinder(const Bags& bags, int64_t first_entry)
      : splits_(bags.splits),
        bag_(std::upper_bound(bags.splits, bags.splits + bags.bags + 1, first_entry) - bags.splits -
             1) {}

  int64_t BagOf(int64_t entry) {
    while (splits_[bag_ + 1] <= entry) ++bag_;
    return bag_;
  }

 private:
  const int64_t* splits_;
  int64_t bag_;
};

// The contributions of units: of entries, or of bags with kMax, where each element of a bag goes
// to its winner alone. A unit has at most dim of them.
template <typename Sum>
class Contributions {
 public:
  // Both must outlive this.
  Contributions(const BagGradient<Sum>& gradient, const EntryGradients<Sum>& entry_gradients)
      : gradient_(gradient), entry_gradients_(entry_gradients) {}

  int64_t units() const {
    return gradient_.mode == BagMode::kMax ? gradient_.bags.bags : gradient_.bags.entries();
  }
  int64_t dim() const { return gradient_.slots.dim(); }

  // Those of units [begin, end), in order. Returns how many it has written.
  //   slots, values ((end - begin) * dim)
  int64_t Emit(int64_t begin, int64_t end, uint64_t* slots, Sum* values) const {
    return gradient_.mode == BagMode::kMax ? EmitWinners(begin, end, slots, values)
                                           : EmitEntries(begin, end, slots, values);
  }

 private:
  int64_t EmitEntries(int64_t begin, int64_t end, uint64_t* slots, Sum* values) const {
    const SlotMap& map = gradient_.slots;
    const Bags& bags = gradient_.bags;
    const int dim = map.dim();
    std::vector<uint64_t> signs(map.sign() ? map.sign_words() : 0);
    BagFinder finder(bags, begin);
    int64_t n = 0;
    for (int64_t e = begin; e < end; ++e) {
      if (bags.padded(e)) continue;
      const auto id = static_cast<uint64_t>(bags.ids[e]);
      map.Slots(id, slots + n);
      const Sum* upstream = entry_gradients_.of_bag(finder.BagOf(e));
      const Sum scale = gradient_.scales == nullptr ? Sum{1} : gradient_.scales[e];
      for (int d = 0; d < dim; ++d) values[n + d] = upstream[d] * scale;
      if (map.sign()) {
        map.SignWords(id, signs.data());
        ApplySigns(signs.data(), 0, dim, values + n);
      }
      n += dim;
    }
    return n;
  }

  int64_t EmitWinners(int64_t begin, int64_t end, uint64_t* slots, Sum* values) const {
    const SlotMap& map = gradient_.slots;
    const int dim = map.dim();
    int64_t n = 0;
    for (int64_t bag = begin; bag < end; ++bag) {
      const Sum* upstream = entry_gradients_.of_bag(bag);
      const int64_t* winners = gradient_.winners + bag * dim;
      for (int d = 0; d < dim; ++d) {
        if (winners[d] < 0) continue;
        const auto id = static_cast<uint64_t>(gradient_.bags.ids[winners[d]]);
        slots[n] = map.Slot(id, d);
        values[n++] = map.Minus(id, d) ? -upstream[d] : upstream[d];
      }
    }
    return n;
  }

  const BagGradient<Sum>& gradient_;
  const EntryGradients<Sum>& entry_gradients_;
};

}  // namespace sok
