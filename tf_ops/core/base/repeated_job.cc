#include "core/base/repeated_job.h"

#include <system_error>

namespace sok {

RepeatedJob::~RepeatedJob() {
  if (thread_.is_elsewhere()) return;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    asked_ = false;
    ends_ = true;
  }
  changed_.notify_all();
  thread_.Join();
}

bool RepeatedJob::Ask() {
  {
    const std::lock_guard<std::mutex> lock(mu_);
    if (!thread_.is_started()) {
      try {
        thread_.Start([this] { Run(); });
      } catch (const std::system_error&) {
        return false;
      } catch (const std::bad_alloc&) {
        return false;
      }
    }
    asked_ = true;
  }
  changed_.notify_all();
  return true;
}

bool RepeatedJob::AskIfBusy() {
  const std::lock_guard<std::mutex> lock(mu_);
  if (!asked_ && !running_) return false;
  asked_ = true;  // the thread checks it when its job has run
  return true;
}

void RepeatedJob::Settle() {
  std::unique_lock<std::mutex> lock(mu_);
  asked_ = false;
  changed_.wait(lock, [this] { return !running_; });
}

bool RepeatedJob::busy() const {
  const std::lock_guard<std::mutex> lock(mu_);
  return asked_ || running_;
}

void RepeatedJob::Run() {
  std::unique_lock<std::mutex> lock(mu_);
  for (;;) {
    changed_.wait(lock, [this] { return asked_ || ends_; });
    if (ends_) return;
    asked_ = false;
    running_ = true;
    lock.unlock();
    job_();
    lock.lock();
    running_ = false;
    changed_.notify_all();
  }
}

}  // namespace sok
