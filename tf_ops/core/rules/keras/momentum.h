// Gradient descent with momentum, also Nesterov's: keras.optimizers.SGD with momentum above 0.
#pragma once

#include <vector>

#include "core/rules/rule.h"

namespace sok {

struct Momentum {
  static constexpr int kSlots = 1;

  static std::vector<Parameter> Parameters() {
    return {{"learning_rate", 0.01, Range::kNonNegative},
            {"momentum", 0.9, Range::kUnit},
            {"nesterov", 0.0, Range::kFlag},
            {"weight_decay", 0.0, Range::kNonNegative}};
  }

  explicit Momentum(const Values& values)
      : learning_rate(values["learning_rate"]),
        momentum(values["momentum"]),
        nesterov(values["nesterov"] != 0.0f) {}

  std::vector<Slot> Slots(int dim) const { return {{"momentum", dim, 0.0f}}; }

  void Element(float g, float& w, float& m) const {
    m = m * momentum - g * learning_rate;
    w += nesterov ? m * momentum - g * learning_rate : m;
  }

  float learning_rate;
  float momentum;
  bool nesterov;
};

}  // namespace sok
