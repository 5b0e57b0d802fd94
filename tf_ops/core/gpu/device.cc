#include "core/gpu/device.h"

#include <algorithm>

#include "core/base/status_macros.h"

namespace sok::gpu {
namespace {

// Numbers of CUdevice_attribute.
constexpr int kMultiprocessors = 16;
constexpr int kMajor = 75;
constexpr int kMinor = 76;
// The number of blocks that run on a multiprocessor, one after another. Kernels loop over further
// items.
constexpr uint64_t kBlocksOfMultiprocessor = 64;

}  // namespace

Result<std::shared_ptr<Device>> Device::Open(int ordinal) {
  SOK_ASSIGN_OR_RETURN(const Driver* const driver, Driver::Get());
  int count = 0;
  SOK_RETURN_IF_ERROR(driver->Check(driver->DeviceGetCount(&count), "cuDeviceGetCount"));
  if (count == 0) {
    return Status(Code::kUnavailable,
                  std::string("Expected a GPU. Received: a process that sees none. Let "
                              "CUDA_VISIBLE_DEVICES name one, ") +
                      kOrTheHost);
  }
  if (ordinal < 0 || ordinal >= count) {
    return InvalidArgument("Expected a GPU of 0 to " + std::to_string(count - 1) +
                           ". Received: " + std::to_string(ordinal) +
                           ". Let CUDA_VISIBLE_DEVICES name that one, " + kOrTheHost);
  }
  std::shared_ptr<Device> device(new Device(*driver, ordinal));
  SOK_RETURN_IF_ERROR(driver->Check(driver->DeviceGet(&device->handle_, ordinal), "cuDeviceGet"));
  char name[256] = {};
  SOK_RETURN_IF_ERROR(
      driver->Check(driver->DeviceGetName(name, sizeof(name), device->handle_), "cuDeviceGetName"));
  device->name_ = name;
  const auto attribute = [&](int number, int* value) {
    return driver->Check(driver->DeviceGetAttribute(value, number, device->handle_),
                         "cuDeviceGetAttribute");
  };
  int major = 0, minor = 0;
  SOK_RETURN_IF_ERROR(attribute(kMajor, &major));
  SOK_RETURN_IF_ERROR(attribute(kMinor, &minor));
  SOK_RETURN_IF_ERROR(attribute(kMultiprocessors, &device->multiprocessors_));
  device->architecture_ = 10 * major + minor;
  SOK_RETURN_IF_ERROR(
      driver->Check(driver->DevicePrimaryCtxRetain(&device->context_, device->handle_),
                    "cuDevicePrimaryCtxRetain"));
  return device;
}

Device::~Device() {
  if (context_ != nullptr) driver_.DevicePrimaryCtxRelease(handle_);
}

Status Device::CopyToDevice(DeviceAddress to, const void* from, size_t bytes, Stream stream) const {
  if (bytes == 0) return Status();
  return Call("cuMemcpyHtoDAsync",
              [&] { return driver_.MemcpyHtoDAsync(to, from, bytes, stream); });
}

Status Device::CopyToHost(void* to, DeviceAddress from, size_t bytes, Stream stream) const {
  if (bytes == 0) return Status();
  return Call("cuMemcpyDtoHAsync",
              [&] { return driver_.MemcpyDtoHAsync(to, from, bytes, stream); });
}

Status Device::Read(void* to, const void* from, size_t bytes, void* stream) const {
  SOK_RETURN_IF_ERROR(CopyToHost(to, reinterpret_cast<DeviceAddress>(from), bytes, stream));
  return Synchronize(stream);
}

Status Device::CopyWithin(DeviceAddress to, DeviceAddress from, size_t bytes, Stream stream) const {
  if (bytes == 0) return Status();
  return Call("cuMemcpyDtoDAsync",
              [&] { return driver_.MemcpyDtoDAsync(to, from, bytes, stream); });
}

Status Device::Fill(DeviceAddress to, unsigned char value, size_t bytes, Stream stream) const {
  if (bytes == 0) return Status();
  return Call("cuMemsetD8Async", [&] { return driver_.MemsetD8Async(to, value, bytes, stream); });
}

Status Device::Synchronize(Stream stream) const {
  return Call("cuStreamSynchronize", [&] { return driver_.StreamSynchronize(stream); });
}

bool Device::HasStream(Stream stream) const {
  void* of = nullptr;
  const Status found = Call("cuStreamGetCtx", [&] { return driver_.StreamGetCtx(stream, &of); });
  return found.ok() && of == context_;
}

Result<size_t> Device::TotalBytes() const {
  size_t free = 0, total = 0;
  SOK_RETURN_IF_ERROR(Call("cuMemGetInfo", [&] { return driver_.MemGetInfo(&free, &total); }));
  return total;
}

Status Device::Launch(void* function, unsigned blocks, unsigned threads, const void* argument,
                      Stream stream) const {
  void* arguments[] = {const_cast<void*>(argument)};
  return Call("cuLaunchKernel", [&] {
    return driver_.LaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, arguments,
                                nullptr);
  });
}

Status Device::LaunchBlocks(void* function, uint64_t blocks, const void* argument,
                            Stream stream) const {
  if (blocks == 0) return Status();
  const uint64_t most = kBlocksOfMultiprocessor * multiprocessors_;
  return Launch(function, static_cast<unsigned>(std::min(blocks, most)), 256, argument, stream);
}

