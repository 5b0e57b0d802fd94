// Decides whether checks treat two results as equal.
#pragma once

#include <cmath>

namespace sok::gpu {

// Returns true if two results differ by at most `most`, or if both are NaN: a rule may take the
// root of a number that rounding has made negative, as centered RMSprop does.
inline bool AreNear(double expected, double got, double most) {
  return std::fabs(expected - got) <= most || (std::isnan(expected) && std::isnan(got));
}

}  // namespace sok::gpu
