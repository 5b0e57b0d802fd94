// Stands for libcuda in tests: a GPU of compute capability 9.0 whose memory is the host's, and
// whose kernels are those of libstandin_kernels_*.so, in this library's folder. Everything is done
// when a call returns; the blocks of a kernel run on several threads.
//
// SOK_STANDIN_BYTES is the size of its memory, 4 GiB if it is not set. SOK_STANDIN_FAILS is the
// name of a function and a number, "cuMemCreate 3": the call of that number, counted from 1, fails.
// SOK_STANDIN_GPUS is the number of GPUs, 1 if it is not set. All share one memory, and every
// stream but the default one is of GPU 0.
//
// SokStandInBytesToHost returns how many bytes were copied from the GPU to the host so far.
// SokStandInTouches takes a function that is called around each access to the GPU's memory, with 1
// before and with 0 after it. It is for a TensorFlow device whose memory nobody else may access.
#include <dlfcn.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int kSuccess = 0;
constexpr int kInvalidValue = 1;
constexpr int kOutOfMemory = 2;
constexpr int kInvalidImage = 200;
constexpr int kInvalidHandle = 400;
constexpr int kNotFound = 500;
constexpr int kLaunchFailed = 719;

constexpr size_t kGranularity = size_t{1} << 21;
constexpr unsigned kThreads = 3;

std::mutex mu;
size_t used_bytes = 0;
std::map<uint64_t, size_t> allocated;          // bytes by address
std::map<unsigned long long, size_t> handles;  // bytes of memory that was created
unsigned long long next_handle = 1;
std::map<std::string, int> calls;

// The contexts of GPUs, and the contexts that each thread has pushed.
char contexts[64];
thread_local std::vector<void*> entered;

std::atomic<uint64_t> bytes_to_host{0};
std::atomic<void (*)(int)> touches{nullptr};

// Calls the function of SokStandInTouches around an access to the GPU's memory.
class Touching {
 public:
  Touching() : touches_(touches) {
    if (touches_ != nullptr) touches_(1);
  }
  ~Touching() {
    if (touches_ != nullptr) touches_(0);
  }

 private:
  void (*touches_)(int);
};

size_t TotalBytes() {
  const char* const given = std::getenv("SOK_STANDIN_BYTES");
  return given == nullptr ? size_t{4} << 30 : std::strtoull(given, nullptr, 10);
}

// Returns whether this call of a function is the call that must fail.
bool Fails(const char* name) {
  const char* const given = std::getenv("SOK_STANDIN_FAILS");
  if (given == nullptr) return false;
  const std::lock_guard<std::mutex> lock(mu);
  static std::string counted;  // the value of SOK_STANDIN_FAILS that calls are counted for
  if (counted != given) calls.clear();
  counted = given;
  return std::string(given) == name + (" " + std::to_string(++calls[name]));
}

int Take(size_t bytes) {
  if (used_bytes + bytes > TotalBytes()) return kOutOfMemory;
  used_bytes += bytes;
  return kSuccess;
}

// The kernels of one dim.
struct Kernels {
  void* (*find)(const char* name);
  void (*run)(void* function, const void* argument, unsigned index, unsigned count);
};

const Kernels* LoadKernels(const std::string& dim) {
  static std::map<std::string, Kernels> loaded;
  static std::mutex loading;
  const std::lock_guard<std::mutex> lock(loading);
  const auto found = loaded.find(dim);
  if (found != loaded.end()) return &found->second;
  Dl_info info;
  dladdr(reinterpret_cast<void*>(&LoadKernels), &info);
  const std::string path(info.dli_fname);
  const std::string folder = path.substr(0, path.rfind('/') + 1);
  void* const library =
      dlopen((folder + "libstandin_kernels_" + dim + ".so").c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return nullptr;
  Kernels kernels;
  *reinterpret_cast<void**>(&kernels.find) = dlsym(library, "SokFindKernel");
  *reinterpret_cast<void**>(&kernels.run) = dlsym(library, "SokRunBlock");
  return &(loaded[dim] = kernels);
}

struct Module {
  const Kernels* kernels;
  std::string rule;
};

struct Function {
  const Kernels* kernels;
  void* function;
};

// Returns the text after a word in an image, up to the end of the line.
std::string After(const std::string& image, const std::string& word) {
  const size_t at = image.find(word);
  if (at == std::string::npos) return "";
  const size_t begin = at + word.size();
  return image.substr(begin, image.find('\n', begin) - begin);
}

}  // namespace

extern "C" uint64_t SokStandInBytesToHost() { return bytes_to_host; }
extern "C" void SokStandInTouches(void (*function)(int)) { touches = function; }

