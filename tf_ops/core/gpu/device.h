// One GPU: its memory, its streams and the launching of kernels.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/gpu/driver.h"
#include "core/rows/device_batch.h"

namespace sok::gpu {

// Returns a pointer in the form in which kernels get it.
template <typename T>
T* Pointer(DeviceAddress address) {
  return reinterpret_cast<T*>(address);
}

// A compiled program on a device. Its functions stay valid as long as it lives.
class Module;

// A GPU, by its primary context, which TensorFlow and torch use too. Thread-safe. Objects of a
// device keep the device alive.
class Device final : public DeviceMemory, public std::enable_shared_from_this<Device> {
 public:
  // Opens the GPU of this number among those that the process sees. Errors: kUnavailable without
  // a driver or a GPU, kInvalidArgument for a number without a GPU.
  static Result<std::shared_ptr<Device>> Open(int ordinal);
  ~Device() override;

  const std::string& name() const { return name_; }
  int architecture() const { return architecture_; }  // 90 is compute capability 9.0
  int multiprocessors() const { return multiprocessors_; }
  int ordinal() const { return ordinal_; }
  const Driver& driver() const { return driver_; }

  // Calls fn, which returns a result of the driver, with this device's context current.
  template <typename Fn>
  Status Call(const char* call, const Fn& fn) const {
    const Status entered = driver_.Check(driver_.CtxPushCurrent(context_), "cuCtxPushCurrent");
    if (!entered.ok()) return entered;
    const int result = fn();
    void* left = nullptr;
    driver_.CtxPopCurrent(&left);
    return driver_.Check(result, call);
  }

  Status CopyToDevice(DeviceAddress to, const void* from, size_t bytes, Stream stream) const;
  // The host's memory has the content once the stream is synchronized.
  Status CopyToHost(void* to, DeviceAddress from, size_t bytes, Stream stream) const;
  Status Read(void* to, const void* from, size_t bytes, void* stream) const override;
  Status CopyWithin(DeviceAddress to, DeviceAddress from, size_t bytes, Stream stream) const;
  Status Fill(DeviceAddress to, unsigned char value, size_t bytes, Stream stream) const;
  Status Synchronize(Stream stream) const;
  // Returns whether a stream belongs to this device. False for streams that the driver does not
  // know.
  bool HasStream(Stream stream) const;
  // Returns the size of the device's memory in bytes, used and free.
  Result<size_t> TotalBytes() const;

  // Launches `blocks` blocks of `threads` threads. The kernel takes one argument, by value.
  Status Launch(void* function, unsigned blocks, unsigned threads, const void* argument,
                Stream stream) const;

  // Launches a kernel that loops over its blocks or items, in blocks of 256 threads. The number of
  // blocks is limited by what the device can run soon; 0 launches none.
  Status LaunchBlocks(void* function, uint64_t blocks, const void* argument, Stream stream) const;

  // Loads a compiled program.
  Result<std::shared_ptr<Module>> Load(const std::string& image);

 private:
  Device(const Driver& driver, int ordinal) : driver_(driver), ordinal_(ordinal) {}

  const Driver& driver_;
  int ordinal_;
  int handle_ = 0;
  void* context_ = nullptr;
  std::string name_;
  int architecture_ = 0;
  int multiprocessors_ = 0;
};

class Module {
 public:
  Module(std::shared_ptr<Device> device, void* handle)
      : device_(std::move(device)), handle_(handle) {}
  ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  Result<void*> Function(const char* name) const;

 private:
  std::shared_ptr<Device> device_;
  void* handle_;
};

// Memory of a device that is reused. When it grows, its content is lost.
// Not thread-safe.
class Buffer {
 public:
  Buffer() = default;
  ~Buffer();
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(address_, other.address_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  // Makes sure that there are at least this many bytes; new memory has exactly this size. The
  // driver waits for work that uses the old memory. Errors: kResourceExhausted; the memory is
  // unchanged then.
  Status Reserve(const std::shared_ptr<Device>& device, size_t bytes);

  DeviceAddress address() const { return address_; }
  size_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<Device> device_;
  DeviceAddress address_ = 0;
  size_t bytes_ = 0;
};

// Memory of a device that grows without being copied: a range of addresses, into which pieces of
// memory are mapped as they are needed. Not thread-safe.
class GrowingMemory {
 public:
  // Reserves `most` bytes of addresses, and no memory yet.
  static Result<GrowingMemory> Make(std::shared_ptr<Device> device, size_t most);
  ~GrowingMemory();
  GrowingMemory(GrowingMemory&& other) noexcept;
  GrowingMemory& operator=(GrowingMemory&& other) noexcept;

  // Makes sure that the first `bytes` bytes have memory. New memory is uninitialized. Errors:
  // kResourceExhausted if the addresses or the memory of the device do not suffice; nothing has
  // changed then.
  Status Reserve(size_t bytes);

  DeviceAddress address() const { return address_; }
  size_t bytes() const { return bytes_; }

 private:
  GrowingMemory(std::shared_ptr<Device> device, size_t granularity, size_t most)
      : device_(std::move(device)), granularity_(granularity), most_(most) {}

  struct Piece {
    unsigned long long handle;
    size_t bytes;
  };

  std::shared_ptr<Device> device_;
  size_t granularity_;
  size_t most_;
  DeviceAddress address_ = 0;
  size_t bytes_ = 0;
  std::vector<Piece> pieces_;
};

}  // namespace sok::gpu
