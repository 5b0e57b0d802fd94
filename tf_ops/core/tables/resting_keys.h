// Keys of a deposit whose rows rest: a worker that did not use them has sent kUnusedBits in place
// of gradients.
#pragma once

#include <cstring>

#include "core/base/unused_bits.h"
#include "core/tables/table.h"

namespace sok {

// Returns true if a row of gradients begins with kUnusedBits.
inline bool IsUnused(const float* gradient) {
  uint32_t bits;
  std::memcpy(&bits, gradient, sizeof(bits));
  return bits == kUnusedBits;
}

// Returns the keys whose rows do not rest, by the gradients (keys.n, dim).
LookupKeys WithoutResting(const LookupKeys& keys, const float* gradients, int dim);

}  // namespace sok
