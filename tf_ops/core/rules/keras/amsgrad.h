// Adam with the maximum of past velocities (Reddi et al. 2018):
// keras.optimizers.Adam(amsgrad=True).
#pragma once

#include <cmath>
#include <vector>

#include "core/rules/keras/adam.h"

namespace sok {

struct Amsgrad : Adam {
  using Adam::Adam;
  static constexpr int kSlots = 3;

  std::vector<Slot> Slots(int dim) const {
    return {{"momentum", dim, 0.0f},
            {"velocity", dim, 0.0f, kSumsSquares},
            {"velocity_hat", dim, 0.0f, kSumsSquares}};
  }

  void Element(float g, float& w, float& m, float& v, float& v_hat) const {
    Moments(g, m, v);
    v_hat = v_hat > v ? v_hat : v;
    w -= m * alpha / (std::sqrt(v_hat) + epsilon);
  }
};

}  // namespace sok