#define SOK_CALL(name, ...)          \
  extern "C" int name(__VA_ARGS__) { \
    if (Fails(#name)) return FailureOf(#name);

namespace {
int FailureOf(const std::string& name) {
  const bool takes_memory = name.find("MemAlloc") != std::string::npos || name == "cuMemCreate";
  return takes_memory ? kOutOfMemory : kLaunchFailed;
}
}  // namespace

SOK_CALL(cuInit, unsigned /*flags*/)
return kSuccess;
}
extern "C" int cuGetErrorName(int result, const char** name) {
  *name = result == kOutOfMemory     ? "CUDA_ERROR_OUT_OF_MEMORY"
          : result == kInvalidImage  ? "CUDA_ERROR_INVALID_IMAGE"
          : result == kInvalidHandle ? "CUDA_ERROR_INVALID_HANDLE"
          : result == kNotFound      ? "CUDA_ERROR_NOT_FOUND"
          : result == kLaunchFailed  ? "CUDA_ERROR_LAUNCH_FAILED"
                                     : "CUDA_ERROR_INVALID_VALUE";
  return kSuccess;
}
extern "C" int cuGetErrorString(int /*result*/, const char** text) {
  *text = "the stand-in for a GPU says so";
  return kSuccess;
}
SOK_CALL(cuDeviceGetCount, int* count)
const char* const given = std::getenv("SOK_STANDIN_GPUS");
*count = given == nullptr ? 1 : std::atoi(given);
return kSuccess;
}
SOK_CALL(cuDeviceGet, int* device, int ordinal)
*device = ordinal;
return kSuccess;
}
SOK_CALL(cuDeviceGetName, char* name, int size, int /*device*/)
std::strncpy(name, "stand-in for a GPU", size);
return kSuccess;
}
SOK_CALL(cuDeviceGetAttribute, int* value, int attribute, int /*device*/)
*value = attribute == 75 ? 9 : attribute == 76 ? 0 : 1;
return kSuccess;
}
SOK_CALL(cuDevicePrimaryCtxRetain, void** context, int device)
*context = &contexts[device];
return kSuccess;
}
SOK_CALL(cuDevicePrimaryCtxRelease_v2, int /*device*/)
return kSuccess;
}
SOK_CALL(cuCtxPushCurrent_v2, void* context)
entered.push_back(context);
return kSuccess;
}
SOK_CALL(cuCtxPopCurrent_v2, void** context)
*context = entered.back();
entered.pop_back();
return kSuccess;
}
SOK_CALL(cuMemGetInfo_v2, size_t* free, size_t* total)
const std::lock_guard<std::mutex> lock(mu);
*total = TotalBytes();
*free = *total - used_bytes;
return kSuccess;
}
SOK_CALL(cuMemAlloc_v2, uint64_t* address, size_t bytes)
const std::lock_guard<std::mutex> lock(mu);
if (Take(bytes) != kSuccess) return kOutOfMemory;
const size_t rounded = (bytes + 511) / 512 * 512;
void* const memory = std::aligned_alloc(512, rounded);
std::memset(memory, 0xa5, rounded);  // so that code which relies on zeros fails
*address = reinterpret_cast<uint64_t>(memory);
allocated[*address] = bytes;
return kSuccess;
}
SOK_CALL(cuMemFree_v2, uint64_t address)
const std::lock_guard<std::mutex> lock(mu);
const auto found = allocated.find(address);
if (found == allocated.end()) return kInvalidValue;
used_bytes -= found->second;
allocated.erase(found);
std::free(reinterpret_cast<void*>(address));
return kSuccess;
}
SOK_CALL(cuMemAllocHost_v2, void** memory, size_t bytes)
*memory = std::calloc(1, bytes);
return kSuccess;
}
SOK_CALL(cuMemFreeHost, void* memory)
std::free(memory);
return kSuccess;
}
SOK_CALL(cuMemcpyHtoDAsync_v2, uint64_t to, const void* from, size_t bytes, void* /*stream*/)
const Touching touching;
std::memcpy(reinterpret_cast<void*>(to), from, bytes);
return kSuccess;
}
SOK_CALL(cuMemcpyDtoHAsync_v2, void* to, uint64_t from, size_t bytes, void* /*stream*/)
bytes_to_host += bytes;
const Touching touching;
std::memcpy(to, reinterpret_cast<void*>(from), bytes);
return kSuccess;
}
SOK_CALL(cuMemcpyDtoDAsync_v2, uint64_t to, uint64_t from, size_t bytes, void* /*stream*/)
const Touching touching;
std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes);
return kSuccess;
}
SOK_CALL(cuMemsetD8Async, uint64_t to, unsigned char value, size_t bytes, void* /*stream*/)
const Touching touching;
std::memset(reinterpret_cast<void*>(to), value, bytes);
return kSuccess;
}
SOK_CALL(cuMemGetAllocationGranularity, size_t* bytes, const void* /*properties*/, int /*option*/)
*bytes = kGranularity;
return kSuccess;
}
SOK_CALL(cuMemAddressReserve, uint64_t* address, size_t bytes, size_t /*alignment*/,
         uint64_t /*hint*/, unsigned long long /*flags*/)
