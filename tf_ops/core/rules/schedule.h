// Learning rates that change with the number of updates.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/rules/hyper.h"

namespace sok {

// One schedule, with its parameters bound. Names, parameters and formulas are the same as in Keras'
// classes (keras.optimizers.schedules.ExponentialDecay is "exponential_decay") and, for two that
// Keras 3 no longer has, in tf.compat.v1.train: natural_exp_decay is "natural_exponential_decay",
// linear_cosine_decay keeps its name. Everything is computed in float64, while Keras uses the
// float32 of its learning rate.
//
// A schedule is a value: cheap to copy, and thread-safe.
class Schedule {
 public:
  // Errors: kInvalidArgument for an unknown schedule or parameter, with the list of the known ones,
  // for a required parameter that is missing, and for a value that the schedule cannot use (NaN,
  // decay_steps of 0).
  static Result<Schedule> Make(const std::string& name, const std::vector<Hyper>& parameters);

  const char* name() const;

  // Returns the learning rate of an update. `initial` is the rate at which the schedule starts;
  // step is 0 for the first update.
  double operator()(double initial, int64_t step) const;

 private:
  struct Kind;
  static const Kind kKinds[];
  static constexpr int kMostParameters = 4;

  static const Kind* Find(const std::string& name);

  friend std::vector<std::string> ScheduleNames();
  friend std::vector<Hyper> ScheduleDefaults(const std::string& name);

  explicit Schedule(const Kind* kind) : kind_(kind) {}

  const Kind* kind_;
  double values_[kMostParameters] = {};  // the kind's parameters, in their order
};

// Returns the names that Schedule::Make knows, sorted.
std::vector<std::string> ScheduleNames();

// Returns the parameters of a schedule with their defaults. NaN means that a parameter has no
// default: decay_steps and decay_rate must be given, and a warmup_target is optional. The list is
// empty for an unknown schedule.
std::vector<Hyper> ScheduleDefaults(const std::string& name);

}  // namespace sok
