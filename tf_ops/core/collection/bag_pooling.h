// The vectors of bags of one feature. Internal to this room.
#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "core/base/bfloat16.h"
#include "core/collection/bag_scale.h"
#include "core/collection/pooling.h"
#include "core/collection/request.h"
#include "core/rows/row_copy.h"

namespace sok {

// In these functions `Rows` is a type whose at(i) returns the row of the feature's key i, dim
// floats.
template <typename Rows>
void AddBag(const Rows& rows, const float* weights, size_t begin, size_t end, float* sum) {
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

template <typename Rows>
void MaxOfBag(const Rows& rows, size_t begin, size_t end, float* most) {
  if (begin < end) std::memcpy(most, rows.at(begin), rows.dim * sizeof(float));
  for (size_t i = begin + 1; i < end; ++i) {
    const float* row = rows.at(i);
    for (size_t j = 0; j < rows.dim; ++j) most[j] = row[j] > most[j] ? row[j] : most[j];
  }
}

// Pools bags [first, last).
template <typename Rows, typename T>
void PoolBags(const Rows& rows, const FeatureBags& bags, const Pooling& pooling,
              const BagVectors<T>& out, size_t first, size_t last) {
  if constexpr (std::is_same_v<T, float>) {
    if (bags.is_key_a_bag() && pooling.weights == nullptr) {  // whatever the combiner
      // The vectors of one feature may lie far apart, and then the processor does not prefetch them
      // by itself.
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

}  // namespace sok
