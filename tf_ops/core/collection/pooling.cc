#include "core/collection/pooling.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "core/base/bfloat16.h"
#include "core/collection/bag_scale.h"
#include "core/rows/row_copy.h"

namespace sok {
namespace {

// Rows of a feature's table.
struct FeatureRows {
  PlacedRows<const float> rows;
  const uint32_t* row_of;  // (n)
  size_t dim;
  const float* at(size_t i) const { return rows.at(row_of[i]); }
};

void AddBag(const FeatureRows& rows, const float* weights, size_t begin, size_t end, float* sum) {
  for (size_t i = begin; i < end; ++i) {
    const float* row = rows.at(i);
    if (weights == nullptr) {
      for (size_t j = 0; j < rows.dim; ++j) sum[j] += row[j];
    } else {
      const float weight = weights[i];
      for (size_t j = 0; j < rows.dim; ++j) sum[j] += weight * row[j];
    }
  }
}

void MaxOfBag(const FeatureRows& rows, size_t begin, size_t end, float* most) {
  if (begin < end) std::memcpy(most, rows.at(begin), rows.dim * sizeof(float));
  for (size_t i = begin + 1; i < end; ++i) {
    const float* row = rows.at(i);
    for (size_t j = 0; j < rows.dim; ++j) most[j] = row[j] > most[j] ? row[j] : most[j];
  }
}

template <typename T>
void PoolBags(const FeatureRows& rows, const FeatureBags& bags, const Pooling& pooling,
              const BagVectors<T>& out, size_t first, size_t last) {
  if constexpr (std::is_same_v<T, float>) {
    if (bags.is_key_a_bag() && pooling.weights == nullptr) {  // whatever the combiner
      // Vectors of one feature may be far apart, where the processor does not prefetch by itself.
      constexpr size_t kAhead = 16;
      for (size_t bag = first; bag < last; ++bag) {
        __builtin_prefetch(out.data + (bag + kAhead) * out.stride, /*rw=*/1);
        CopyRow(rows.at(bag), static_cast<int>(rows.dim), out.data + bag * out.stride);
      }
      return;
    }
  }
  std::vector<float> sum(rows.dim);
  for (size_t bag = first; bag < last; ++bag) {
    const size_t begin = bags.begin(bag), end = bags.end(bag);
    T* to = out.data + bag * out.stride;
    if constexpr (std::is_same_v<T, float>) {
      if (end - begin == 1 && pooling.weights == nullptr) {  // whatever the combiner
        std::memcpy(to, rows.at(begin), rows.dim * sizeof(float));
        continue;
      }
    }
    std::fill(sum.begin(), sum.end(), 0.0f);
    float scale = 1.0f;
    if (pooling.combiner == Combiner::kMax) {
      MaxOfBag(rows, begin, end, sum.data());
    } else {
      AddBag(rows, pooling.weights, begin, end, sum.data());
      scale = ScaleOf(pooling, begin, end).scale;
    }
    for (size_t j = 0; j < rows.dim; ++j) to[j] = FromFloat<T>(scale * sum[j]);
  }
}

}  // namespace

template <typename T>
void Pool(const CollectionRequest& request, const std::vector<Pooling>& poolings, const float* rows,
          const RowPlaces& places, const std::vector<BagVectors<T>>& out,
          const ParallelFor& parallel_for) {
  const CollectionPlan& plan = request.plan();
  // Bags of all features are numbered through.
  std::vector<size_t> starts{0};
  size_t floats = 0;
  for (size_t feature = 0; feature < poolings.size(); ++feature) {
    const FeatureBags& bags = request.feature(feature);
    starts.push_back(starts.back() + bags.bags);
    floats += (bags.n + bags.bags) * plan.tables[plan.feature_tables[feature]].dim;
  }
  const size_t all = starts.back();
  if (all == 0) return;
  const auto cost = static_cast<int64_t>(20 + floats / all / 4);
  parallel_for(static_cast<int64_t>(all), cost, [&](int64_t begin, int64_t end) {
    const auto first = static_cast<size_t>(begin), last = static_cast<size_t>(end);
    size_t feature = std::upper_bound(starts.begin(), starts.end(), first) - starts.begin() - 1;
    for (; feature < poolings.size() && starts[feature] < last; ++feature) {
      const uint32_t table = plan.feature_tables[feature];
      const auto dim = static_cast<size_t>(plan.tables[table].dim);
      const FeatureRows of_feature{{rows, places, table, dim}, request.rows_of(feature), dim};
      PoolBags(of_feature, request.feature(feature), poolings[feature], out[feature],
               std::max(first, starts[feature]) - starts[feature],
               std::min(last, starts[feature + 1]) - starts[feature]);
    }
  });
}

template void Pool(const CollectionRequest&, const std::vector<Pooling>&, const float*,
                   const RowPlaces&, const std::vector<BagVectors<float>>&, const ParallelFor&);
template void Pool(const CollectionRequest&, const std::vector<Pooling>&, const float*,
                   const RowPlaces&, const std::vector<BagVectors<BFloat16>>&, const ParallelFor&);

}  // namespace sok