Result<std::shared_ptr<Module>> Device::Load(const std::string& image) {
  void* handle = nullptr;
  SOK_RETURN_IF_ERROR(
      Call("cuModuleLoadData", [&] { return driver_.ModuleLoadData(&handle, image.data()); }));
  return std::make_shared<Module>(shared_from_this(), handle);
}

Module::~Module() {
  const Driver& driver = device_->driver();
  (void)device_->Call("cuModuleUnload", [&] { return driver.ModuleUnload(handle_); });
}

Result<void*> Module::Function(const char* name) const {
  void* function = nullptr;
  const Driver& driver = device_->driver();
  SOK_RETURN_IF_ERROR(device_->Call(
      "cuModuleGetFunction", [&] { return driver.ModuleGetFunction(&function, handle_, name); }));
  return function;
}

Buffer::~Buffer() {
  if (address_ == 0) return;
  const Driver& driver = device_->driver();
  (void)device_->Call("cuMemFree", [&] { return driver.MemFree(address_); });
}

Status Buffer::Reserve(const std::shared_ptr<Device>& device, size_t bytes) {
  if (bytes <= bytes_) return Status();
  const Driver& driver = device->driver();
  // A little more than needed, so that a slightly larger batch fits too.
  const size_t wanted = bytes_ == 0 ? bytes : bytes + bytes / 8;
  DeviceAddress address = 0;
  const Status made = device->Call("cuMemAlloc", [&] { return driver.MemAlloc(&address, wanted); });
  if (made.code() == Code::kResourceExhausted) {
    return made.Within("", " for " + std::to_string(wanted) +
                               " bytes. Leave more of the GPU's memory to tables, or limit their "
                               "rows.");
  }
  SOK_RETURN_IF_ERROR(made);
  if (address_ != 0) {
    (void)device->Call("cuMemFree", [&] { return driver.MemFree(address_); });
  }
  device_ = device;
  address_ = address;
  bytes_ = wanted;
  return Status();
}

Result<GrowingMemory> GrowingMemory::Make(std::shared_ptr<Device> device, size_t most) {
  const Driver& driver = device->driver();
  MemoryProperties properties;
  properties.location.id = device->ordinal();
  size_t granularity = 0;
  SOK_RETURN_IF_ERROR(device->Call("cuMemGetAllocationGranularity", [&] {
    return driver.MemGetAllocationGranularity(&granularity, &properties, /*minimum=*/0);
  }));
  most = (most + granularity - 1) / granularity * granularity;
  GrowingMemory memory(std::move(device), granularity, most);
  SOK_RETURN_IF_ERROR(memory.device_->Call("cuMemAddressReserve", [&] {
    return driver.MemAddressReserve(&memory.address_, most, 0, 0, 0);
  }));
  return memory;
}

GrowingMemory::GrowingMemory(GrowingMemory&& other) noexcept
    : device_(std::move(other.device_)),
      granularity_(other.granularity_),
      most_(other.most_),
      address_(std::exchange(other.address_, 0)),
      bytes_(std::exchange(other.bytes_, 0)),
      pieces_(std::move(other.pieces_)) {}

GrowingMemory& GrowingMemory::operator=(GrowingMemory&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(granularity_, other.granularity_);
  std::swap(most_, other.most_);
  std::swap(address_, other.address_);
  std::swap(bytes_, other.bytes_);
  std::swap(pieces_, other.pieces_);
  return *this;
}

GrowingMemory::~GrowingMemory() {
  if (address_ == 0) return;
  const Driver& driver = device_->driver();
  // The driver does not wait for kernels that still use the memory.
  (void)device_->Synchronize(nullptr);
  (void)device_->Call("cuMemUnmap", [&] {
    DeviceAddress piece = address_;
    for (const Piece& each : pieces_) {
      driver.MemUnmap(piece, each.bytes);
      driver.MemRelease(each.handle);
      piece += each.bytes;
    }
    return driver.MemAddressFree(address_, most_);
  });
}

Status GrowingMemory::Reserve(size_t bytes) {
  if (bytes <= bytes_) return Status();
  const size_t wanted = (bytes - bytes_ + granularity_ - 1) / granularity_ * granularity_;
  if (bytes > most_) {
    return Status(Code::kResourceExhausted,
                  "Expected at most " + std::to_string(most_) +
                      " bytes in a memory of the GPU. Received: " + std::to_string(bytes) + ".");
  }
  const Driver& driver = device_->driver();
  MemoryProperties properties;
  properties.location.id = device_->ordinal();
  MemoryAccess access;
  access.location.id = device_->ordinal();
  Piece piece{0, wanted};
  Status made = device_->Call(
      "cuMemCreate", [&] { return driver.MemCreate(&piece.handle, piece.bytes, &properties, 0); });
  SOK_RETURN_IF_ERROR(made);
  Status mapped = device_->Call("cuMemMap", [&] {
    return driver.MemMap(address_ + bytes_, piece.bytes, 0, piece.handle, 0);
  });
  if (mapped.ok()) {
    mapped = device_->Call("cuMemSetAccess", [&] {
      return driver.MemSetAccess(address_ + bytes_, piece.bytes, &access, 1);
    });
    if (!mapped.ok()) driver.MemUnmap(address_ + bytes_, piece.bytes);
  }
  if (!mapped.ok()) {
    driver.MemRelease(piece.handle);
    return mapped;
  }
  pieces_.push_back(piece);
  bytes_ += piece.bytes;
  return Status();
}

}  // namespace sok::gpu
