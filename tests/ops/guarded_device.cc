// A device for TensorFlow that has memory and no arithmetic. Its memory lies in the host's, where
// reading or writing it ends the process, as it does with a GPU's: so an op whose kernel takes a
// tensor of the device for one of the host does not pass a test by chance. It counts the bytes that
// it copies out of the host's memory, by whether they were pinned.
//
// GuardedDeviceTouch lets its memory be touched for a while, so that the kernels of the stand-in
// for a GPU can compute there.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "tensorflow/c/experimental/stream_executor/stream_executor.h"

namespace {

constexpr size_t kArena = size_t{1} << 29;

// The device's memory: what TensorFlow is given cannot be touched, and `open` is the same memory.
struct Arena {
  Arena() {
    const int file = memfd_create("guarded_device", 0);
    if (ftruncate(file, kArena) != 0) std::abort();
    const int open_flags = PROT_READ | PROT_WRITE;
    given = static_cast<char*>(mmap(nullptr, kArena, PROT_NONE, MAP_SHARED, file, 0));
    open = static_cast<char*>(mmap(nullptr, kArena, open_flags, MAP_SHARED, file, 0));
    if (given == MAP_FAILED || open == MAP_FAILED) std::abort();
  }
  char* Open(const void* at) const { return open + (static_cast<const char*>(at) - given); }

