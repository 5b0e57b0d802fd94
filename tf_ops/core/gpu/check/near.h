// When checks take two results for the same.
#pragma once

#include <cmath>

namespace sok::gpu {

// Returns true if two results differ by `most` at most, or if both are not a number: a rule may
// take the root of a negative number, as centered RMSprop does where rounding makes it one.
inline bool AreNear(double expected, double got, double most) {
  return std::fabs(expected - got) <= most || (std::isnan(expected) && std::isnan(got));
}

}  // namespace sok::gpu
