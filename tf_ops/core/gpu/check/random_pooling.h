// Compares pooled lookups of a table on a GPU, and their gradients, with formulas in float64.
#pragma once

#include <memory>
#include <random>
#include <vector>

#include "core/base/status.h"
#include "core/base/types.h"
#include "core/gpu/device.h"
#include "core/gpu/gpu_table.h"

namespace sok::gpu {

struct PooledKeys {
  const std::vector<Key>& keys;
  const std::vector<float>& rows;  // (keys, dim) what a lookup of them returns
  Absent absent;
  uint32_t now;
};

// Pools the keys in random bags, of several features, with and without weights, into adjacent or
// separate vectors of all types. Returns an error that describes the difference.
Status CheckPooling(const std::shared_ptr<Device>& device, GpuTable* table,
                    const PooledKeys& pooled, std::mt19937_64* random);

}  // namespace sok::gpu
