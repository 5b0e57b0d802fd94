// The host's part of kernels/sort.h: sorts numbers on a GPU and finds the segments of equal
// numbers. Internal to this room.
#pragma once

#include <cstdint>
#include <functional>

#include "core/base/status.h"
#include "core/gpu/device.h"
#include "core/gpu/kernels/arguments.h"

namespace sok::gpu {

// Launches blocks of a kernel, in the stream of the caller.
using BlockLauncher = std::function<Status(void* kernel, uint64_t blocks, const void* argument)>;

// Returns the number of counters that a sort of n numbers needs.
uint64_t SortCounts(uint64_t n);

// Memory of a sort, which moves the numbers from one half to the other and back.
struct SortMemory {
  uint32_t* keys[2];    // (n) each
  uint32_t* values[2];  // (n) each
  uint32_t* counts;     // (SortCounts(n))
};

// The functions of the program "index" that sort.
struct SortKernels {
  Status Load(const Module& index);

  // Sorts keys (n) with their values (n), or null for 0, 1, 2, …; keys above `most` are sorted as
  // `most`. Both may be the second half of the memory. Returns the half that has the result.
  Result<int> Sort(const BlockLauncher& launch, const uint32_t* keys, const uint32_t* values,
                   uint64_t n, uint32_t most, const SortMemory& memory) const;

  // Finds the segments of sorted keys. The `counts` of a sort may be used again in the arguments.
  Status Segment(const BlockLauncher& launch, const SegmentArguments& arguments) const;

  void *count_digits, *scan_digits, *scan, *move_by_digit, *count_heads, *write_heads, *cut_chunks;
};

}  // namespace sok::gpu
