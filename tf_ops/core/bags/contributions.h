// Says what each entry of a batch adds to the gradient of the weight, position by position.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/bags/gradient.h"

namespace sok {

// Reads the upstream gradient of each bag's entries: the gradient of a mean is divided by the
// number of its entries.
template <typename Sum>
class EntryGradients {
 public:
  EntryGradients(const BagGradient<Sum>& gradient, const ParallelFor& parallel_for)
      : dim_(gradient.positions.dim()), rows_(gradient.upstream) {
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

// Finds the bag of each entry; entries must be requested in ascending order.
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

// Lists the contributions of units. A unit is an entry, or with kMax a bag, where each element of
// the bag goes to its winner alone. A unit has at most dim contributions.
template <typename Sum>
class Contributions {
 public:
  // Both arguments must outlive this object.
  Contributions(const BagGradient<Sum>& gradient, const EntryGradients<Sum>& entry_gradients)
      : gradient_(gradient), entry_gradients_(entry_gradients) {}

  int64_t units() const {
    return gradient_.mode == BagMode::kMax ? gradient_.bags.bags : gradient_.bags.entries();
  }
  int64_t dim() const { return gradient_.positions.dim(); }

  // The positions of units [begin, end), in order. Returns how many it has written.
  //   positions ((end - begin) * dim)
  int64_t Positions(int64_t begin, int64_t end, uint64_t* positions) const {
    const Bags& bags = gradient_.bags;
    const PositionMap& map = gradient_.positions;
    int64_t n = 0;
    for (int64_t unit = begin; unit < end; ++unit) {
      if (gradient_.mode == BagMode::kMax) {
        const int64_t* winners = gradient_.winners + unit * map.dim();
        for (int d = 0; d < map.dim(); ++d) {
          if (winners[d] >= 0) positions[n++] = map.Position(IdOf(winners[d]), d);
        }
      } else if (!bags.padded(unit)) {
        map.Positions(IdOf(unit), positions + n);
        n += map.dim();
      }
    }
    return n;
  }

  // Calls fn(values, n) for consecutive parts of the values for these positions, in the same order.
  template <typename Fn>
  void Values(int64_t begin, int64_t end, Fn&& fn) const {
    if (gradient_.mode == BagMode::kMax) {
      ValuesOfWinners(begin, end, fn);
    } else {
      ValuesOfEntries(begin, end, fn);
    }
  }

 private:
  uint64_t IdOf(int64_t entry) const { return static_cast<uint64_t>(gradient_.bags.ids[entry]); }

  template <typename Fn>
  void ValuesOfEntries(int64_t begin, int64_t end, Fn&& fn) const {
    const PositionMap& map = gradient_.positions;
    const int dim = map.dim();
    const bool plain = gradient_.scales == nullptr && !map.sign();
    std::vector<uint64_t> signs(map.sign_words());
    std::vector<Sum> values(dim);
    BagFinder finder(gradient_.bags, begin);
    for (int64_t e = begin; e < end; ++e) {
      if (gradient_.bags.padded(e)) continue;
      const Sum* upstream = entry_gradients_.of_bag(finder.BagOf(e));
      if (plain) {
        fn(upstream, dim);
        continue;
      }
      const Sum scale = gradient_.scales == nullptr ? Sum{1} : gradient_.scales[e];
      for (int d = 0; d < dim; ++d) values[d] = upstream[d] * scale;
      if (map.sign()) {
        map.SignWords(IdOf(e), signs.data());
        ApplySigns(signs.data(), 0, dim, values.data());
      }
      fn(values.data(), dim);
    }
  }

  template <typename Fn>
  void ValuesOfWinners(int64_t begin, int64_t end, Fn&& fn) const {
    const PositionMap& map = gradient_.positions;
    std::vector<Sum> values(map.dim());
    for (int64_t bag = begin; bag < end; ++bag) {
      const Sum* upstream = entry_gradients_.of_bag(bag);
      const int64_t* winners = gradient_.winners + bag * map.dim();
      int n = 0;
      for (int d = 0; d < map.dim(); ++d) {
        if (winners[d] < 0) continue;
        values[n++] = map.Minus(IdOf(winners[d]), d) ? -upstream[d] : upstream[d];
      }
      fn(values.data(), n);
    }
  }

  const BagGradient<Sum>& gradient_;
  const EntryGradients<Sum>& entry_gradients_;
};

}  // namespace sok