  char *given, *open;
  size_t used = 0;
};

std::mutex mu;
Arena& TheArena() {
  static Arena* arena = new Arena;
  return *arena;
}
int touching = 0;                        // how many may touch the memory now
std::map<const char*, uint64_t> pinned;  // from the first byte of each piece to its size
int64_t copied[2] = {0, 0};              // bytes that came from pageable and from pinned memory

void CountCopy(const void* from, uint64_t size) {
  std::lock_guard<std::mutex> guard(mu);
  const auto* at = static_cast<const char*>(from);
  auto after = pinned.upper_bound(at);
  const bool is_pinned =
      after != pinned.begin() && at < std::prev(after)->first + std::prev(after)->second;
  copied[is_pinned] += static_cast<int64_t>(size);
}

void Allocate(const SP_Device*, uint64_t size, int64_t, SP_DeviceMemoryBase* memory) {
  std::lock_guard<std::mutex> guard(mu);
  const uint64_t rounded = (size + 4095) / 4096 * 4096;
  memory->struct_size = SP_DEVICE_MEMORY_BASE_STRUCT_SIZE;
  memory->opaque = nullptr;
  memory->size = 0;
  if (TheArena().used + rounded > kArena) return;
  memory->opaque = TheArena().given + TheArena().used;
  memory->size = size;
  TheArena().used += rounded;
}
void Deallocate(const SP_Device*, SP_DeviceMemoryBase*) {}

void* AllocateHost(const SP_Device*, uint64_t size) {
  void* memory = std::aligned_alloc(4096, (size + 4095) / 4096 * 4096);
  std::lock_guard<std::mutex> guard(mu);
  pinned[static_cast<char*>(memory)] = size;
  return memory;
}
void DeallocateHost(const SP_Device*, void* memory) {
  {
    std::lock_guard<std::mutex> guard(mu);
    pinned.erase(static_cast<char*>(memory));
  }
  std::free(memory);
}

TF_Bool Stats(const SP_Device*, SP_AllocatorStats*) { return false; }
TF_Bool Usage(const SP_Device*, int64_t* free, int64_t* total) {
  *free = *total = kArena;
  return true;
}

// Everything is done when it is asked for, so streams, events and timers have nothing to hold.
template <typename Handle>
void Make(const SP_Device*, Handle* handle, TF_Status*) {
  *handle = reinterpret_cast<Handle>(new char);
}
template <typename Handle>
void Drop(const SP_Device*, Handle handle) {
  delete reinterpret_cast<char*>(handle);
}

void ToHost(void* to, const SP_DeviceMemoryBase* from, uint64_t size) {
  std::memcpy(to, TheArena().Open(from->opaque), size);
}
void ToDevice(SP_DeviceMemoryBase* to, const void* from, uint64_t size) {
  CountCopy(from, size);
  std::memcpy(TheArena().Open(to->opaque), from, size);
}
void Within(SP_DeviceMemoryBase* to, const SP_DeviceMemoryBase* from, uint64_t size) {
  std::memmove(TheArena().Open(to->opaque), TheArena().Open(from->opaque), size);
}

void MakeStreamExecutor(const SP_Platform*, SE_CreateStreamExecutorParams* params, TF_Status*) {
  SP_StreamExecutor& executor = *params->stream_executor;
  executor.struct_size = SP_STREAMEXECUTOR_STRUCT_SIZE;
  executor.allocate = Allocate;
  executor.deallocate = Deallocate;
  executor.host_memory_allocate = AllocateHost;
  executor.host_memory_deallocate = DeallocateHost;
  executor.get_allocator_stats = Stats;
  executor.device_memory_usage = Usage;
  executor.create_stream = Make<SP_Stream>;
  executor.destroy_stream = Drop<SP_Stream>;
  executor.create_stream_dependency = [](const SP_Device*, SP_Stream, SP_Stream, TF_Status*) {};
  executor.get_stream_status = [](const SP_Device*, SP_Stream, TF_Status*) {};
  executor.create_event = Make<SP_Event>;
  executor.destroy_event = Drop<SP_Event>;
  executor.get_event_status = [](const SP_Device*, SP_Event) { return SE_EVENT_COMPLETE; };
  executor.record_event = [](const SP_Device*, SP_Stream, SP_Event, TF_Status*) {};
  executor.wait_for_event = [](const SP_Device* const, SP_Stream, SP_Event, TF_Status* const) {};
  executor.create_timer = Make<SP_Timer>;
  executor.destroy_timer = Drop<SP_Timer>;
  executor.start_timer = [](const SP_Device*, SP_Stream, SP_Timer, TF_Status*) {};
  executor.stop_timer = [](const SP_Device*, SP_Stream, SP_Timer, TF_Status*) {};
  executor.memcpy_dtoh = [](const SP_Device*, SP_Stream, void* to, const SP_DeviceMemoryBase* from,
                            uint64_t size, TF_Status*) { ToHost(to, from, size); };
  executor.memcpy_htod = [](const SP_Device*, SP_Stream, SP_DeviceMemoryBase* to, const void* from,
                            uint64_t size, TF_Status*) { ToDevice(to, from, size); };
  executor.memcpy_dtod = [](const SP_Device*, SP_Stream, SP_DeviceMemoryBase* to,
                            const SP_DeviceMemoryBase* from, uint64_t size,
                            TF_Status*) { Within(to, from, size); };
  executor.sync_memcpy_dtoh = [](const SP_Device*, void* to, const SP_DeviceMemoryBase* from,
                                 uint64_t size, TF_Status*) { ToHost(to, from, size); };
  executor.sync_memcpy_htod = [](const SP_Device*, SP_DeviceMemoryBase* to, const void* from,
                                 uint64_t size, TF_Status*) { ToDevice(to, from, size); };
  executor.sync_memcpy_dtod = [](const SP_Device*, SP_DeviceMemoryBase* to,
                                 const SP_DeviceMemoryBase* from, uint64_t size,
                                 TF_Status*) { Within(to, from, size); };
  executor.block_host_for_event = [](const SP_Device*, SP_Event, TF_Status*) {};
  executor.block_host_until_done = [](const SP_Device*, SP_Stream, TF_Status*) {};
  executor.synchronize_all_activity = [](const SP_Device*, TF_Status*) {};
  executor.mem_zero = [](const SP_Device*, SP_Stream, SP_DeviceMemoryBase* to, uint64_t size,
                         TF_Status*) { std::memset(TheArena().Open(to->opaque), 0, size); };
  executor.memset = [](const SP_Device*, SP_Stream, SP_DeviceMemoryBase* to, uint8_t byte,
                       uint64_t size,
                       TF_Status*) { std::memset(TheArena().Open(to->opaque), byte, size); };
  executor.memset32 = [](const SP_Device*, SP_Stream, SP_DeviceMemoryBase* to, uint32_t word,
                         uint64_t size, TF_Status*) {
    auto* words = reinterpret_cast<uint32_t*>(TheArena().Open(to->opaque));
    std::fill_n(words, size / sizeof(word), word);
  };
  executor.host_callback = [](const SP_Device*, SP_Stream, SE_StatusCallbackFn callback,
                              void* argument) -> TF_Bool {
    TF_Status* status = TF_NewStatus();
    callback(argument, status);
    const bool good = TF_GetCode(status) == TF_OK;
    TF_DeleteStatus(status);
    return good;
  };
}

}  // namespace