void* const memory =
    mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
*address = reinterpret_cast<uint64_t>(memory);
return memory == MAP_FAILED ? kOutOfMemory : kSuccess;
}
SOK_CALL(cuMemAddressFree, uint64_t address, size_t bytes)
munmap(reinterpret_cast<void*>(address), bytes);
return kSuccess;
}
SOK_CALL(cuMemCreate, unsigned long long* handle, size_t bytes, const void* /*properties*/,
         unsigned long long /*flags*/)
const std::lock_guard<std::mutex> lock(mu);
if (bytes % kGranularity != 0) return kInvalidValue;
if (Take(bytes) != kSuccess) return kOutOfMemory;
*handle = next_handle++;
handles[*handle] = bytes;
return kSuccess;
}
SOK_CALL(cuMemRelease, unsigned long long handle)
const std::lock_guard<std::mutex> lock(mu);
used_bytes -= handles.at(handle);
handles.erase(handle);
return kSuccess;
}
SOK_CALL(cuMemMap, uint64_t /*address*/, size_t /*bytes*/, size_t /*offset*/,
         unsigned long long /*handle*/, unsigned long long /*flags*/)
return kSuccess;
}
SOK_CALL(cuMemUnmap, uint64_t address, size_t bytes)
void* const memory = reinterpret_cast<void*>(address);
mmap(memory, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
return kSuccess;
}
SOK_CALL(cuMemSetAccess, uint64_t address, size_t bytes, const void* /*access*/, size_t /*count*/)
void* const memory = reinterpret_cast<void*>(address);
if (mprotect(memory, bytes, PROT_READ | PROT_WRITE) != 0) return kInvalidValue;
std::memset(memory, 0xa5, bytes);
return kSuccess;
}
SOK_CALL(cuModuleLoadData, void** module, const void* image)
const std::string text(static_cast<const char*>(image));
if (text.rfind("stand-in", 0) != 0) return kInvalidImage;
const std::string dim = After(text, "-DSOK_DIM=");
const Kernels* kernels = LoadKernels(dim.empty() ? "0" : dim);
if (kernels == nullptr) kernels = LoadKernels("0");
if (kernels == nullptr) return kNotFound;
*module = new Module{kernels, After(text, "-DSOK_RULE=")};
return kSuccess;
}
SOK_CALL(cuModuleUnload, void* module)
delete static_cast<Module*>(module);
return kSuccess;
}
SOK_CALL(cuModuleGetFunction, void** function, void* module, const char* name)
const Module& of = *static_cast<Module*>(module);
std::string known = name;
if (!of.rule.empty()) known += " " + of.rule;
void* const found = of.kernels->find(known.c_str());
if (found == nullptr) return kNotFound;
static std::mutex keeping;
static std::vector<Function*>& kept = *new std::vector<Function*>();
const std::lock_guard<std::mutex> lock(keeping);
kept.push_back(new Function{of.kernels, found});
*function = kept.back();
return kSuccess;
}
SOK_CALL(cuLaunchKernel, void* function, unsigned grid, unsigned, unsigned, unsigned block,
         unsigned, unsigned, unsigned /*shared*/, void* stream, void** arguments, void** /*extra*/)
if (grid == 0 || block != 256) return kInvalidValue;
if (stream != nullptr && entered.back() != &contexts[0]) return kInvalidHandle;
const Function& of = *static_cast<Function*>(function);
const Touching touching;
std::atomic<unsigned> next{0};
const auto work = [&] {
  for (unsigned i = next++; i < grid; i = next++) {
    of.kernels->run(of.function, arguments[0], i, grid);
  }
};
std::vector<std::thread> threads;
for (unsigned i = 1; i < kThreads && i < grid; ++i) threads.emplace_back(work);
work();
for (std::thread& thread : threads) thread.join();
return kSuccess;
}
SOK_CALL(cuStreamSynchronize, void* /*stream*/)
return kSuccess;
}
SOK_CALL(cuStreamGetCtx, void* stream, void** context)
*context = stream == nullptr ? entered.back() : &contexts[0];
return kSuccess;
}
SOK_CALL(cuStreamWaitEvent, void* /*stream*/, void* /*event*/, unsigned /*flags*/)
return kSuccess;
}
SOK_CALL(cuEventCreate, void** event, unsigned /*flags*/)
static int made;
*event = &made;
return kSuccess;
}
SOK_CALL(cuEventSynchronize, void* /*event*/)
return kSuccess;
}
SOK_CALL(cuEventRecord, void* /*event*/, void* /*stream*/)
return kSuccess;
}
SOK_CALL(cuEventDestroy_v2, void* /*event*/)
return kSuccess;
}
