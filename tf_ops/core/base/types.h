// The types that every part of the core shares.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace sok {

// Every 64-bit value is a legal key. TensorFlow's int64 keys keep their bits.
using Key = uint64_t;

// Runs fn over [0, total) in chunks [begin, end), on the caller's threads, and returns when all
// chunks are done. unit_cost is the work of one item in nanoseconds, roughly: it decides how small
// a chunk may get. fn must be safe to call from several threads at once.
using ParallelFor = std::function<void(int64_t total, int64_t unit_cost,
                                       const std::function<void(int64_t begin, int64_t end)>& fn)>;

// The ParallelFor of a caller without a thread pool: it runs everything on the calling thread.
inline void SerialFor(int64_t total, int64_t /*unit_cost*/,
                      const std::function<void(int64_t, int64_t)>& fn) {
  if (total > 0) fn(0, total);
}

}  // namespace sok
