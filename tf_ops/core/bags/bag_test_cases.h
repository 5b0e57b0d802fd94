// Makes batches of bags for tests, and computes their sums and gradients in the plain way: one
// entry and one element after the other, as the definition says.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "core/bags/bags.h"
#include "core/bags/gradient.h"
#include "core/bags/position_map.h"
#include "core/base/test_result.h"
#include "core/base/test_threads.h"

namespace sok {

// A batch of bags of 0 to 6 ids, with a weight, gradients and factors.
struct BagCase {
  PositionMap positions;
  BagMode mode;
  std::vector<int64_t> ids, splits{0};
  std::vector<double> weight, upstream, scales;
  Bags bags;

  BagCase(const PositionMapOptions& options, BagMode bag_mode, int64_t count, bool padding = false)
      : positions(Value(PositionMap::Make(options))), mode(bag_mode) {
    std::mt19937_64 random(TestSeed());
    const auto uniform = [&] { return static_cast<double>(random() >> 11) * 0x1p-52 - 1; };
    for (int64_t bag = 0; bag < count; ++bag) {
      splits.push_back(splits.back() + static_cast<int64_t>(random() % 7));
    }
    for (int64_t e = 0; e < splits.back(); ++e) {
      ids.push_back(static_cast<int64_t>(random() % options.num_embeddings));
      scales.push_back(uniform());
    }
    for (int64_t i = 0; i < options.size; ++i) weight.push_back(uniform());
    for (int64_t i = 0; i < count * options.dim; ++i) upstream.push_back(uniform());
    bags = {ids.data(), splits.data(), count, padding && !ids.empty() ? ids[0] : -1};
  }
  BagCase(const BagCase&) = delete;

  double Element(int64_t entry, int d) const {
    const auto id = static_cast<uint64_t>(ids[entry]);
    return weight[positions.Position(id, d)] * (positions.Minus(id, d) ? -1 : 1);
  }

  // Returns the vectors of the bags, of shape (bags, dim). Writes the entries that a maximum came
  // from, or -1, to `winners`, in the same shape.
  std::vector<double> Forward(bool scaled, std::vector<int64_t>* winners) const {
    const int dim = positions.dim();
    std::vector<double> out(upstream.size(), 0);
    winners->assign(upstream.size(), -1);
    for (int64_t bag = 0; bag < bags.bags; ++bag) {
      for (int d = 0; d < dim; ++d) {
        double& result = out[bag * dim + d];
        int64_t& winner = (*winners)[bag * dim + d];
        for (int64_t e = splits[bag]; e < splits[bag + 1]; ++e) {
          if (bags.padded(e)) continue;
          const double element = Element(e, d);
          if (mode != BagMode::kMax) {
            result += scaled ? element * scales[e] : element;
          } else if (winner < 0 || element > result) {
            result = element;
            winner = e;
          }
        }
        const int64_t n = bags.Count(bag);
        if (mode == BagMode::kMean && n > 0) result /= static_cast<double>(n);
      }
    }
    return out;
  }

  // Returns the gradient of the weight, one number for each of its elements.
  std::vector<double> WeightGradient(bool scaled, const std::vector<int64_t>& winners) const {
    const int dim = positions.dim();
    std::vector<double> sums(weight.size(), 0);
    for (int64_t bag = 0; bag < bags.bags; ++bag) {
      for (int64_t e = splits[bag]; e < splits[bag + 1]; ++e) {
        if (bags.padded(e)) continue;
        for (int d = 0; d < dim; ++d) {
          if (mode == BagMode::kMax && winners[bag * dim + d] != e) continue;
          double value = upstream[bag * dim + d] * (scaled ? scales[e] : 1);
          if (mode == BagMode::kMean) value /= static_cast<double>(bags.Count(bag));
          const auto id = static_cast<uint64_t>(ids[e]);
          sums[positions.Position(id, d)] += positions.Minus(id, d) ? -value : value;
        }
      }
    }
    return sums;
  }
};

inline PositionMapOptions BagOptions(int64_t size, int64_t dim, int64_t block_size, bool sign,
                                     PositionHash hash = PositionHash::kMixed) {
  PositionMapOptions options;
  options.hash = hash;
  options.size = size;
  options.num_embeddings = 500;
  options.dim = dim;
  options.block_size = block_size;
  options.sign = sign;
  return options;
}

}  // namespace sok
