// Helpers for tests with threads and random numbers.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <mutex>
#include <random>
#include <string_view>
#include <thread>
#include <vector>

#include "core/base/types.h"

namespace sok {

// A ParallelFor with its own threads, each of which takes several chunks, in any order.
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

// A pool that works like TensorFlow's: a caller queues its pieces behind the pieces of other
// callers, runs one itself and then waits, without helping, until threads of the pool have run the
// rest. If a piece waits for a lock that such a caller holds, all of them wait forever.
class WaitingPool {
 public:
  explicit WaitingPool(int threads) {
    for (int t = 0; t < threads; ++t) workers_.emplace_back([this] { Work(); });
  }
  ~WaitingPool() {
    {
      std::lock_guard<std::mutex> guard(mu_);
      ending_ = true;
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }
  WaitingPool(const WaitingPool&) = delete;

  void Run(int64_t total, const std::function<void(int64_t, int64_t)>& fn) {
    if (total <= 0) return;
    constexpr int64_t kPieces = 8;
    const int64_t piece = (total + kPieces - 1) / kPieces;
    int64_t left = (total - 1) / piece;  // guarded by mu_
    {
      std::lock_guard<std::mutex> guard(mu_);
      for (int64_t begin = piece; begin < total; begin += piece) {
        queue_.push_back([this, &fn, &left, begin, end = std::min(begin + piece, total)] {
          fn(begin, end);
          std::lock_guard<std::mutex> done(mu_);
          if (--left == 0) wake_.notify_all();
        });
      }
    }
    wake_.notify_all();
    fn(0, std::min(piece, total));
    std::unique_lock<std::mutex> lock(mu_);
    wake_.wait(lock, [&] { return left == 0; });
  }
  ParallelFor parallel_for() {
    return [this](int64_t total, int64_t, const std::function<void(int64_t, int64_t)>& fn) {
      Run(total, fn);
    };
  }

 private:
  void Work() {
    std::unique_lock<std::mutex> lock(mu_);
    for (;;) {
      wake_.wait(lock, [this] { return ending_ || !queue_.empty(); });
      if (queue_.empty()) return;
      const std::function<void()> piece = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      piece();
      lock.lock();
    }
  }

  std::mutex mu_;
  std::condition_variable wake_;  // wakes the workers and the waiting callers
  std::deque<std::function<void()>> queue_;
  bool ending_ = false;
  std::vector<std::thread> workers_;
};

// Returns the seed of this run's random tests, and prints it: SOK_TEST_SEED, or 1.
// SOK_TEST_SEED=random draws one, for long searches.
inline uint64_t TestSeed() {
  static const uint64_t seed = [] {
    const char* given = std::getenv("SOK_TEST_SEED");
    const bool draws = given != nullptr && std::string_view(given) == "random";
    const uint64_t chosen = draws              ? std::random_device()()
                            : given != nullptr ? std::strtoull(given, nullptr, 10)
                                               : 1;
    std::printf("SOK_TEST_SEED=%llu\n", static_cast<unsigned long long>(chosen));
    return chosen;
  }();
  return seed;
}

// Returns whether long cases run in full: with SOK_TEST_LONG=1, which `make test-all` sets.
inline bool LongTests() {
  const char* given = std::getenv("SOK_TEST_LONG");
  return given != nullptr && std::string_view(given) == "1";
}

}  // namespace sok
