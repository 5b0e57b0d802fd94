#include "core/rows/row_capture.h"

#include <algorithm>
#include <chrono>

namespace sok {

CaptureBudget& CaptureBudget::OfProcess() {
  // It is never destroyed: threads may use it while the process ends.
  static auto* const budget = new CaptureBudget;
  return *budget;
}

void CaptureBudget::set_limit(uint64_t bytes) {
  std::lock_guard<std::mutex> guard(mu_);
  limit_ = bytes;
  peak_ = used_;
  waited_seconds_ = 0;
  changed_.notify_all();
}

uint64_t CaptureBudget::limit() const {
  std::lock_guard<std::mutex> guard(mu_);
  return limit_;
}

uint64_t CaptureBudget::used() const {
  std::lock_guard<std::mutex> guard(mu_);
  return used_;
}

uint64_t CaptureBudget::peak() const {
  std::lock_guard<std::mutex> guard(mu_);
  return peak_;
}

double CaptureBudget::waited_seconds() const {
  std::lock_guard<std::mutex> guard(mu_);
  return waited_seconds_;
}

void CaptureBudget::Add(uint64_t bytes) {
  std::lock_guard<std::mutex> guard(mu_);
  used_ += bytes;
  peak_ = std::max(peak_, used_);
}

void CaptureBudget::Remove(uint64_t bytes) {
  std::lock_guard<std::mutex> guard(mu_);
  used_ -= bytes;
  changed_.notify_all();
}

void CaptureBudget::WaitForRoom(const std::function<bool()>& ended) {
  std::unique_lock<std::mutex> lock(mu_);
  if (used_ < limit_ || ended()) return;
  const auto begin = std::chrono::steady_clock::now();
  changed_.wait(lock, [&] { return used_ < limit_ || ended(); });
  waited_seconds_ +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void CaptureBudget::Wake() {
  std::lock_guard<std::mutex> guard(mu_);
  changed_.notify_all();
}

}  // namespace sok
