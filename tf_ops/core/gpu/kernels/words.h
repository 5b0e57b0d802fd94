// The functions and macros in which kernels are written. On a GPU they are those of CUDA. On the
// host a kernel is a function that does the work of one block, one thread of the block after
// another, and the blocks run on several threads of the system: see core/gpu/standin/.
//
// A kernel is either a loop over items, from FirstItem() in steps of ItemStep(), or works by
// blocks: it loops over the threads of a block, from FirstThread() in steps of ThreadStep(), with a
// Barrier() after each loop. Values that one loop leaves for the next are in SOK_SHARED variables.
// No kernel uses warp operations.
#pragma once

#ifdef __CUDACC_RTC__

#include "core/gpu/kernels/standard.h"

#define SOK_DEVICE __device__ inline
#define SOK_SHARED __shared__
#define SOK_UNROLL _Pragma("unroll")
#define SOK_KERNEL(name, Arguments) \
  extern "C" __global__ void __launch_bounds__(sok::gpu::kThreads) name(const Arguments a)

namespace sok::gpu {

// The number of threads in each block, for all kernels.
constexpr int kThreads = 256;

SOK_DEVICE uint64_t FirstItem() {
  return static_cast<uint64_t>(blockIdx.x) * kThreads + threadIdx.x;
}
SOK_DEVICE uint64_t ItemStep() { return static_cast<uint64_t>(gridDim.x) * kThreads; }
SOK_DEVICE uint32_t BlockIndex() { return blockIdx.x; }
SOK_DEVICE uint32_t BlockCount() { return gridDim.x; }
SOK_DEVICE int FirstThread() { return static_cast<int>(threadIdx.x); }
SOK_DEVICE int ThreadStep() { return kThreads; }
SOK_DEVICE void Barrier() { __syncthreads(); }

// Each of these functions returns the old value.
SOK_DEVICE uint32_t FetchAdd(uint32_t* x, uint32_t more) { return atomicAdd(x, more); }
SOK_DEVICE uint32_t FetchOr(uint32_t* x, uint32_t bits) { return atomicOr(x, bits); }
SOK_DEVICE uint32_t FetchAnd(uint32_t* x, uint32_t bits) { return atomicAnd(x, bits); }
// Replaces `expected` by `desired`, and returns the old value.
SOK_DEVICE uint32_t CompareAndSwap(uint32_t* x, uint32_t expected, uint32_t desired) {
  return atomicCAS(x, expected, desired);
}

// Reads a word that another thread of the kernel may be writing. If it sees the bits of a Publish,
// later calls see everything that was written before that Publish.
SOK_DEVICE uint32_t LoadFresh(const uint32_t* x) {
  const uint32_t value = *static_cast<const volatile uint32_t*>(x);
  __threadfence();
  return value;
}
SOK_DEVICE uint64_t LoadFresh(const uint64_t* x) {
  return *static_cast<const volatile uint64_t*>(x);
}
// Writes what another thread may read by LoadFresh.
SOK_DEVICE void StoreFresh(uint64_t* x, uint64_t value) {
  *static_cast<volatile uint64_t*>(x) = value;
}
SOK_DEVICE void StoreFresh(uint32_t* x, uint32_t value) {
  *static_cast<volatile uint32_t*>(x) = value;
}
// Sets bits, after everything that the thread has written before.
SOK_DEVICE void Publish(uint32_t* x, uint32_t bits) {
  __threadfence();
  atomicOr(x, bits);
}
// Writes a word of the host's memory, after everything that the thread has written before.
SOK_DEVICE void PublishToHost(uint32_t* x, uint32_t value) {
  __threadfence_system();
  *static_cast<volatile uint32_t*>(x) = value;
}

SOK_DEVICE uint64_t MultiplyHigh(uint64_t x, uint64_t y) { return __umul64hi(x, y); }
SOK_DEVICE int LowestBit(uint32_t x) { return __ffs(static_cast<int>(x)) - 1; }

}  // namespace sok::gpu

#else  // the host

#include <cmath>
#include <cstdint>
#include <cstring>

#include "core/gpu/standin/blocks.h"

#define SOK_DEVICE inline
#define SOK_SHARED
#define SOK_UNROLL
#define SOK_KERNEL(name, Arguments)                                                         \
  static void name(const Arguments& a);                                                     \
  static const sok::gpu::Registered registered_##name(                                      \
      #name, [](const void* argument) { name(*static_cast<const Arguments*>(argument)); }); \
  static void name(const Arguments& a)

#endif
