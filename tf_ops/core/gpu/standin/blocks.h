// Replaces a GPU in tests: it defines the functions of kernels on the host. One block runs on one
// thread of the system, several blocks at once.
#pragma once

#include <cstdint>
#include <string>

namespace sok::gpu {

constexpr int kThreads = 256;

// The block that this thread of the system runs, and the number of blocks.
struct Block {
  uint32_t index = 0;
  uint32_t count = 1;
};
extern thread_local Block current_block;

// A function that runs one block of a kernel on its argument.
using BlockFunction = void (*)(const void* argument);

// Registers a kernel under its name.
struct Registered {
  Registered(const std::string& name, BlockFunction function);
};

inline uint64_t FirstItem() { return current_block.index; }
inline uint64_t ItemStep() { return current_block.count; }
inline uint32_t BlockIndex() { return current_block.index; }
inline uint32_t BlockCount() { return current_block.count; }
inline int FirstThread() { return 0; }
inline int ThreadStep() { return 1; }
inline void Barrier() {}

inline uint32_t FetchAdd(uint32_t* x, uint32_t more) {
  return __atomic_fetch_add(x, more, __ATOMIC_RELAXED);
}
inline uint32_t FetchOr(uint32_t* x, uint32_t bits) {
  return __atomic_fetch_or(x, bits, __ATOMIC_RELAXED);
}
inline uint32_t FetchAnd(uint32_t* x, uint32_t bits) {
  return __atomic_fetch_and(x, bits, __ATOMIC_RELAXED);
}
inline uint32_t CompareAndSwap(uint32_t* x, uint32_t expected, uint32_t desired) {
  __atomic_compare_exchange_n(x, &expected, desired, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
}
inline uint32_t LoadFresh(const uint32_t* x) { return __atomic_load_n(x, __ATOMIC_ACQUIRE); }
inline uint64_t LoadFresh(const uint64_t* x) { return __atomic_load_n(x, __ATOMIC_RELAXED); }
inline void StoreFresh(uint64_t* x, uint64_t value) {
  __atomic_store_n(x, value, __ATOMIC_RELAXED);
}
inline void StoreFresh(uint32_t* x, uint32_t value) {
  __atomic_store_n(x, value, __ATOMIC_RELAXED);
}
inline void Publish(uint32_t* x, uint32_t bits) { __atomic_fetch_or(x, bits, __ATOMIC_RELEASE); }
inline void PublishToHost(uint32_t* x, uint32_t value) {
  __atomic_store_n(x, value, __ATOMIC_RELEASE);
}

inline uint64_t MultiplyHigh(uint64_t x, uint64_t y) {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(x) * y) >> 64);
}
inline int LowestBit(uint32_t x) { return __builtin_ffs(static_cast<int>(x)) - 1; }

}  // namespace sok::gpu
