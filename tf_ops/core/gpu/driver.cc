#include "core/gpu/driver.h"

#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>

#include "core/base/status_macros.h"
#include "core/gpu/shared_library.h"

namespace sok::gpu {
namespace {

constexpr int kOutOfMemory = 2;  // CUDA_ERROR_OUT_OF_MEMORY

std::string Advice() {
  return std::string(
             "A table on a GPU needs NVIDIA's driver, which brings libcuda.so.1. Install the "
             "driver, ") +
         kOrTheHost;
}

Status Load(Driver* driver) {
  const char* const given = std::getenv("SOK_CUDA_DRIVER");
  SOK_ASSIGN_OR_RETURN(const auto library,
                       SharedLibrary::Open({given == nullptr ? "libcuda.so.1" : given}, Advice()));
  // A number behind a name is the version of its arguments.
#define SOK_FIND(name, version) SOK_RETURN_IF_ERROR(library.Find("cu" #name version, &driver->name))
  SOK_FIND(Init, "");
  SOK_FIND(GetErrorName, "");
  SOK_FIND(GetErrorString, "");
  SOK_FIND(DeviceGetCount, "");
  SOK_FIND(DeviceGet, "");
  SOK_FIND(DeviceGetName, "");
  SOK_FIND(DeviceGetAttribute, "");
  SOK_FIND(DevicePrimaryCtxRetain, "");
  SOK_FIND(DevicePrimaryCtxRelease, "_v2");
  SOK_FIND(CtxPushCurrent, "_v2");
  SOK_FIND(CtxPopCurrent, "_v2");
  SOK_FIND(MemGetInfo, "_v2");
  SOK_FIND(MemAlloc, "_v2");
  SOK_FIND(MemFree, "_v2");
  SOK_FIND(MemAllocHost, "_v2");
  SOK_FIND(MemFreeHost, "");
  SOK_FIND(MemcpyHtoDAsync, "_v2");
  SOK_FIND(MemcpyDtoHAsync, "_v2");
  SOK_FIND(MemcpyDtoDAsync, "_v2");
  SOK_FIND(MemsetD8Async, "");
  SOK_FIND(MemGetAllocationGranularity, "");
  SOK_FIND(MemAddressReserve, "");
  SOK_FIND(MemAddressFree, "");
  SOK_FIND(MemCreate, "");
  SOK_FIND(MemRelease, "");
  SOK_FIND(MemMap, "");
  SOK_FIND(MemUnmap, "");
  SOK_FIND(MemSetAccess, "");
  SOK_FIND(ModuleLoadData, "");
  SOK_FIND(ModuleUnload, "");
  SOK_FIND(ModuleGetFunction, "");
  SOK_FIND(LaunchKernel, "");
  SOK_FIND(StreamSynchronize, "");
  SOK_FIND(StreamGetCtx, "");
  SOK_FIND(StreamWaitEvent, "");
  SOK_FIND(EventCreate, "");
  SOK_FIND(EventSynchronize, "");
  SOK_FIND(EventRecord, "");
  SOK_FIND(EventDestroy, "_v2");
#undef SOK_FIND
  const Status started = driver->Check(driver->Init(0), "cuInit");
  return started.ok() ? started : Status(Code::kUnavailable, started.message() + " " + Advice());
}

}  // namespace

Result<const Driver*> Driver::Get() {
  // Only success is kept: if the driver was not found, the next call tries again.
  static std::mutex mu;
  static std::unique_ptr<Driver> loaded;
  const std::lock_guard<std::mutex> lock(mu);
  if (loaded == nullptr) {
    auto driver = std::make_unique<Driver>();
    SOK_RETURN_IF_ERROR(Load(driver.get()));
    loaded = std::move(driver);
  }
  return static_cast<const Driver*>(loaded.get());
}

Status Driver::Check(int result, const char* call) const {
  if (result == 0) return Status();
  const char* name = nullptr;
  const char* text = nullptr;
  GetErrorName(result, &name);
  GetErrorString(result, &text);
  std::string message = std::string(call) + " failed: " +
                        (name == nullptr ? std::to_string(result) : std::string(name));
  if (text != nullptr) message += std::string(" (") + text + ")";
  return Status(result == kOutOfMemory ? Code::kResourceExhausted : Code::kInternal, message + ".");
}

}  // namespace sok::gpu
