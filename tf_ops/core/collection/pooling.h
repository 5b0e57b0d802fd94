// Pools rows into one vector for each bag, and turns gradients of these vectors into gradients of
// rows.
//
// Formulas, with x_i the rows of a bag's keys and w_i their weights, which are 1 without any:
//   sum    sum(w_i x_i)
//   mean   sum(w_i x_i) / sum(w_i)
//   sqrtn  sum(w_i x_i) / sqrt(sum(w_i^2))
//   max    the greatest element of the rows, place by place; the gradient goes to the first of the
//          rows that has it
// A bag without keys, or with a divisor of 0, is all zeros. tf.nn.embedding_lookup_sparse has the
// first three formulas too.
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

// The vectors of bags: the vector of bag i begins at data + i * stride.
template <typename T>
struct BagVectors {
  T* data = nullptr;
  size_t stride = 0;
};

// Pools every feature of a request. `places` says where the rows of all tables lie among `rows`.
template <typename T>  // float or BFloat16
void Pool(const CollectionRequest& request, const std::vector<Pooling>& poolings, const float* rows,
          const RowPlaces& places, const std::vector<BagVectors<T>>& out,
          const ParallelFor& parallel_for);

// Computes the gradients of Pool. `upstream` has the gradients of each feature's vectors; null: the
// feature was not used. `row_gradients` gets the gradient of each row, at the place that
// gradient_places says: a float32 sum over the features in order, and over the keys of each feature
// in order. If the plan has marks_unused, the gradient of a row that no feature used begins with
// kUnusedBits. `weight_gradients` gets (n) floats for each feature, and is null for a feature whose
// weights need no gradient.
template <typename T>
void PoolGradient(const CollectionRequest& request, const std::vector<Pooling>& poolings,
                  const float* rows, const RowPlaces& places,
                  const std::vector<BagVectors<const T>>& upstream, float* row_gradients,
                  const RowPlaces& gradient_places, const std::vector<float*>& weight_gradients,
                  const ParallelFor& parallel_for);

}  // namespace sok