extern "C" {

// Returns how many bytes were copied to the device from pinned (1) or pageable (0) memory.
int64_t GuardedDeviceCopied(int from_pinned) {
  std::lock_guard<std::mutex> guard(mu);
  return copied[from_pinned];
}

// Begins (1) or ends (0) a time in which the memory may be touched.
void GuardedDeviceTouch(int begins) {
  std::lock_guard<std::mutex> guard(mu);
  touching += begins != 0 ? 1 : -1;
  if (touching > 1 || (touching == 1 && begins == 0)) return;
  const int access = touching == 1 ? PROT_READ | PROT_WRITE : PROT_NONE;
  if (mprotect(TheArena().given, kArena, access) != 0) std::abort();
}

void TF_InitKernel() {}

void SE_InitPlugin(SE_PlatformRegistrationParams* params, TF_Status*) {
  const char* type = std::getenv("SOK_GUARDED_DEVICE_TYPE");
  params->major_version = SE_MAJOR;
  params->minor_version = SE_MINOR;
  params->patch_version = SE_PATCH;
  params->platform->struct_size = SP_PLATFORM_STRUCT_SIZE;
  params->platform->name = "GUARDED_MEMORY";
  params->platform->type = type != nullptr ? type : "GUARDED";
  params->platform->use_bfc_allocator = true;
  params->platform->force_memory_growth = true;
  params->destroy_platform = [](SP_Platform*) {};
  params->destroy_platform_fns = [](SP_PlatformFns*) {};
  SP_PlatformFns& fns = *params->platform_fns;
  fns.struct_size = SP_PLATFORM_FNS_STRUCT_SIZE;
  fns.get_device_count = [](const SP_Platform*, int* count, TF_Status*) { *count = 1; };
  fns.create_device = [](const SP_Platform*, SE_CreateDeviceParams* made, TF_Status*) {
    made->device->struct_size = SP_DEVICE_STRUCT_SIZE;
    made->device->ordinal = made->ordinal;
    made->device->hardware_name = "guarded device";
    made->device->device_vendor = "tests";
    made->device->pci_bus_id = "0000:00:00.0";
  };
  fns.destroy_device = [](const SP_Platform*, SP_Device*) {};
  fns.create_device_fns = [](const SP_Platform*, SE_CreateDeviceFnsParams* made, TF_Status*) {
    made->device_fns->struct_size = SP_DEVICE_FNS_STRUCT_SIZE;
    made->device_fns->get_numa_node = [](const SP_Device*) -> int32_t { return 0; };
    made->device_fns->get_memory_bandwidth = [](const SP_Device*) -> int64_t { return -1; };
    made->device_fns->get_gflops = [](const SP_Device*) -> double { return -1; };
  };
  fns.destroy_device_fns = [](const SP_Platform*, SP_DeviceFns*) {};
  fns.create_stream_executor = MakeStreamExecutor;
  fns.destroy_stream_executor = [](const SP_Platform*, SP_StreamExecutor*) {};
  fns.create_timer_fns = [](const SP_Platform*, SP_TimerFns* made, TF_Status*) {
    made->struct_size = SP_TIMER_FNS_STRUCT_SIZE;
    made->nanoseconds = [](SP_Timer) -> uint64_t { return 0; };
  };
  fns.destroy_timer_fns = [](const SP_Platform*, SP_TimerFns*) {};
}

}  // extern "C"
