// The clock, and when rows expire by it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>

namespace sok {

// Knows the time and how long rows live (the TTL). Thread-safe.
class Expiry {
 public:
  // `now` returns seconds since 1970; null stands for the system's clock. `ttl` is in seconds; 0
  // keeps rows without limit.
  Expiry(uint32_t ttl, std::function<uint32_t()> now);

  uint32_t ttl() const { return ttl_; }
  // Returns the time, which never goes back: a row that has expired once may have been removed.
  // If the clock is set back, this stands still until the clock has caught up.
  uint32_t Now() const;
  // Returns whether a row that was last changed at update_time has expired at `now`.
  bool Expired(uint32_t update_time, uint32_t now) const {
    return ttl_ > 0 && uint64_t{update_time} + ttl_ <= now;
  }
  // Returns whether a row that has expired may be removed for good. It may not before AllowRemoval
  // is called, which is done once the folder has recorded this ttl; until then opening the folder
  // may still fail.
  bool MayRemove(uint32_t update_time) const {
    return removal_allowed_ && Expired(update_time, Now());
  }
  void AllowRemoval() { removal_allowed_ = true; }
  // Sets the watcher of a group: heard(key) is called for every row of the group that is removed
  // because it has expired, on the thread that removes it. A new row of the key may exist by then.
  // A group has one watcher; a new one replaces it.
  void Watch(int group, std::function<void(uint64_t key)> heard) const;
  void Notify(int group, uint64_t key) const;
  // For tests: from here on Now returns this time, or a later one that was set before. 0 gives the
  // clock back.
  void SetNow(uint32_t now) { fixed_ = now == 0 ? 0 : std::max<uint32_t>(fixed_, now); }

 private:
  const uint32_t ttl_;
  const std::function<uint32_t()> now_;
  std::atomic<bool> removal_allowed_{false};
  std::atomic<uint32_t> fixed_{0};
  mutable std::atomic<uint32_t> latest_{0};  // the latest time that the clock has said
  mutable std::atomic<bool> watched_{false};
  mutable std::mutex mu_;
  mutable std::map<int, std::function<void(uint64_t key)>> watchers_;  // by group
};

}  // namespace sok
