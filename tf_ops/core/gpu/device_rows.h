// Rows in the memory of a GPU, for calls whose keys and vectors lie there too.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "core/base/shared_mutex.h"
#include "core/base/status.h"
#include "core/gpu/gpu_table.h"

namespace sok::gpu {

// Thread-safe. Work is put on a stream, after the earlier work there; see GpuTable for what waits.
class DeviceRows {
 public:
  const Device& device() const { return *device_; }

  // Calls look_up(table, absent), a lookup, with Absent::kMake if make_rows; otherwise with
  // Absent::kStart, and it changes nothing.
  template <typename Fn>
  Status LookUp(bool make_rows, const Fn& look_up) {
    if (!make_rows) {
      std::shared_lock<SharedMutex> lock(mu_);
      return look_up(*table_, Absent::kStart);
    }
    std::lock_guard<SharedMutex> lock(mu_);
    const Status status = look_up(*table_, Absent::kMake);
    ++unseen_calls_;
    return status;
  }
  // Calls fn(table), which computes gradients, or pools rows that are not in the table.
  template <typename Fn>
  Status Compute(const Fn& fn) const {
    std::shared_lock<SharedMutex> lock(mu_);
    return fn(*table_);
  }

 protected:
  explicit DeviceRows(std::shared_ptr<Device> device) : device_(std::move(device)) {}
  ~DeviceRows() = default;

  const std::shared_ptr<Device> device_;
  // A call that changes rows holds it alone.
  mutable SharedMutex mu_;
  std::shared_ptr<GpuTable> table_;
  // The number of calls that may have made rows without waiting.
  std::atomic<uint64_t> unseen_calls_{0};
};

}  // namespace sok::gpu
