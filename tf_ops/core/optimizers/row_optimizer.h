// What a row optimizer is: a pure function on rows. One header a rule stands beside this one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/status.h"

namespace sok {

// One optimizer state vector of a row.
struct Slot {
  std::string name;  // Keras' name for it, e.g. "velocity"
  int width;         // floats a row: dim, or 1
  float initial;     // what each of its floats starts from
};

// A value of a rule's parameter, by Keras' name for it ("learning_rate", "beta_1", …).
struct Hyper {
  std::string name;
  double value;  // double, because 1 - beta_2 in float32 is off by 1.3e-5
};

// What one commit hands to a rule.
struct Step {
  int64_t number;  // 1 for the first: t of Adam's bias correction
  float scale;     // gradients are multiplied by this first (1/workers, 1/accumulation steps)
};

// One rule, with its parameters bound. Made for each commit, so construction is cheap.
// Thread-safe: all methods are const and write only to the rows they are given.
class RowOptimizer {
 public:
  virtual ~RowOptimizer() = default;

  // The slots of a row, in the order in which they follow its embedding in memory.
  virtual std::vector<Slot> slots(int dim) const = 0;

  // Applies one step to n distinct rows. rows[i] is an embedding of dim floats, followed at once by
  // its slots; gradients[i] is its summed gradient, dim floats, before scale. Does not read or
  // write anything else. Neither array needs any alignment.
  virtual void Apply(const Step& step, float* const* rows, const float* const* gradients, size_t n,
                     int dim) const = 0;
};

// The names that MakeRowOptimizer knows, sorted.
std::vector<std::string> RowOptimizerNames();

// The parameters that the rule understands, with its defaults. Empty for an unknown rule.
std::vector<Hyper> RowOptimizerDefaults(const std::string& rule);

// A parameter that is not in `hypers` takes its default.
// Errors: kInvalidArgument for an unknown rule or parameter, with the list of the known ones, and
// for a value that the rule cannot work with (NaN, a beta outside of [0, 1)).
Result<std::unique_ptr<RowOptimizer>> MakeRowOptimizer(const std::string& rule,
                                                       const std::vector<Hyper>& hypers);

}  // namespace sok
