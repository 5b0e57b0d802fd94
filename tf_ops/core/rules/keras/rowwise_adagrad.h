// Adagrad with one accumulator for each row, the mean of its squared gradients: FBGEMM's
// EXACT_ROWWISE_ADAGRAD (fbgemm_gpu, split table batched embeddings) with its defaults. FBGEMM's
// own weight decay differs from the decoupled decay that every rule has here.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

#include "core/rules/rule.h"

namespace sok {

struct RowwiseAdagrad {
  static std::vector<Parameter> Parameters() {
    return {{"learning_rate", 0.01, Range::kNonNegative},
            {"initial_accumulator_value", 0.0, Range::kNonNegative},
            {"epsilon", 1e-8, Range::kNonNegative},
            {"weight_decay", 0.0, Range::kNonNegative}};
  }

  explicit RowwiseAdagrad(const Values& values)
      : learning_rate(values["learning_rate"]),
        initial_accumulator_value(values["initial_accumulator_value"]),
        epsilon(values["epsilon"]) {}

  std::vector<Slot> Slots(int /*dim*/) const {
    return {{"accumulator", 1, initial_accumulator_value, kSumsSquares}};
  }

  static size_t RowFloats(size_t dim) { return dim + 1; }

  void Row(const float* gradient, float scale, float* row, int dim) const {
    float& accumulator = row[dim];
    accumulator += SquaredSum(gradient, scale, dim) / static_cast<float>(dim);
    const float denominator = std::sqrt(accumulator) + epsilon;
    // This is 0 / 0 before the first gradient that is not 0, if epsilon and the accumulator start
    // at 0.
    const float rate = denominator > 0.0f ? learning_rate / denominator : 0.0f;
#pragma GCC ivdep
    for (int j = 0; j < dim; ++j) row[j] -= rate * (gradient[j] * scale);
  }

  float learning_rate;
  float initial_accumulator_value;
  float epsilon;
};

}  // namespace sok
