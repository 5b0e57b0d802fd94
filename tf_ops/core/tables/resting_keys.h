// The keys of a deposit whose rows rest, since their gradients are none.
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

// Returns the keys whose gradients (keys.n, dim) do not rest.
LookupKeys WithoutResting(const LookupKeys& keys, const float* gradients, int dim);

}  // namespace sok
