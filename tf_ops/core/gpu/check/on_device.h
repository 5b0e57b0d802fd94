// Memory of a GPU with the content of a vector, for checks.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/status_macros.h"
#include "core/gpu/device.h"

namespace sok::gpu {

class OnDevice {
 public:
  explicit OnDevice(std::shared_ptr<Device> device) : device_(std::move(device)) {}

  template <typename T>
  Result<DeviceAddress> Put(const std::vector<T>& values) {
    const size_t bytes = values.size() * sizeof(T);
    SOK_RETURN_IF_ERROR(buffer_.Reserve(device_, std::max<size_t>(bytes, 1)));
    SOK_RETURN_IF_ERROR(device_->CopyToDevice(buffer_.address(), values.data(), bytes, nullptr));
    return buffer_.address();
  }

  template <typename T>
  Status Get(std::vector<T>* values) {
    SOK_RETURN_IF_ERROR(device_->CopyToHost(values->data(), buffer_.address(),
                                            values->size() * sizeof(T), nullptr));
    return device_->Synchronize(nullptr);
  }

 private:
  std::shared_ptr<Device> device_;
  Buffer buffer_;
};

}  // namespace sok::gpu
