// RMSprop (Hinton 2012): keras.optimizers.RMSprop, and tf.compat.v1.train.RMSPropOptimizer, whose
// velocity starts from 1. Its momentum and its centering each add a slot, so each combination is a
// rule of its own.
#pragma once

#include <cmath>
#include <vector>

#include "core/rules/rule.h"

namespace sok {

struct RmspropNumbers {
  static std::vector<Parameter> Parameters() {
    return {{"learning_rate", 0.001, Range::kNonNegative},
            {"rho", 0.9, Range::kUnit},
            {"epsilon", 1e-7, Range::kNonNegative},
            {"initial_velocity", 0.0, Range::kNonNegative},
            {"weight_decay", 0.0, Range::kNonNegative}};
  }

  explicit RmspropNumbers(const Values& values)
      : learning_rate(values["learning_rate"]),
        rho(values["rho"]),
        one_minus_rho(static_cast<float>(1.0 - values.Exact("rho"))),
        epsilon(values["epsilon"]),
        initial_velocity(values["initial_velocity"]) {}

  Slot Velocity(int dim) const { return {"velocity", dim, initial_velocity, kSumsSquares}; }

  void Average(float x, float& average) const { average = rho * average + one_minus_rho * x; }

  float Increment(float g, float variance) const {
    return learning_rate * g / std::sqrt(variance + epsilon);
  }

  float learning_rate;
  float rho;
  float one_minus_rho;
  float epsilon;
  float initial_velocity;
};

struct Rmsprop : RmspropNumbers {
  static constexpr int kSlots = 1;
  using RmspropNumbers::RmspropNumbers;

  std::vector<Slot> Slots(int dim) const { return {Velocity(dim)}; }

  void Element(float g, float& w, float& velocity) const {
    Average(g * g, velocity);
    w -= Increment(g, velocity);
  }
};

struct RmspropCentered : RmspropNumbers {
  static constexpr int kSlots = 2;
  using RmspropNumbers::RmspropNumbers;

  std::vector<Slot> Slots(int dim) const {
    return {Velocity(dim), {"average_gradient", dim, 0.0f}};
  }

  void Element(float g, float& w, float& velocity, float& average_gradient) const {
    Average(g * g, velocity);
    Average(g, average_gradient);
    w -= Increment(g, velocity - average_gradient * average_gradient);
  }
};

struct RmspropWithMomentum : RmspropNumbers {
  static std::vector<Parameter> Parameters() {
    std::vector<Parameter> parameters = RmspropNumbers::Parameters();
    parameters.insert(parameters.begin() + 2, {"momentum", 0.9, Range::kNonNegative});
    return parameters;
  }

  explicit RmspropWithMomentum(const Values& values)
      : RmspropNumbers(values), momentum(values["momentum"]) {}

  float momentum;
};

struct RmspropMomentum : RmspropWithMomentum {
  static constexpr int kSlots = 2;
  using RmspropWithMomentum::RmspropWithMomentum;

  std::vector<Slot> Slots(int dim) const { return {Velocity(dim), {"momentum", dim, 0.0f}}; }

  void Element(float g, float& w, float& velocity, float& m) const {
    Average(g * g, velocity);
    m = momentum * m + Increment(g, velocity);
    w -= m;
  }
};

struct RmspropCenteredMomentum : RmspropWithMomentum {
  static constexpr int kSlots = 3;
  using RmspropWithMomentum::RmspropWithMomentum;

  std::vector<Slot> Slots(int dim) const {
    return {Velocity(dim), {"momentum", dim, 0.0f}, {"average_gradient", dim, 0.0f}};
  }

  void Element(float g, float& w, float& velocity, float& m, float& average_gradient) const {
    Average(g * g, velocity);
    Average(g, average_gradient);
    m = momentum * m + Increment(g, velocity - average_gradient * average_gradient);
    w -= m;
  }
};

}  // namespace sok
