// The sources of the programs for a GPU, which the library holds as text.
#pragma once

#include <vector>

#include "core/gpu/compiler.h"

namespace sok::gpu {

// Returns the headers of the kernels and the headers that they share with the host, with their
// paths relative to tf_ops. CMake generates this function from the files.
const std::vector<Header>& DeviceHeaders();

}  // namespace sok::gpu
