// Computes the dense gradient of a weight that fits into the cache. The entries are cut into
// groups; each group has sums of its own for all positions, and these are added up in the end.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/bags/contributions.h"
#include "core/bags/scratch.h"
#include "core/base/types.h"

namespace sok {

// The sizes of the batch and the weight alone decide on the groups, which are added in order: the
// number of threads changes nothing.
template <typename Sum>
class SplitGradient {
 public:
  // Both arguments must outlive this object.
  SplitGradient(const BagGradient<Sum>& gradient, const Contributions<Sum>& contributions)
      : positions_(gradient.positions),
        contributions_(contributions),
        groups_(Groups(gradient, contributions)) {}

  // Returns whether the batch touches the weight so often that sums for all positions pay.
  bool suits() const { return groups_ >= 2; }

  // Computes the gradient of the weight into sums (positions.size()).
  void Run(Sum* sums, const ParallelFor& parallel_for) const {
    const int64_t size = positions_.size(), units = contributions_.units();
    Scratch<Sum> scratch;  // the sums of all groups but the first
    scratch.Resize((groups_ - 1) * size);
    const auto of_group = [&](int64_t g) {
      return g == 0 ? sums : scratch.data() + (g - 1) * size;
    };
    const int64_t cost = units / groups_ * contributions_.dim() * 2;
    parallel_for(groups_, cost, [&](int64_t first, int64_t last) {
      for (int64_t g = first; g < last; ++g) {
        std::fill_n(of_group(g), size, Sum{0});
        Add(units * g / groups_, units * (g + 1) / groups_, of_group(g));
      }
    });
    parallel_for(size, groups_, [&](int64_t begin, int64_t end) {
      for (int64_t g = 1; g < groups_; ++g) {
        const Sum* from = of_group(g);
        for (int64_t i = begin; i < end; ++i) sums[i] += from[i];
      }
    });
  }

 private:
  static constexpr int64_t kMaxSize = int64_t{1} << 21;  // of a weight that fits into the cache
  static constexpr int64_t kMaxGroups = 8;
  static constexpr int64_t kChunkElements = 4096;

  static int64_t Groups(const BagGradient<Sum>& gradient, const Contributions<Sum>& contributions) {
    const int64_t size = gradient.positions.size();
    if (size > kMaxSize) return 0;
    const int64_t units = contributions.units();
    return std::min({kMaxGroups, units, units * contributions.dim() / size});
  }

  void Add(int64_t begin, int64_t end, Sum* sums) const {
    const int64_t dim = positions_.dim();
    const int64_t chunk = std::max<int64_t>(1, kChunkElements / dim);
    std::vector<uint64_t> places(chunk * dim);
    for (int64_t from = begin; from < end; from += chunk) {
      const int64_t to = std::min(from + chunk, end);
      contributions_.Positions(from, to, places.data());
      contributions_.Values(from, to, [&, at = places.data()](const Sum* values, int n) mutable {
        for (int i = 0; i < n; ++i) sums[at[i]] += values[i];
        at += n;
      });
    }
  }

  const PositionMap& positions_;
  const Contributions<Sum>& contributions_;
  const int64_t groups_;
};

}  // namespace sok
