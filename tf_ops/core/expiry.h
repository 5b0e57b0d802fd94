// The clock, and when rows expire by it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "core/stores/row_slabs.h"

namespace sok {

// When rows expire. Thread-safe.
class Expiry {
 public:
  // now: seconds since 1970; null: the system's clock. ttl in seconds, 0 keeps rows for ever.
  Expiry(uint32_t ttl, std::function<uint32_t()> now);

  uint32_t ttl() const { return ttl_; }
  uint32_t Now() const;
  bool Expired(const RowMeta& meta, uint32_t now) const {
    return ttl_ > 0 && uint64_t{meta.update_time} + ttl_ <= now;
  }
  // A time for Now to return from here on, for tests; 0: the clock again.
  void SetNow(uint32_t now) { fixed_ = now; }

 private:
  const uint32_t ttl_;
  const std::function<uint32_t()> now_;
  std::atomic<uint32_t> fixed_{0};
};

}  // namespace sok
