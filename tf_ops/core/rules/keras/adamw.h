// Adam with decoupled weight decay by default (Loshchilov and Hutter 2019): keras.optimizers.AdamW.
#pragma once

#include <vector>

#include "core/rules/keras/adam.h"

namespace sok {

struct AdamW : Adam {
  using Adam::Adam;

  static std::vector<Parameter> Parameters() {
    std::vector<Parameter> parameters = Adam::Parameters();
    parameters.back().default_value = 0.004;  // weight_decay
    return parameters;
  }
};

}  // namespace sok
