// Runs random operations on a table of a GPU and on a store of the host, and compares them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/base/status.h"
#include "core/gpu/device.h"

namespace sok::gpu {

struct ProgramOptions {
  uint64_t seed = 1;
  int dim = 16;
  std::string rule = "adam";
  std::string initializer = "uniform";
  int operations = 50;
  uint32_t most_keys = 2000;  // of one operation
  uint32_t universe = 3000;   // keys that there are, among them the least and the largest
};

// Returns an error that names the operation, the key and both values if the two differ: lookups and
// rows by more than 1e-5 (1e-3 with an Ftrl) of the larger or of 1, since a GPU fuses other
// products than a compiler for the host. Sums of the gradients are exact in any order. Start
// vectors must be the same bits for "constant" and "uniform". Counters, sizes and which keys have
// rows must be the same.
Status RunRandomProgram(const std::shared_ptr<Device>& device, const ProgramOptions& options);

// The difference between start vectors of the GPU and of the host.
struct StartDifference {
  uint64_t elements = 0;
  uint64_t different = 0;  // elements whose bits differ
  float most = 0.0f;       // the largest difference
};

// Compares the start vectors of 2^20 keys.
Result<StartDifference> CompareStarts(const std::shared_ptr<Device>& device,
                                      const std::string& initializer);

}  // namespace sok::gpu
