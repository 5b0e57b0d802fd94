// From rows that lie in the order of their keys to a vector a bag, as Pool has them, bit for bit.
#pragma once

#include <cstddef>

#include "core/base/types.h"
#include "core/collection/pooling.h"
#include "core/collection/request.h"

namespace sok {

// rows: (bags.n, dim). out: (bags.bags, dim). Of `bags` the keys are not read; its splits begin
// with 0, never fall and end with bags.n.
void PoolRows(const float* rows, size_t dim, const FeatureBags& bags, const Pooling& pooling,
              float* out, const ParallelFor& parallel_for);

}  // namespace sok
