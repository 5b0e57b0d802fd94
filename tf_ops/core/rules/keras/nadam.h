// Adam with Nesterov's momentum (Dozat 2016, "Incorporating Nesterov Momentum into Adam", with the
// schedule of its section 3.1 for beta_1): keras.optimizers.Nadam.
#pragma once

#include <cmath>
#include <vector>

#include "core/rules/keras/adam.h"

namespace sok {

struct Nadam : Adam {
  using Adam::Adam;

  // Keras multiplies and takes powers in float32. Here they are taken in float64.
  void Begin(int64_t step_number) {
    const double t = static_cast<double>(step_number);
    const double beta = beta_1;
    const double now = beta * Warmup(t), next = beta * Warmup(t + 1.0);
    const double product = std::pow(beta, t) * WarmupProduct(step_number);
    momentum_rate = static_cast<float>(learning_rate * next / (1.0 - product * next));
    gradient_rate = static_cast<float>(learning_rate * (1.0 - now) / (1.0 - product));
    const double correction_2 = 1.0 - std::pow(static_cast<double>(beta_2), t);
    velocity_scale = static_cast<float>(1.0 / correction_2);
  }

  void Element(float g, float& w, float& m, float& v) const {
    Moments(g, m, v);
    w -= (m * momentum_rate + g * gradient_rate) / (std::sqrt(v * velocity_scale) + epsilon);
  }

  // Returns the warm-up of a step: the ratio of its beta_1 to the final one.
  static double Warmup(double step) { return 1.0 - 0.5 * std::pow(0.96, step); }

  // Returns the product of the warm-ups of steps 1 to step_number. Products are stored up to a step
  // after which warm-ups are 1 in float64.
  static double WarmupProduct(int64_t step_number);

  // The learning rate times the factor of the momentum, and times the factor of the gradient.
  float momentum_rate = 0.0f;
  float gradient_rate = 0.0f;
  float velocity_scale = 1.0f;
};

}  // namespace sok
