// Adagrad (Duchi et al. 2011): keras.optimizers.Adagrad.
#pragma once

#include <cmath>
#include <vector>

#include "core/rules/rule.h"

namespace sok {

struct Adagrad {
  static constexpr int kSlots = 1;

  static std::vector<Parameter> Parameters() {
    return {{"learning_rate", 0.001, Range::kNonNegative},
            {"initial_accumulator_value", 0.1, Range::kNonNegative},
            {"epsilon", 1e-7, Range::kNonNegative},
            {"weight_decay", 0.0, Range::kNonNegative}};
  }

  explicit Adagrad(const Values& values)
      : learning_rate(values["learning_rate"]),
        initial_accumulator_value(values["initial_accumulator_value"]),
        epsilon(values["epsilon"]) {}

  std::vector<Slot> Slots(int dim) const {
    return {{"accumulator", dim, initial_accumulator_value, kSumsSquares}};
  }

  void Element(float g, float& w, float& accumulator) const {
    accumulator += g * g;
    w -= learning_rate * g / std::sqrt(accumulator + epsilon);
  }

  float learning_rate;
  float initial_accumulator_value;
  float epsilon;
};

}  // namespace sok
