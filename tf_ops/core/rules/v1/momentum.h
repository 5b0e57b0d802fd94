// Gradient descent with momentum, also Nesterov's, whose slot sums gradients before they are
// multiplied by the learning rate: tf.compat.v1.train.MomentumOptimizer. Keras' slot, in
// momentum.h, sums the products, so the results differ if the rate changes.
#pragma once

#include <vector>

#include "core/rules/rule.h"

namespace sok {

struct V1Momentum {
  static constexpr int kSlots = 1;

  static std::vector<Parameter> Parameters() {
    return {{"learning_rate", 0.01, Range::kNonNegative},
            {"momentum", 0.9, Range::kUnit},
            {"nesterov", 0.0, Range::kFlag},
            {"weight_decay", 0.0, Range::kNonNegative}};
  }

  explicit V1Momentum(const Values& values)
      : learning_rate(values["learning_rate"]),
        momentum(values["momentum"]),
        nesterov(values["nesterov"] != 0.0f) {}

  std::vector<Slot> Slots(int dim) const { return {{"momentum", dim, 0.0f}}; }

  void Element(float g, float& w, float& m) const {
    m = m * momentum + g;
    w -= nesterov ? g * learning_rate + m * momentum * learning_rate : m * learning_rate;
  }

  float learning_rate;
  float momentum;
  bool nesterov;
};

}  // namespace sok
