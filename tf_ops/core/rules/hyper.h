// A parameter that a caller gives.
#pragma once

#include <string>

namespace sok {

// A value of a rule's or a schedule's parameter, by its name ("learning_rate", "beta_1", …).
struct Hyper {
  std::string name;
  double value;  // double, because 1 - beta_2 in float32 is off by 1.3e-5
};

}  // namespace sok
