// Adamax (Kingma and Ba 2014, section 7.1): keras.optimizers.Adamax.
#pragma once

#include <cmath>
#include <vector>

#include "core/rules/rule.h"

namespace sok {

struct Adamax {
  static constexpr int kSlots = 2;

  static std::vector<Parameter> Parameters() {
    return {{"learning_rate", 0.001, Range::kNonNegative},
            {"beta_1", 0.9, Range::kUnitBelowOne},
            {"beta_2", 0.999, Range::kUnit},
            {"epsilon", 1e-7, Range::kNonNegative},
            {"weight_decay", 0.0, Range::kNonNegative}};
  }

  explicit Adamax(const Values& values)
      : learning_rate(values["learning_rate"]),
        beta_1(values["beta_1"]),
        beta_2(values["beta_2"]),
        one_minus_beta_1(static_cast<float>(1.0 - values.Exact("beta_1"))),
        epsilon(values["epsilon"]) {}

  std::vector<Slot> Slots(int dim) const {
    return {{"m", dim, 0.0f}, {"u", dim, 0.0f, kSumsSquares}};
  }

  // Keras takes the power of the float32 beta, in float32. Here it is taken in float64.
  void Begin(int64_t step_number) {
    const double power = std::pow(static_cast<double>(beta_1), static_cast<double>(step_number));
    correction = static_cast<float>(1.0 - power);
  }

  void Element(float g, float& w, float& m, float& u) const {
    m += (g - m) * one_minus_beta_1;
    u = Greater(beta_2 * u, std::fabs(g));
    w -= learning_rate * m / (correction * (u + epsilon));
  }

  // Returns the larger number, or NaN if one is NaN.
  static float Greater(float x, float y) { return y > x || y != y ? y : x; }

  float learning_rate;
  float beta_1;
  float beta_2;
  float one_minus_beta_1;
  float epsilon;
  float correction = 0.0f;
};

}  // namespace sok
