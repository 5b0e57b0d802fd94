// Adam with the maximum of past velocities (Reddi et al. 2018). It is the maximum of bias-corrected
// velocities, while torch.optim.Adam(amsgrad=True) takes the maximum of the velocities before the
// correction.
#pragma once

#include <vector>

#include "core/rules/torch/adam.h"

namespace sok {

struct KvAmsgrad : KvAdam {
  using KvAdam::KvAdam;
  static constexpr int kSlots = 3;

  std::vector<Slot> Slots(int dim) const {
    return {{"momentum", dim, 0.0f},
            {"velocity", dim, 0.0f, kSumsSquares},
            {"velocity_hat", dim, 0.0f, kSumsSquares}};
  }

  void Element(float g, float& w, float& m, float& v, float& v_hat) const {
    Moments(g + lambda * w, m, v);
    const float corrected = v * correction2;
    v_hat = v_hat > corrected ? v_hat : corrected;
    Move(m, v_hat, w);
  }
};

}  // namespace sok
