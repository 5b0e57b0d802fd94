// Defines the class template that makes a RowOptimizer of a rule. See rule.h.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "core/rules/rule.h"
#include "core/rules/schedule.h"

namespace sok {

// Prefetches the cache lines of a row that is updated soon, since rows are scattered in memory. If
// a row is longer than kMostLines, the hardware's own prefetcher fetches the rest.
inline void PrefetchRow(const float* row, size_t floats) {
  constexpr uintptr_t kLine = 64;
  constexpr uintptr_t kMostLines = 16;
  const uintptr_t first = reinterpret_cast<uintptr_t>(row) & ~(kLine - 1);
  const uintptr_t end = reinterpret_cast<uintptr_t>(row + floats);
  const uintptr_t last = std::min(end, first + kMostLines * kLine);
  for (uintptr_t line = first; line < last; line += kLine) {
    __builtin_prefetch(reinterpret_cast<const void*>(line), /*rw=*/1);
  }
}

// Returns the name of a type in the form that programs use.
std::string TypeName(const std::type_info& type);

template <typename Rule>
class RuleOptimizer final : public RowOptimizer {
 public:
  // A schedule is given only for a rule that has a kRate.
  RuleOptimizer(const Values& values, const Schedule* schedule)
      : rule_(values),
        learning_rate_(values["learning_rate"]),
        weight_decay_(values["weight_decay"]) {
    if constexpr (HasRate<Rule>::value) rate_ = values.Exact(Rule::kRate);
    if (schedule != nullptr) schedule_ = *schedule;
  }

  std::vector<Slot> slots(int dim) const override { return rule_.Slots(dim); }

  void Apply(const Step& step, float* const* rows, const float* const* gradients, size_t n,
             int dim) const override {
    if constexpr (HasBegin<Rule>::value) {
      if (step.row_numbers != nullptr) {
        ApplyByNumber(step, rows, gradients, n, dim);
        return;
      }
    }
    Rule rule = rule_;
    Begin(step.number, &rule);
    const size_t floats = RowFloats(dim);
    for (size_t i = 0; i < std::min(n, kAhead); ++i) PrefetchRow(rows[i], floats);
    for (size_t i = 0; i < n; ++i) {
      if (i + kAhead < n) PrefetchRow(rows[i + kAhead], floats);
      if (weight_decay_ != 0.0f) Decay(rows[i], dim);
      Update(rule, gradients[i], step.scale, rows[i], dim);
    }
  }

  BegunRule BeginStep(int64_t step_number) const override {
    static_assert(std::is_trivially_copyable_v<Rule>);
    Rule rule = rule_;
    Begin(step_number, &rule);
    return {TypeName(typeid(Rule)), std::string(reinterpret_cast<const char*>(&rule), sizeof(rule)),
            HasRow<Rule>::value, learning_rate_, weight_decay_};
  }

 private:
  // A rule after its Begin, and the step number that was given to Begin.
  struct Begun {
    uint32_t number = 0;
    std::optional<Rule> rule;
  };

  // The number of rows between a prefetch and its use.
  static constexpr size_t kAhead = 12;

  // The number of Begun that are cached, by step number. Most rows of a commit are young and share
  // a few numbers.
  static constexpr size_t kBegun = 64;

  // Applies a step in which each row has its own number. Begin computes powers and cosines, which
  // cost as much as the update of a short row, so rules that have begun are cached.
  void ApplyByNumber(const Step& step, float* const* rows, const float* const* gradients, size_t n,
                     int dim) const {
    Begun begun[kBegun];
    const size_t floats = RowFloats(dim);
    for (size_t i = 0; i < std::min(n, kAhead); ++i) PrefetchRow(rows[i], floats);
    for (size_t i = 0; i < n; ++i) {
      if (i + kAhead < n) PrefetchRow(rows[i + kAhead], floats);
      const uint32_t number = step.row_numbers[i];
      Begun& kept = begun[number % kBegun];
      if (!kept.rule || kept.number != number) {
        kept.number = number;
        kept.rule = rule_;
        Begin(number, &*kept.rule);
      }
      const Rule rule = *kept.rule;  // its members are not reloaded after each store to the row
      if (weight_decay_ != 0.0f) Decay(rows[i], dim);
      Update(rule, gradients[i], step.scale, rows[i], dim);
    }
  }

  void Begin(int64_t number, Rule* rule) const {
    if constexpr (HasRate<Rule>::value) {
      rule->Begin(number, schedule_ ? (*schedule_)(rate_, number - 1) : rate_);
    } else if constexpr (HasBegin<Rule>::value) {
      rule->Begin(number);
    }
  }

  static void Update(const Rule& rule, const float* gradient, float scale, float* row, int dim) {
    if constexpr (HasRow<Rule>::value) {
      rule.Row(gradient, scale, row, dim);
    } else {
      Elements(rule, gradient, scale, row, dim, std::make_index_sequence<Rule::kSlots>());
    }
  }

  static size_t RowFloats(int dim) {
    if constexpr (HasRow<Rule>::value) {
      return Rule::RowFloats(static_cast<size_t>(dim));
    } else {
      return static_cast<size_t>(1 + Rule::kSlots) * static_cast<size_t>(dim);
    }
  }

  // The decay is decoupled from the gradient, as in Keras' base optimizer.
  void Decay(float* w, int dim) const {
    const float weight_decay = weight_decay_;  // not reloaded after each store to w
    const float learning_rate = learning_rate_;
    for (int j = 0; j < dim; ++j) w[j] -= w[j] * weight_decay * learning_rate;
  }

  template <size_t... kSlot>
  static void Elements(const Rule& rule, const float* gradient, float scale, float* row, int dim,
                       std::index_sequence<kSlot...>) {
    // The compiler cannot see that the parts of a row do not overlap.
#pragma GCC ivdep
    for (int j = 0; j < dim; ++j) {
      rule.Element(gradient[j] * scale, row[j], row[(kSlot + 1) * static_cast<size_t>(dim) + j]...);
    }
  }

  Rule rule_;
  float learning_rate_;
  float weight_decay_;
  double rate_ = 0.0;  // initial value of the schedule, or the rate of all steps
  std::optional<Schedule> schedule_;
};

}  // namespace sok
