// Keys with a mask, which selects own rows or static rows; static rows are stored beside the table.
// Addresses are of the GPU.
#pragma once

#include <cstdint>

#include "core/gpu/driver.h"
#include "core/gpu/kernels/arguments.h"

namespace sok::gpu {

struct MaskedKeys {
  DeviceAddress keys = 0;     // (n) uint64
  DeviceAddress buckets = 0;  // (n) int64: their static rows
  uint64_t n = 0;
  // (asking) uint32, ascending: the positions of the keys that read their own row if it exists.
  DeviceAddress positions = 0;
  uint64_t asking = 0;
  StaticRows statics = {};
};

}  // namespace sok::gpu
