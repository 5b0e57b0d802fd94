// From rows to a vector a bag, and from gradients of these back to gradients of rows.
//
// Formulas, with x_i the rows of a bag's keys and w_i their weights, which are 1 without any:
//   sum    sum(w_i x_i)
//   mean   sum(w_i x_i) / sum(w_i)
//   sqrtn  sum(w_i x_i) / sqrt(sum(w_i^2))
//   max    the greatest element of the rows, place by place; the gradient goes to the first of the
//          rows that has it
// A bag without keys, or with a divisor of 0, is all zeros. The first three are those of
// tf.nn.embedding_lookup_sparse.
#pragma once

#include <cstddef>
#include <vector>

#include "core/base/types.h"
#include "core/collection/placement.h"
#include "core/collection/request.h"

namespace sok {

// The pooling of a feature: how its bags become vectors.
struct Pooling {
  Combiner combiner = Combiner::kSum;
  const float* weights = nullptr;  // (n) one a key; null: they are 1. Not for kMax.
};

// A vector a bag: that of bag i begins at data + i * stride.
template <typename T>
struct BagVectors {
  T* data = nullptr;
  size_t stride = 0;
};

// Pools every feature of a request. places: where the rows of all tables lie among `rows`.
template <typename T>  // float or BFloat16
void Pool(const CollectionRequest& request, const std::vector<Pooling>& poolings, const float* rows,
          const RowPlaces& places, const std::vector<BagVectors<T>>& out,
          const ParallelFor& parallel_for);

// The gradients of Pool. upstream: of the vectors; features that have none (null) were not used.
// row_gradients, which lie as gradient_places says: summed for each row in float32, over its
// features in their order and over the keys of each in theirs; a row that no feature used begins
// with kUnusedBits if the plan marks those. weight_gradients: (n) of each feature, null where they
// are not wanted.
template <typename T>
void PoolGradient(const CollectionRequest& request, const std::vector<Pooling>& poolings,
                  const float* rows, const RowPlaces& places,
                  const std::vector<BagVectors<const T>>& upstream, float* row_gradients,
                  const RowPlaces& gradient_places, const std::vector<float*>& weight_gradients,
                  const ParallelFor& parallel_for);

}  // namespace sok
