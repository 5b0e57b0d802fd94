#include "core/base/expiry.h"

#include <chrono>
#include <utility>

namespace sok {

namespace {

uint32_t SystemSeconds() {
  using std::chrono::duration_cast, std::chrono::seconds, std::chrono::system_clock;
  return static_cast<uint32_t>(
      duration_cast<seconds>(system_clock::now().time_since_epoch()).count());
}

}  // namespace

Expiry::Expiry(uint32_t ttl, std::function<uint32_t()> now) : ttl_(ttl), now_(std::move(now)) {}

uint32_t Expiry::Now() const {
  const uint32_t fixed = fixed_.load(std::memory_order_relaxed);
  if (fixed != 0) return fixed;
  const uint32_t now = now_ ? now_() : SystemSeconds();
  uint32_t latest = latest_.load(std::memory_order_relaxed);
  while (latest < now && !latest_.compare_exchange_weak(latest, now)) {
  }
  return std::max(latest, now);
}

void Expiry::Watch(int group, std::function<void(uint64_t key)> heard) const {
  std::lock_guard<std::mutex> guard(mu_);
  watchers_[group] = std::move(heard);
  watched_ = true;
}

void Expiry::Notify(int group, uint64_t key) const {
  if (!watched_) return;
  std::lock_guard<std::mutex> guard(mu_);
  const auto watcher = watchers_.find(group);
  if (watcher != watchers_.end()) watcher->second(key);
}

}  // namespace sok
