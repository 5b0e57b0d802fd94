// The factor that the sum of a bag is multiplied by. Internal to this room.
#pragma once

#include <cmath>
#include <cstddef>

#include "core/collection/pooling.h"

namespace sok {

struct BagScale {
  float scale = 1.0f;    // 1 over the divisor; 0 if that is 0
  float divisor = 1.0f;  // for kMean and kSqrtN
};

inline BagScale ScaleOf(const Pooling& pooling, size_t begin, size_t end) {
  if (pooling.combiner != Combiner::kMean && pooling.combiner != Combiner::kSqrtN) return {};
  const bool is_mean = pooling.combiner == Combiner::kMean;
  float divisor = 0.0f;
  if (pooling.weights == nullptr) {
    divisor = static_cast<float>(end - begin);
  } else {
    for (size_t i = begin; i < end; ++i) {
      const float weight = pooling.weights[i];
      divisor += is_mean ? weight : weight * weight;
    }
  }
  if (!is_mean) divisor = std::sqrt(divisor);
  return {divisor == 0.0f ? 0.0f : 1.0f / divisor, divisor};
}

}  // namespace sok
