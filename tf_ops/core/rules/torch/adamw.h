// Adam with decoupled weight decay (Loshchilov and Hutter 2019): torch.optim.AdamW.
#pragma once

#include <cstdint>
#include <vector>

#include "core/rules/torch/adam.h"

namespace sok {

struct KvAdamW : KvAdam {
  using KvAdam::KvAdam;

  static std::vector<Parameter> Parameters() {
    std::vector<Parameter> parameters = KvAdam::Parameters();
    parameters[3].default_value = 1e-2;  // lambda
    return parameters;
  }

  void Begin(int64_t step_number, double gamma) {
    KvAdam::Begin(step_number, gamma);
    decay = static_cast<float>(gamma * lambda);
  }

  // This is not written as w *= 1 - decay: with the default decay, 1e-5, the rounding of that
  // factor would change the decay by 0.3 %.
  void Element(float g, float& w, float& m, float& v) const {
    w -= decay * w;
    Moments(g, m, v);
    Move(m, v * correction2, w);
  }

  float decay = 0.0f;
};

}  // namespace sok
