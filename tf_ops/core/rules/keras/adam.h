// Adam (Kingma and Ba 2014) in the form of their section 2.1, where epsilon is "epsilon hat":
// keras.optimizers.Adam.
#pragma once

#include <cmath>
#include <vector>

#include "core/rules/rule.h"

namespace sok {

struct Adam {
  static constexpr int kSlots = 2;

  static std::vector<Parameter> Parameters() {
    return {{"learning_rate", 0.001, Range::kNonNegative},
            {"beta_1", 0.9, Range::kUnitBelowOne},
            {"beta_2", 0.999, Range::kUnitBelowOne},
            {"epsilon", 1e-7, Range::kNonNegative},
            {"weight_decay", 0.0, Range::kNonNegative}};
  }

  explicit Adam(const Values& values)
      : learning_rate(values["learning_rate"]),
        beta_1(values["beta_1"]),
        beta_2(values["beta_2"]),
        one_minus_beta_1(static_cast<float>(1.0 - values.Exact("beta_1"))),
        one_minus_beta_2(static_cast<float>(1.0 - values.Exact("beta_2"))),
        epsilon(values["epsilon"]) {}

  std::vector<Slot> Slots(int dim) const {
    return {{"momentum", dim, 0.0f}, {"velocity", dim, 0.0f, kSumsSquares}};
  }

  // Keras takes the powers of the float32 betas, in float32. Here they are taken in float64.
  void Begin(int64_t step_number) {
    const double t = static_cast<double>(step_number);
    const double correction_1 = 1.0 - std::pow(static_cast<double>(beta_1), t);
    const double correction_2 = 1.0 - std::pow(static_cast<double>(beta_2), t);
    alpha = static_cast<float>(learning_rate * std::sqrt(correction_2) / correction_1);
  }

  void Element(float g, float& w, float& m, float& v) const {
    Moments(g, m, v);
    w -= m * alpha / (std::sqrt(v) + epsilon);
  }

  void Moments(float g, float& m, float& v) const {
    m += (g - m) * one_minus_beta_1;
    v += (g * g - v) * one_minus_beta_2;
  }

  float learning_rate;
  float beta_1;
  float beta_2;
  float one_minus_beta_1;
  float one_minus_beta_2;
  float epsilon;
  float alpha = 0.0f;  // the learning rate with both bias corrections
};

}  // namespace sok
