// Adagrad (Duchi et al. 2011) with a rate that falls as 1 / t: torch.optim.Adagrad, whose lr_decay
// is eta.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "core/rules/rule.h"

namespace sok {

struct KvAdagrad {
  static constexpr int kSlots = 1;
  static constexpr const char* kRate = "gamma";

  static std::vector<Parameter> Parameters() {
    return {{"gamma", 1e-2, Range::kNonNegative},
            {"lambda", 0.0, Range::kNonNegative},
            {"eta", 0.0, Range::kNonNegative},
            {"epsilon", 1e-10, Range::kNonNegative}};
  }

  explicit KvAdagrad(const Values& values)
      : eta(values.Exact("eta")), lambda(values["lambda"]), epsilon(values["epsilon"]) {}

  std::vector<Slot> Slots(int dim) const { return {{"accumulator", dim, 0.0f, kSumsSquares}}; }

  void Begin(int64_t step_number, double gamma) {
    rate = static_cast<float>(gamma / (1.0 + static_cast<double>(step_number - 1) * eta));
  }

  void Element(float g, float& w, float& accumulator) const {
    const float penalized = g + lambda * w;
    accumulator += penalized * penalized;
    w -= QuotientOrZero(rate * penalized, std::sqrt(accumulator) + epsilon);
  }

  double eta;
  float lambda;
  float epsilon;
  float rate = 0.0f;
};

}  // namespace sok
