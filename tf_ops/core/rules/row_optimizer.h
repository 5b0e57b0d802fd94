// A row optimizer is a pure function on rows. Each rule has a header of its own in keras/, torch/,
// v1/ or deferred/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/rules/hyper.h"

namespace sok {

class Schedule;

// One optimizer state vector of a row.
struct Slot {
  std::string name;           // Keras' name for it, e.g. "velocity"
  int width;                  // floats for each row: dim, or 1
  float initial;              // initial value of each float
  bool sums_squares = false;  // its floats are sums of squares, or norms: at least 0

  friend bool operator==(const Slot& a, const Slot& b) {
    return a.name == b.name && a.width == b.width && a.initial == b.initial &&
           a.sums_squares == b.sums_squares;
  }
};

// The last member of a Slot that has sums of squares.
inline constexpr bool kSumsSquares = true;

// The arguments of a rule that are the same for a whole commit.
struct Step {
  int64_t number;  // 1 for the first: t of Adam's bias correction
  float scale;     // gradients are multiplied by this first (1/workers, 1/accumulation steps)
  // (n) the step number of each row, at least 1; if given, `number` is not used.
  const uint32_t* row_numbers = nullptr;
};

// A rule that has begun a step, for code that runs on a GPU.
struct BegunRule {
  std::string type;   // its name in C++: "sok::Adam"
  std::string bytes;  // the struct
  bool by_row;        // it has Row, not Element
  float learning_rate;
  float weight_decay;
};

// One rule, with its parameters bound. An object is made for each commit, so construction is cheap.
// Thread-safe: all methods are const and write only to the rows they are given.
class RowOptimizer {
 public:
  virtual ~RowOptimizer() = default;

  // Returns the slots of a row, in the order in which they follow its embedding in memory.
  virtual std::vector<Slot> slots(int dim) const = 0;

  // Applies one step to n distinct rows. rows[i] is an embedding of dim floats, followed at once by
  // its slots; gradients[i] is its summed gradient, dim floats, before scale. Does not read or
  // write anything else. Neither array needs any alignment.
  virtual void Apply(const Step& step, float* const* rows, const float* const* gradients, size_t n,
                     int dim) const = 0;

  // Returns the rule in the state in which Apply uses it in a step with this number.
  virtual BegunRule BeginStep(int64_t step_number) const = 0;
};

// Returns the names that MakeRowOptimizer knows, sorted.
std::vector<std::string> RowOptimizerNames();

// Returns the parameters that the rule understands, with its defaults. The list is empty for an
// unknown rule.
std::vector<Hyper> RowOptimizerDefaults(const std::string& rule);

// Returns the slots of a row of dim floats under the rule with its defaults. The list is empty for
// an unknown rule, too.
std::vector<Slot> RowOptimizerSlots(const std::string& rule, int dim);

// A parameter that is not in `hypers` takes its default. The schedule, if there is one, is copied;
// it begins at the rule's learning rate, and update number t takes its value at step t - 1. Errors:
// kInvalidArgument for an unknown rule or parameter, with the list of the known ones, for a value
// that the rule cannot use (NaN, a beta outside of [0, 1)), and for a schedule that is given to a
// rule which takes none: a rule with a Keras name, whose learning rate Keras schedules.
Result<std::unique_ptr<RowOptimizer>> MakeRowOptimizer(const std::string& rule,
                                                       const std::vector<Hyper>& hypers,
                                                       const Schedule* schedule = nullptr);

}  // namespace sok
