// The functions of NVIDIA's driver that tables need. The library is opened when it is first needed,
// and there is no CUDA header: one build serves machines with and without a GPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/status.h"

namespace sok::gpu {

// An address in the memory of a GPU: a CUdeviceptr.
using DeviceAddress = uint64_t;
// A CUstream. Null is the default stream.
using Stream = void*;

// The end of messages about something that a table on a GPU lacks.
inline constexpr char kOrTheHost[] =
    "or use device=\"cpu\", which the variable SOK_DEVICE=cpu has saved models use too.";

// The place of memory, and who may use it: structures of the driver, with the layout of cuda.h.
struct MemoryLocation {
  int type = 1;  // a device
  int id = 0;
};
struct MemoryProperties {
  int type = 1;  // pinned
  int handle_types = 0;
  MemoryLocation location;
  void* windows_handle = nullptr;
  unsigned char flags[8] = {};
};
struct MemoryAccess {
  MemoryLocation location;
  int flags = 3;  // reads and writes
};

// libcuda. The members are its functions, by their names without "cu" and without a version; each
// returns a CUresult, which is 0 for success. Thread-safe.
struct Driver {
  // Opens libcuda.so.1, or the library that the environment variable SOK_CUDA_DRIVER names, once
  // per process. Errors: kUnavailable if it is not found, lacks a function or does not start; the
  // message says what is missing.
  static Result<const Driver*> Get();

  // Returns success for 0. Errors name the call, the driver's name of the result and its text:
  // kResourceExhausted if there is not enough memory, kInternal otherwise.
  Status Check(int result, const char* call) const;

  int (*Init)(unsigned flags);
  int (*GetErrorName)(int result, const char** name);
  int (*GetErrorString)(int result, const char** text);
  int (*DeviceGetCount)(int* count);
  int (*DeviceGet)(int* device, int ordinal);
  int (*DeviceGetName)(char* name, int size, int device);
  int (*DeviceGetAttribute)(int* value, int attribute, int device);
  int (*DevicePrimaryCtxRetain)(void** context, int device);
  int (*DevicePrimaryCtxRelease)(int device);
  int (*CtxPushCurrent)(void* context);
  int (*CtxPopCurrent)(void** context);
  int (*MemGetInfo)(size_t* free, size_t* total);
  int (*MemAlloc)(DeviceAddress* address, size_t bytes);
  int (*MemFree)(DeviceAddress address);
  int (*MemAllocHost)(void** memory, size_t bytes);
  int (*MemFreeHost)(void* memory);
  int (*MemcpyHtoDAsync)(DeviceAddress to, const void* from, size_t bytes, Stream stream);
  int (*MemcpyDtoHAsync)(void* to, DeviceAddress from, size_t bytes, Stream stream);
  int (*MemcpyDtoDAsync)(DeviceAddress to, DeviceAddress from, size_t bytes, Stream stream);
  int (*MemsetD8Async)(DeviceAddress to, unsigned char value, size_t bytes, Stream stream);
  int (*MemGetAllocationGranularity)(size_t* bytes, const MemoryProperties* properties, int option);
  int (*MemAddressReserve)(DeviceAddress* address, size_t bytes, size_t alignment,
                           DeviceAddress hint, unsigned long long flags);
  int (*MemAddressFree)(DeviceAddress address, size_t bytes);
  int (*MemCreate)(unsigned long long* handle, size_t bytes, const MemoryProperties* properties,
                   unsigned long long flags);
  int (*MemRelease)(unsigned long long handle);
  int (*MemMap)(DeviceAddress address, size_t bytes, size_t offset, unsigned long long handle,
                unsigned long long flags);
  int (*MemUnmap)(DeviceAddress address, size_t bytes);
  int (*MemSetAccess)(DeviceAddress address, size_t bytes, const MemoryAccess* access,
                      size_t count);
  int (*ModuleLoadData)(void** module, const void* image);
  int (*ModuleUnload)(void* module);
  int (*ModuleGetFunction)(void** function, void* module, const char* name);
  int (*LaunchKernel)(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                      unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                      Stream stream, void** arguments, void** extra);
  int (*StreamSynchronize)(Stream stream);
  int (*StreamGetCtx)(Stream stream, void** context);
  int (*StreamWaitEvent)(Stream stream, void* event, unsigned flags);
  int (*EventCreate)(void** event, unsigned flags);
  int (*EventSynchronize)(void* event);
  int (*EventRecord)(void* event, Stream stream);
  int (*EventDestroy)(void* event);
};

}  // namespace sok::gpu
