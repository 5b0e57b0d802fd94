// Batches of keys and gradients in the memory of a device, such as a GPU.
#pragma once

#include <cstddef>

#include "core/base/status.h"

namespace sok {

// Memory whose addresses the host cannot read.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  // Copies bytes to the host after the earlier work on a stream, and waits for the copy.
  virtual Status Read(void* to, const void* from, size_t bytes, void* stream) const = 0;
};

// Says that the keys, positions and gradients of a batch are addresses of a device's memory.
struct DeviceBatch {
  const DeviceMemory* memory;
  void* stream;               // whose work writes them
  size_t gradients = 0;       // with positions: how many gradients there are
  bool skips_marked = false;  // keys whose gradients begin with kUnusedBits get none
};

}  // namespace sok
