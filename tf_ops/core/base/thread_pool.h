// Threads for callers that bring none: TensorFlow's kernels have a pool, Python has not.
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

// A pool of threads, each of which works on any call. Thread-safe. Any number of threads may call
// Run at once, and what runs may call Run again: a caller works on its own call until no chunk is
// left, and waits for nothing but chunks that are running already.
class ThreadPool {
 public:
  // At most `threads` threads work for one Run, its caller among them. They start with the first
  // Run that has work for more than one; if the system refuses to start some, there are fewer.
  explicit ThreadPool(int threads) : threads_(threads) {}
  // No Run may be under way when the pool goes.
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;

  // Works as ParallelFor says. What takes less than two chunks' worth of time runs on the caller
  // alone. An exception from fn comes out of here, the first one if there are several, once nothing
  // runs.
  void Run(int64_t total, int64_t unit_cost, const std::function<void(int64_t, int64_t)>& fn);

  // A chunk takes at least so many nanoseconds, if unit_cost is right: waking a thread takes a few
  // thousand.
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

// Returns a ParallelFor on as many threads as this machine gives the process; they live as long as
// it does. After fork() the child starts threads of its own. That does not help a child which was
// forked from inside of what runs here.
ParallelFor ProcessPool();

// Ends the threads of ProcessPool. Nothing may run on them, and nothing may be given to them
// meanwhile. What comes later starts new ones.
void EndProcessPool();

}  // namespace sok
