// Lion (Chen et al. 2023, "Symbolic discovery of optimization algorithms", algorithm 2), with its
// decoupled weight decay.
#pragma once

#include <cstdint>
#include <vector>

#include "core/rules/keras/lion.h"
#include "core/rules/rule.h"

namespace sok {

struct KvLion {
  static constexpr int kSlots = 1;
  static constexpr const char* kRate = "eta";

  static std::vector<Parameter> Parameters() {
    return {{"eta", 3e-4, Range::kNonNegative},
            {"beta1", 0.9, Range::kUnitAboveZero},
            {"beta2", 0.99, Range::kUnit},
            {"lambda", 0.01, Range::kNonNegative}};
  }

  explicit KvLion(const Values& values)
      : beta1(values["beta1"]),
        beta2(values["beta2"]),
        one_minus_beta1(static_cast<float>(1.0 - values.Exact("beta1"))),
        one_minus_beta2(static_cast<float>(1.0 - values.Exact("beta2"))),
        lambda(values["lambda"]) {}

  std::vector<Slot> Slots(int dim) const { return {{"momentum", dim, 0.0f}}; }

  void Begin(int64_t /*step_number*/, double eta) { rate = static_cast<float>(eta); }

  void Element(float g, float& w, float& m) const {
    w -= rate * (Lion::Sign(beta1 * m + one_minus_beta1 * g) + lambda * w);
    m = beta2 * m + one_minus_beta2 * g;
  }

  float beta1;
  float beta2;
  float one_minus_beta1;
  float one_minus_beta2;
  float lambda;
  float rate = 0.0f;
};

}  // namespace sok
