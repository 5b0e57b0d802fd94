// Threads for callers without a thread pool: TensorFlow's kernels have one, Python does not.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "core/base/types.h"

namespace sok {

// A pool of threads. Each thread may work on any call. Thread-safe. Any number of threads may call
// Run at once, and a function that runs may call Run again: a caller works on its own call until no
// chunk is left, and then waits only for chunks that are already running.
class ThreadPool {
 public:
  // At most `threads` threads work for one Run, its caller among them. They start with the first
  // Run that has work for more than one; if the system refuses to start some, there are fewer.
  explicit ThreadPool(int threads) : threads_(threads) {}
  // No Run may be under way when the pool is destroyed.
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;

  // Works as ParallelFor describes. Work that takes less time than two chunks runs on the caller
  // alone. If fn throws, Run throws the first exception once no chunk runs any more.
  void Run(int64_t total, int64_t unit_cost, const std::function<void(int64_t, int64_t)>& fn);

  // A chunk takes at least this many nanoseconds, if unit_cost is right: waking a thread takes a
  // few thousand.
  static constexpr int64_t kChunkNanoseconds = 20000;

 private:
  struct Job;
  void Start();
  void Work();
  static void RunChunks(Job* job);

  const int threads_;
  std::mutex mu_;
  std::condition_variable wake_;
  std::deque<Job*> jobs_;  // jobs that may have chunks left; each lives on its caller's stack
  bool started_ = false;
  bool ending_ = false;
  std::vector<std::thread> workers_;
};

// Returns a ParallelFor with as many threads as this machine gives the process; they live as long
// as the process. After fork() the child starts its own threads. A child that was forked from
// within a call of Run cannot use them.
ParallelFor ProcessPool();

// Ends the threads of ProcessPool. No call may run on them, and none may begin meanwhile. A later
// call starts new threads.
void EndProcessPool();

}  // namespace sok
