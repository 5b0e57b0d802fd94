// Lion (Chen et al. 2023, "Symbolic discovery of optimization algorithms"): keras.optimizers.Lion.
#pragma once

#include <vector>

#include "core/rules/rule.h"

namespace sok {

struct Lion {
  static constexpr int kSlots = 1;

  static std::vector<Parameter> Parameters() {
    return {{"learning_rate", 0.001, Range::kNonNegative},
            {"beta_1", 0.9, Range::kUnitAboveZero},
            {"beta_2", 0.99, Range::kUnit},
            {"weight_decay", 0.0, Range::kNonNegative}};
  }

  explicit Lion(const Values& values)
      : learning_rate(values["learning_rate"]),
        beta_1(values["beta_1"]),
        beta_2(values["beta_2"]) {}

  std::vector<Slot> Slots(int dim) const { return {{"momentum", dim, 0.0f}}; }

  void Element(float g, float& w, float& m) const {
    w -= learning_rate * Sign(m * beta_1 + g * (1.0f - beta_1));
    m = m * beta_2 + g * (1.0f - beta_2);
  }

  // Returns NaN for NaN, and 0 for 0.
  static float Sign(float x) { return x > 0.0f ? 1.0f : (x < 0.0f ? -1.0f : x); }

  float learning_rate;
  float beta_1;
  float beta_2;
};

}  // namespace sok
