// FTRL-Proximal with a learning rate for each coordinate (McMahan et al. 2013, "Ad click
// prediction: a view from the trenches", algorithm 1). Keras' form is in ftrl.h.
//
// z and n start at 0, but the weight at the value of the initializer. While n, beta and lambda2 are
// all 0, the formula is 0 / 0, and the weight stays as it is: a row whose first gradients are 0
// keeps its start. With a beta or a lambda2 the weight becomes 0, as the formula says.
//
// z depends on the alphas of earlier steps, so if a schedule lowers alpha, the next update moves
// the weight towards 0 in the same proportion.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "core/rules/rule.h"

namespace sok {

struct KvFtrl {
  static constexpr int kSlots = 2;
  static constexpr const char* kRate = "alpha";

  // alpha must be positive, since the formula divides by it.
  static std::vector<Parameter> Parameters() {
    return {{"alpha", 5e-3, Range::kPositive},
            {"beta", 0.0, Range::kNonNegative},
            {"lambda1", 0.0, Range::kNonNegative},
            {"lambda2", 0.0, Range::kNonNegative}};
  }

  explicit KvFtrl(const Values& values)
      : beta(values["beta"]), lambda1(values["lambda1"]), lambda2(values["lambda2"]) {}

  std::vector<Slot> Slots(int dim) const {
    return {{"linear", dim, 0.0f}, {"accumulator", dim, 0.0f, kSumsSquares}};
  }

  // A schedule may end at 0, by which the formula cannot divide. The weights then stay as they are,
  // while z and n still sum gradients. The bound keeps 1 / alpha and z far below the largest
  // float32.
  void Begin(int64_t /*step_number*/, double alpha) {
    constexpr double kLeast = 1e-20;
    const bool moves = alpha >= kLeast;
    per_alpha = moves ? static_cast<float>(1.0 / alpha) : 0.0f;
    l2 = moves ? lambda2 : 0.0f;
  }

  void Element(float g, float& w, float& z, float& n) const {
    const float root = std::sqrt(n);
    n += g * g;
    const float new_root = std::sqrt(n);
    z += g - (new_root - root) * per_alpha * w;
    const float clipped = z < -lambda1 ? -lambda1 : (z > lambda1 ? lambda1 : z);
    const float denominator = (beta + new_root) * per_alpha + l2;
    w = denominator == 0.0f ? w : (clipped - z) / denominator;
  }

  float beta;
  float lambda1;
  float lambda2;
  float per_alpha = 0.0f;
  float l2 = 0.0f;
};

}  // namespace sok
