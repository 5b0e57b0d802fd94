// Adam (Kingma and Ba 2014) in the form of their algorithm 1, with an L2 penalty:
// torch.optim.Adam. Keras' form, which has another epsilon, is in adam.h.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "core/rules/rule.h"

namespace sok {

struct KvAdam {
  static constexpr int kSlots = 2;
  static constexpr const char* kRate = "gamma";

  static std::vector<Parameter> Parameters() {
    return {{"gamma", 1e-3, Range::kNonNegative},
            {"beta1", 0.9, Range::kUnitBelowOne},
            {"beta2", 0.999, Range::kUnitBelowOne},
            {"lambda", 0.0, Range::kNonNegative},
            {"epsilon", 1e-8, Range::kNonNegative}};
  }

  explicit KvAdam(const Values& values)
      : beta1(values.Exact("beta1")),
        beta2(values.Exact("beta2")),
        one_minus_beta1(static_cast<float>(1.0 - beta1)),
        one_minus_beta2(static_cast<float>(1.0 - beta2)),
        lambda(values["lambda"]),
        epsilon(values["epsilon"]) {}

  std::vector<Slot> Slots(int dim) const {
    return {{"momentum", dim, 0.0f}, {"velocity", dim, 0.0f, kSumsSquares}};
  }

  void Begin(int64_t step_number, double gamma) {
    const double t = static_cast<double>(step_number);
    rate = static_cast<float>(gamma / (1.0 - std::pow(beta1, t)));
    correction2 = static_cast<float>(1.0 / (1.0 - std::pow(beta2, t)));
  }

  void Element(float g, float& w, float& m, float& v) const {
    Moments(g + lambda * w, m, v);
    Move(m, v * correction2, w);
  }

  void Moments(float g, float& m, float& v) const {
    m += (g - m) * one_minus_beta1;
    v += (g * g - v) * one_minus_beta2;
  }

  void Move(float m, float v_hat, float& w) const {
    w -= QuotientOrZero(rate * m, std::sqrt(v_hat) + epsilon);
  }

  double beta1;
  double beta2;
  float one_minus_beta1;
  float one_minus_beta2;
  float lambda;
  float epsilon;
  float rate = 0.0f;         // includes the bias correction of the momentum
  float correction2 = 0.0f;  // bias correction of the velocity, as a factor
};

}  // namespace sok
