// A thread that does one job whenever it is asked to.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>

#include "core/base/forked_child.h"

namespace sok {

// Thread-safe. However often the job is requested while it runs, it runs once more afterwards. The
// thread starts with the first request, and ends with this object.
class RepeatedJob {
 public:
  // The job must not throw, and must not wait for this object.
  explicit RepeatedJob(std::function<void()> job) : job_(std::move(job)) {}
  // Waits until the job does not run. A request that has not begun is dropped.
  ~RepeatedJob();
  RepeatedJob(const RepeatedJob&) = delete;

  // Requests that the job runs after this call. Returns false if the system cannot start a thread.
  bool Ask();
  // The same if the job runs or has been requested; otherwise it returns false and does nothing.
  bool AskIfBusy();
  // Drops a request that has not begun, and waits until the job does not run.
  void Settle();
  // Returns whether the job runs or has been requested.
  bool busy() const;

 private:
  void Run();

  const std::function<void()> job_;
  mutable std::mutex mu_;  // guards the rest
  std::condition_variable changed_;
  bool asked_ = false;
  bool running_ = false;
  bool ends_ = false;
  ThreadOfProcess thread_;
};

}  // namespace sok
