// A thread that does one job whenever it is asked to.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace sok {

// Thread-safe. However often the job is asked for while it runs, it runs once more after that. The
// thread begins with the first request, and ends with this.
class RepeatedJob {
 public:
  // The job must not throw, and must not wait for this.
  explicit RepeatedJob(std::function<void()> job) : job_(std::move(job)) {}
  // Waits until the job does not run. What has been asked for and has not begun is not done.
  ~RepeatedJob();
  RepeatedJob(const RepeatedJob&) = delete;

  // Has the job begin once after this call. Returns false where the system has no thread for it.
  bool Ask();
  // The same, if the job runs or is about to; else it returns false and asks for nothing.
  bool AskIfBusy();
  // Withdraws what has been asked for and has not begun, and waits until the job does not run.
  void Settle();
  // Returns whether the job runs or is about to.
  bool busy() const;

 private:
  void Run();

  const std::function<void()> job_;
  mutable std::mutex mu_;  // guards the rest
  std::condition_variable changed_;
  bool asked_ = false;
  bool running_ = false;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace sok
