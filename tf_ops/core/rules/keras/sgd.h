// Plain gradient descent: keras.optimizers.SGD with momentum 0.
#pragma once

#include <vector>

#include "core/rules/rule.h"

namespace sok {

struct Sgd {
  static constexpr int kSlots = 0;

  static std::vector<Parameter> Parameters() {
    return {{"learning_rate", 0.01, Range::kNonNegative},
            {"weight_decay", 0.0, Range::kNonNegative}};
  }

  explicit Sgd(const Values& values) : learning_rate(values["learning_rate"]) {}

  std::vector<Slot> Slots(int /*dim*/) const { return {}; }

  void Element(float g, float& w) const { w -= g * learning_rate; }

  float learning_rate;
};

}  // namespace sok
