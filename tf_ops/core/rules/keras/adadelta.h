// Adadelta (Zeiler 2012): keras.optimizers.Adadelta.
#pragma once

#include <cmath>
#include <vector>

#include "core/rules/rule.h"

namespace sok {

struct Adadelta {
  static constexpr int kSlots = 2;

  static std::vector<Parameter> Parameters() {
    return {{"learning_rate", 0.001, Range::kNonNegative},
            {"rho", 0.95, Range::kUnit},
            {"epsilon", 1e-7, Range::kNonNegative},
            {"weight_decay", 0.0, Range::kNonNegative}};
  }

  explicit Adadelta(const Values& values)
      : learning_rate(values["learning_rate"]),
        rho(values["rho"]),
        one_minus_rho(static_cast<float>(1.0 - values.Exact("rho"))),
        epsilon(values["epsilon"]) {}

  std::vector<Slot> Slots(int dim) const {
    return {{"accumulated_grad", dim, 0.0f, kSumsSquares},
            {"accumulated_delta_var", dim, 0.0f, kSumsSquares}};
  }

  void Element(float g, float& w, float& gradients, float& deltas) const {
    Average(g * g, gradients);
    const float delta = -(std::sqrt(deltas + epsilon) * g / std::sqrt(gradients + epsilon));
    Average(delta * delta, deltas);
    w += learning_rate * delta;
  }

  void Average(float x, float& average) const { average = rho * average + one_minus_rho * x; }

  float learning_rate;
  float rho;
  float one_minus_rho;
  float epsilon;
};

}  // namespace sok
