// Follow the regularized leader (McMahan et al. 2013): keras.optimizers.Ftrl.
#pragma once

#include <cmath>
#include <vector>

#include "core/rules/rule.h"

namespace sok {

// With kSquareRoot, learning_rate_power has its default of -0.5, and the power is a square root,
// for which there is a vector instruction.
template <bool kSquareRoot>
struct Ftrl {
  static constexpr int kSlots = 2;

  // The learning rate must be positive, since the formula divides by it.
  static std::vector<Parameter> Parameters() {
    return {{"learning_rate", 0.001, Range::kPositive},
            {"learning_rate_power", -0.5, Range::kNonPositive},
            {"initial_accumulator_value", 0.1, Range::kNonNegative},
            {"l1_regularization_strength", 0.0, Range::kNonNegative},
            {"l2_regularization_strength", 0.0, Range::kNonNegative},
            {"l2_shrinkage_regularization_strength", 0.0, Range::kNonNegative},
            {"beta", 0.0, Range::kFinite},
            {"weight_decay", 0.0, Range::kNonNegative}};
  }

  explicit Ftrl(const Values& values)
      : learning_rate(values["learning_rate"]),
        power(-values["learning_rate_power"]),
        initial_accumulator_value(values["initial_accumulator_value"]),
        l1(values["l1_regularization_strength"]),
        twice_l2(2.0f *
                 (values["l2_regularization_strength"] + values["beta"] / (2.0f * learning_rate))),
        twice_shrinkage(
            static_cast<float>(2.0 * values.Exact("l2_shrinkage_regularization_strength"))) {}

  std::vector<Slot> Slots(int dim) const {
    return {{"accumulator", dim, initial_accumulator_value, kSumsSquares}, {"linear", dim, 0.0f}};
  }

  void Element(float g, float& w, float& accumulator, float& linear) const {
    const float new_accumulator = accumulator + g * g;
    const float new_power = Power(new_accumulator);
    linear += g + twice_shrinkage * w - (new_power - Power(accumulator)) / learning_rate * w;
    const float quadratic = new_power / learning_rate + twice_l2;
    const float clipped = linear < -l1 ? -l1 : (linear > l1 ? l1 : linear);
    // Keras divides 0 by 0 before the first gradient that is not 0, if the accumulator starts at 0.
    // The weight stays as it is here.
    w = quadratic == 0.0f ? w : (clipped - linear) / quadratic;
    accumulator = new_accumulator;
  }

  float Power(float x) const {
    if constexpr (kSquareRoot) return std::sqrt(x);
    return std::pow(x, power);
  }

  float learning_rate;
  float power;
  float initial_accumulator_value;
  float l1;
  float twice_l2;
  float twice_shrinkage;
};

}  // namespace sok
