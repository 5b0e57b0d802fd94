// The sources of the programs for a GPU, which are text in the library.
#pragma once

#include <vector>

#include "core/gpu/compiler.h"

namespace sok::gpu {

// Returns the headers of the kernels and of what they share with the host, by their names from
// tf_ops on. CMake makes this of the files.
const std::vector<Header>& DeviceHeaders();

}  // namespace sok::gpu
