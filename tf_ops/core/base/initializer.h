// Computes the vector that a key starts from. It is a pure function of (seed, group, key), so that
// it is the same on every worker, in every order of arrival, after a row was evicted, and without a
// row being made.
#pragma once

#include <cstdint>
#include <string>

#include "core/base/start_vector.h"
#include "core/base/status.h"
#include "core/base/types.h"

namespace sok {

// Thread-safe: all methods are const and touch no shared state.
class Initializer {
 public:
  // kind, a, b:
  //   "constant"          a = the value (zeros and ones are constants)
  //   "uniform"           a = minval, b = maxval, in [minval, maxval)
  //   "normal"            a = mean, b = stddev
  //   "truncated_normal"  a = mean, b = stddev before truncation at 2 stddev on either side
  // Errors: kInvalidArgument for an unknown kind, which lists the known ones, for values that are
  // not finite, for minval > maxval, for a negative stddev.
  static Result<Initializer> Make(const std::string& kind, double a, double b, uint64_t seed,
                                  uint64_t group = 0);

  // Writes dim floats.
  void Fill(Key key, float* out, int dim) const;

  // Returns the same as numbers, for a GPU.
  const StartVector& start_vector() const { return start_; }

 private:
  explicit Initializer(StartVector start) : start_(start) {}

  StartVector start_;
};

}  // namespace sok
