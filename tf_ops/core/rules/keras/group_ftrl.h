// Ftrl in which l1 limits the norm of a row's linear, not each of its elements: a group lasso,
// which sets whole rows to zero. It is the rule of DeepRec's FtrlOptimizer for embedding variables:
// KvResourceSparseApplyFtrl and …FtrlV2 in tensorflow/core/kernels/training_ali_ops.cc of
// github.com/DeepRec-AI/DeepRec.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

#include "core/rules/keras/ftrl.h"
#include "core/rules/rule.h"

namespace sok {

// Parameters and slots are the same as in Ftrl, which DeepRec's optimizer uses for dense variables.
template <bool kSquareRoot>
struct GroupFtrl : Ftrl<kSquareRoot> {
  using Base = Ftrl<kSquareRoot>;
  using Base::Base;

  static size_t RowFloats(size_t dim) { return 3 * dim; }

  void Row(const float* gradient, float scale, float* w, int dim) const {
    float* accumulator = w + dim;
    float* linear = accumulator + dim;
    const Base rule = *this;  // its members are not reloaded after each store to the row
#pragma GCC ivdep
    for (int j = 0; j < dim; ++j) {
      const float shrunk = gradient[j] * scale + rule.twice_shrinkage * w[j];
      const float change =
          rule.Power(accumulator[j] + shrunk * shrunk) - rule.Power(accumulator[j]);
      linear[j] += shrunk - change / rule.learning_rate * w[j];
    }
    const float norm = std::sqrt(SquaredSum(linear, 1.0f, dim));
    const bool is_zero = norm <= rule.l1;  // false if the norm is NaN, so the weights become NaN
    const float factor = is_zero ? 0.0f : (rule.l1 - norm) / norm;
#pragma GCC ivdep
    for (int j = 0; j < dim; ++j) {
      const float g = gradient[j] * scale;
      // The quadratic term uses the shrunk gradient, but the accumulator sums the plain gradients.
      const float shrunk = g + rule.twice_shrinkage * w[j];
      const float quadratic =
          rule.Power(accumulator[j] + shrunk * shrunk) / rule.learning_rate + rule.twice_l2;
      // This is 0 / 0 if no gradient has come yet and the accumulator starts at 0. The weight then
      // stays as it is.
      w[j] = quadratic == 0.0f ? w[j] : factor * linear[j] / quadratic;
      accumulator[j] += g * g;
    }
  }
};

}  // namespace sok
