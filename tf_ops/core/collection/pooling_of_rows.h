// Pools rows that lie in the order of their keys into one vector for each bag, with the bits that
// Pool would give.
#pragma once

#include <cstddef>

#include "core/base/types.h"
#include "core/collection/pooling.h"
#include "core/collection/request.h"

namespace sok {

// rows: (bags.n, dim). out: (bags.bags, dim). The keys of `bags` are not read. Its splits must
// begin with 0, never fall and end with bags.n.
void PoolRows(const float* rows, size_t dim, const FeatureBags& bags, const Pooling& pooling,
              float* out, const ParallelFor& parallel_for);

}  // namespace sok
