#include "core/collection/pooling_of_rows.h"

#include "core/collection/bag_pooling.h"

namespace sok {
namespace {

struct RowsInOrder {
  const float* rows;
  size_t dim;
  const float* at(size_t i) const { return rows + i * dim; }
};

}  // namespace

void PoolRows(const float* rows, size_t dim, const FeatureBags& bags, const Pooling& pooling,
              float* out, const ParallelFor& parallel_for) {
  if (bags.bags == 0) return;
  const auto cost = static_cast<int64_t>(20 + (bags.n + bags.bags) * dim / bags.bags / 4);
  parallel_for(static_cast<int64_t>(bags.bags), cost, [&](int64_t begin, int64_t end) {
    PoolBags(RowsInOrder{rows, dim}, bags, pooling, BagVectors<float>{out, dim},
             static_cast<size_t>(begin), static_cast<size_t>(end));
  });
}

}  // namespace sok
