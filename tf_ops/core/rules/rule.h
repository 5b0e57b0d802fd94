// The contract of a rule's header, and the functions that such headers share.
//
// A rule is a struct of numbers, bound from its parameters:
//
//   static std::vector<Parameter> Parameters();     by Keras' names, with Keras' defaults; in
//                                                   torch/ by those of sok_embed.kv
//   explicit Rule(const Values& values);
//   static constexpr int kSlots;                    the number of slots of dim elements
//   std::vector<Slot> Slots(int dim) const;         a function of the rule, but for `initial`; a
//                                                   slot of sums or means of squares ends with
//                                                   kSumsSquares
//   void Begin(int64_t step_number);                optional: numbers that depend on the step: the
//                                                   optimizer's or the table's, and in sok_embed.kv
//                                                   the row's own
//   void Element(float g, float& w, float& slot_0, …) const;
//
// Element updates one coordinate: it takes the scaled gradient and changes the weight and the
// element of each slot at the same coordinate. A rule that does not work element by element has,
// instead of Element and kSlots,
//
//   void Row(const float* gradient, float scale, float* row, int dim) const;
//   static size_t RowFloats(size_t dim);            of the embedding and the slots
//
// A rule that takes a schedule names the parameter that is its learning rate, and receives the rate
// of each step:
//
//   static constexpr const char* kRate;
//   void Begin(int64_t step_number, double rate);
//
// Element and Row also run on a GPU, on the same struct byte for byte, so a rule must be trivially
// copyable. Its header may use only the parts of the standard library that are in
// core/gpu/kernels/standard.h.
//
// Formulas keep Keras' order of operations and its split between float64 (what Python computes
// from hyperparameters, such as 1 - beta_1) and float32 (everything else).
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "core/rules/parameters.h"
#include "core/rules/row_optimizer.h"

namespace sok {

// Divides, and returns 0 for 0 / 0. A row that never had a gradient gives 0 / 0 with an epsilon of
// 0: its weight stays as it is, while the formula gives NaN.
inline float QuotientOrZero(float numerator, float denominator) {
  return denominator == 0.0f ? 0.0f : numerator / denominator;
}

// Returns the sum of the squares of scaled elements, in eight partial sums, which the compiler may
// keep in one register.
inline float SquaredSum(const float* gradient, float scale, int dim) {
  constexpr int kLanes = 8;
  float sums[kLanes] = {};
  int j = 0;
  for (; j + kLanes <= dim; j += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const float g = gradient[j + lane] * scale;
      sums[lane] += g * g;
    }
  }
  for (; j < dim; ++j) {
    const float g = gradient[j] * scale;
    sums[j % kLanes] += g * g;
  }
  return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

template <typename Rule, typename = void>
struct HasRow : std::false_type {};
template <typename Rule>
struct HasRow<Rule, std::void_t<decltype(&Rule::Row)>> : std::true_type {};

template <typename Rule, typename = void>
struct HasBegin : std::false_type {};
template <typename Rule>
struct HasBegin<Rule, std::void_t<decltype(&Rule::Begin)>> : std::true_type {};

template <typename Rule, typename = void>
struct HasRate : std::false_type {};
template <typename Rule>
struct HasRate<Rule, std::void_t<decltype(Rule::kRate)>> : std::true_type {};

}  // namespace sok
