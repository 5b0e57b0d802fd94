// Gradient descent with an L2 penalty: torch.optim.SGD without momentum.
#pragma once

#include <cstdint>
#include <vector>

#include "core/rules/rule.h"

namespace sok {

struct KvSgd {
  static constexpr int kSlots = 0;
  static constexpr const char* kRate = "gamma";

  static std::vector<Parameter> Parameters() {
    return {{"gamma", 1e-3, Range::kNonNegative}, {"lambda", 0.0, Range::kNonNegative}};
  }

  explicit KvSgd(const Values& values) : lambda(values["lambda"]) {}

  std::vector<Slot> Slots(int /*dim*/) const { return {}; }

  void Begin(int64_t /*step_number*/, double gamma) { rate = static_cast<float>(gamma); }

  void Element(float g, float& w) const { w -= rate * (g + lambda * w); }

  float lambda;
  float rate = 0.0f;
};

}  // namespace sok
