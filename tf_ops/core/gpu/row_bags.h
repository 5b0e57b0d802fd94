// Bags of ids whose rows a table on a GPU pools. Addresses are of the GPU.
#pragma once

#include <cstdint>

#include "core/gpu/driver.h"
#include "core/gpu/kernels/arguments.h"

namespace sok::gpu {

struct RowBags {
  uint64_t first = 0;  // index of its first id among the keys of a call
  uint64_t ids = 0;    // fewer than 2^31
  uint64_t bags = 0;
  DeviceAddress splits = 0;   // (bags + 1) int64: from 0 to ids, not decreasing; not checked
  uint64_t length = 1;        // ids of each bag, without splits
  DeviceAddress weights = 0;  // (ids) float32, or 0; not with kMax
  Combiner combiner = Combiner::kSum;
  // (bags, dim) of the vectors, or of their gradients; the vector of bag i begins at element i *
  // stride.
  DeviceAddress vectors = 0;
  uint64_t stride = 0;
  Element element = Element::kFloat32;
  // (ids, dim) float32 of the rows of ids, which gradients of weights and of kMax need; 0: a lookup
  // does not write them.
  DeviceAddress rows = 0;
  // True if a vector whose gradient begins with kUnusedBits has no gradient, nor do its ids.
  bool skips_marked = false;
};

}  // namespace sok::gpu
