// Leaves the update of rows to the caller of the commit: for an optimizer whose formula the core
// does not have, so that the caller reads the rows and updates them with its own code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/rules/rule.h"

namespace sok {

// Keeps `count` slots for the formula, and writes the scaled gradient and the number of the step
// into two more. Weights decay here, like with every rule.
template <int count>
struct Deferred {
  static constexpr const char* kNames[] = {"slot_0", "slot_1", "slot_2", "slot_3",
                                           "slot_4", "slot_5", "slot_6", "slot_7"};
  static constexpr const char* kInitials[] = {"initial_0", "initial_1", "initial_2", "initial_3",
                                              "initial_4", "initial_5", "initial_6", "initial_7"};
  static_assert(count <= 8, "a slot has one of these names");

  static std::vector<Parameter> Parameters() {
    std::vector<Parameter> parameters = {{"learning_rate", 0.001, Range::kNonNegative}};
    for (int i = 0; i < count; ++i) parameters.push_back({kInitials[i], 0.0, Range::kFinite});
    parameters.push_back({"weight_decay", 0.0, Range::kNonNegative});
    return parameters;
  }

  explicit Deferred(const Values& values) {
    for (int i = 0; i < count; ++i) initials[i] = values[kInitials[i]];
  }

  std::vector<Slot> Slots(int dim) const {
    std::vector<Slot> slots;
    for (int i = 0; i < count; ++i) slots.push_back({kNames[i], dim, initials[i]});
    slots.push_back({"gradient", dim, 0.0f});
    slots.push_back({"step", 1, 0.0f, kSumsSquares});  // at least 0, like sums of squares
    return slots;
  }

  static size_t RowFloats(size_t dim) { return (2 + count) * dim + 1; }

  void Begin(int64_t step_number) { step = static_cast<float>(step_number); }

  void Row(const float* gradient, float scale, float* row, int dim) const {
    float* deferred = row + (1 + count) * static_cast<size_t>(dim);
    for (int j = 0; j < dim; ++j) deferred[j] = gradient[j] * scale;
    deferred[dim] = step;
  }

  float initials[count + 1] = {};  // one more than needed, since an array cannot be empty
  float step = 0.0f;               // exact up to 2^24; later bias corrections are 1
};

}  // namespace sok
