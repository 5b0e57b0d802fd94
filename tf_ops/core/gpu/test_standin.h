// The stand-in for a GPU, for tests.
#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "core/base/test_result.h"
#include "core/gpu/compiler.h"
#include "core/gpu/device.h"
#include "core/gpu/driver.h"

namespace sok::gpu {

// Sets an environment variable for as long as the object lives.
class Environment {
 public:
  Environment(const char* name, const std::string& value) : name_(name) {
    setenv(name, value.c_str(), 1);
  }
  ~Environment() { unsetenv(name_); }

 private:
  const char* name_;
};

// Returns the stand-in, which is the GPU of the process from the first call on.
inline std::shared_ptr<Device> StandIn() {
  static const std::shared_ptr<Device> device = [] {
    const std::string folder = SOK_STANDIN_FOLDER;
    const Environment driver("SOK_CUDA_DRIVER", folder + "/libcuda.so.1");
    const Environment compiler("SOK_NVRTC", folder + "/libnvrtc.so.12");
    Value(Driver::Get());
    Value(Compiler::Get());
    return Value(Device::Open(0));
  }();
  return device;
}

// Returns how many bytes the stand-in has copied to the host.
inline uint64_t BytesToHost() {
  void* const library =
      dlopen((std::string(SOK_STANDIN_FOLDER) + "/libcuda.so.1").c_str(), RTLD_NOW);
  return reinterpret_cast<uint64_t (*)()>(dlsym(library, "SokStandInBytesToHost"))();
}

}  // namespace sok::gpu
