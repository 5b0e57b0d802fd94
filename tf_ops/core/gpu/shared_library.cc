#include "core/gpu/shared_library.h"

#include <dlfcn.h>

namespace sok::gpu {

Result<SharedLibrary> SharedLibrary::Open(const std::vector<std::string>& names,
                                          const std::string& advice) {
  std::string reasons;
  for (const std::string& name : names) {
    void* const handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr) return SharedLibrary(name, handle);
    const char* const reason = dlerror();
    reasons += std::string(reasons.empty() ? "" : "; ") + (reason == nullptr ? name : reason);
  }
  return Status(Code::kUnavailable, reasons + ". " + advice);
}

Status SharedLibrary::FindAddress(const char* symbol, void** address) const {
  *address = dlsym(handle_, symbol);
  if (*address != nullptr) return Status();
  return Status(Code::kUnavailable,
                "Expected " + name_ + " to have the function " + symbol +
                    ". It does not: it is older than CUDA 12. Install a newer one.");
}

}  // namespace sok::gpu
