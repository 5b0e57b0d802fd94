// Replaces core/rules/parameters.h and core/rules/row_optimizer.h in a program for a GPU: it
// declares all that the host's part of a rule's header needs to compile.
#pragma once

#include "core/gpu/kernels/standard.h"
#include "core/rules/parameter.h"

namespace sok {

class Values {
 public:
  double Exact(const char* name) const;
  float operator[](const char* name) const;
};

struct Slot {
  const char* name;
  int width;
  float initial;
  bool sums_squares = false;
};

inline constexpr bool kSumsSquares = true;

}  // namespace sok
