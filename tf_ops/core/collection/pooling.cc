#include "core/collection/pooling.h"

#include <algorithm>

#include "core/base/bfloat16.h"
#include "core/collection/bag_pooling.h"

namespace sok {
namespace {

// The rows of one feature's table.
struct FeatureRows {
  PlacedRows<const float> rows;
  const uint32_t* row_of;  // (n)
  size_t dim;
  const float* at(size_t i) const { return rows.at(row_of[i]); }
};

}  // namespace

template <typename T>
void Pool(const CollectionRequest& request, const std::vector<Pooling>& poolings, const float* rows,
          const RowPlaces& places, const std::vector<BagVectors<T>>& out,
          const ParallelFor& parallel_for) {
  const CollectionPlan& plan = request.plan();
  // The bags of all features have one numbering: bags of feature 0, of feature 1, …
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
