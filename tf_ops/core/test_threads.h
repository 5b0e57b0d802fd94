// What tests with threads and random numbers share.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "core/types.h"

namespace sok {

// A ParallelFor on threads of its own, which take several chunks each in whatever order they come.
inline void ThreadedFor(int64_t total, int64_t /*unit_cost*/,
                        const std::function<void(int64_t, int64_t)>& fn) {
  constexpr int64_t kThreads = 3, kChunks = 8;
  const int64_t chunk = (total + kChunks - 1) / kChunks;
  std::atomic<int64_t> next{0};
  const auto work = [&] {
    for (int64_t begin = next.fetch_add(chunk); begin < total; begin = next.fetch_add(chunk)) {
      fn(begin, begin + chunk < total ? begin + chunk : total);
    }
  };
  if (total <= 0) return;
  std::vector<std::thread> threads;
  for (int64_t t = 1; t < kThreads; ++t) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
}

// The seed of this run's random tests: SOK_TEST_SEED, or another one each time. Printed, so that a
// failure can be had again.
inline uint64_t TestSeed() {
  static const uint64_t seed = [] {
    const char* given = std::getenv("SOK_TEST_SEED");
    const uint64_t chosen =
        given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device()();
    std::printf("SOK_TEST_SEED=%llu\n", static_cast<unsigned long long>(chosen));
    return chosen;
  }();
  return seed;
}

}  // namespace sok
