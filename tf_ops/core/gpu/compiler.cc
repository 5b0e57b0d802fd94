#include "core/gpu/compiler.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <mutex>

#include "core/base/status_macros.h"
#include "core/gpu/driver.h"
#include "core/gpu/shared_library.h"

namespace sok::gpu {
namespace {

std::string Advice() {
  return std::string(
             "A table on a GPU needs NVRTC, which compiles its kernels for the GPU at hand. "
             "Install it with pip install nvidia-cuda-nvrtc-cu12, set SOK_NVRTC to the path of "
             "libnvrtc.so.12 or of a newer one, ") +
         kOrTheHost;
}

}  // namespace

Result<const Compiler*> Compiler::Get() {
  static std::mutex mu;
  static std::unique_ptr<Compiler> loaded;
  const std::lock_guard<std::mutex> lock(mu);
  if (loaded == nullptr) {
    std::vector<std::string> libraries{"libnvrtc.so.13", "libnvrtc.so.12"};
    if (const char* const given = std::getenv("SOK_NVRTC"); given != nullptr) libraries = {given};
    SOK_ASSIGN_OR_RETURN(loaded, Open(libraries));
  }
  return static_cast<const Compiler*>(loaded.get());
}

Result<std::unique_ptr<Compiler>> Compiler::Open(const std::vector<std::string>& libraries) {
  SOK_ASSIGN_OR_RETURN(const auto library, SharedLibrary::Open(libraries, Advice()));
  std::unique_ptr<Compiler> opened(new Compiler());
  Compiler& c = *opened;
#define SOK_FIND(name) SOK_RETURN_IF_ERROR(library.Find("nvrtc" #name, &c.name))
  SOK_FIND(GetErrorString);
  SOK_FIND(Version);
  SOK_FIND(GetNumSupportedArchs);
  SOK_FIND(GetSupportedArchs);
  SOK_FIND(CreateProgram);
  SOK_FIND(DestroyProgram);
  SOK_FIND(CompileProgram);
  SOK_FIND(GetCUBINSize);
  SOK_FIND(GetCUBIN);
  SOK_FIND(GetPTXSize);
  SOK_FIND(GetPTX);
  SOK_FIND(GetProgramLogSize);
  SOK_FIND(GetProgramLog);
#undef SOK_FIND
  int major = 0, minor = 0, count = 0;
  SOK_RETURN_IF_ERROR(c.Check(c.Version(&major, &minor), "nvrtcVersion"));
  c.version_ = std::to_string(major) + "." + std::to_string(minor);
  SOK_RETURN_IF_ERROR(c.Check(c.GetNumSupportedArchs(&count), "nvrtcGetNumSupportedArchs"));
  c.architectures_.resize(count);
  SOK_RETURN_IF_ERROR(
      c.Check(c.GetSupportedArchs(c.architectures_.data()), "nvrtcGetSupportedArchs"));
  return opened;
}

Status Compiler::Check(int result, const char* call) const {
  if (result == 0) return Status();
  return Status(Code::kInternal, std::string(call) + " failed: " + GetErrorString(result) + ".");
}

Result<std::string> Compiler::Compile(const std::string& name, const std::string& source,
                                      const std::vector<Header>& headers,
                                      const std::vector<std::string>& options,
                                      int architecture) const {
  std::vector<const char*> texts, names;
  for (const Header& header : headers) {
    texts.push_back(header.text);
    names.push_back(header.name);
  }
  void* program = nullptr;
  SOK_RETURN_IF_ERROR(
      Check(CreateProgram(&program, source.c_str(), name.c_str(), static_cast<int>(headers.size()),
                          texts.data(), names.data()),
            "nvrtcCreateProgram"));
  const auto destroy = [this](void* made) { DestroyProgram(&made); };
  const std::unique_ptr<void, decltype(destroy)> owner(program, destroy);
  int target = 0;
  for (const int known : architectures_) {
    if (known <= architecture) target = std::max(target, known);
  }
  constexpr int kLeast = 70;  // from here on, the threads of a warp can wait for one another
  if (target < kLeast) {
    return Status(Code::kUnavailable,
                  "Expected a GPU of compute capability 7.0 or above, which NVRTC " + version_ +
                      " compiles for. Received: " + std::to_string(architecture / 10) + "." +
                      std::to_string(architecture % 10) + ".");
  }
  const bool is_exact = target == architecture;
  // Functions without a mark are compiled for the GPU. The host's loops have pragmas that NVRTC
  // does not know.
  std::vector<std::string> all{"--std=c++17", "-default-device", "--diag-suppress=161",
                               std::string("--gpu-architecture=") +
                                   (is_exact ? "sm_" : "compute_") + std::to_string(target)};
  all.insert(all.end(), options.begin(), options.end());
  std::vector<const char*> arguments;
  for (const std::string& option : all) arguments.push_back(option.c_str());
  static std::mutex compiling;  // NVRTC does not promise to be thread-safe
  std::unique_lock<std::mutex> lock(compiling);
  const int result = CompileProgram(program, static_cast<int>(arguments.size()), arguments.data());
  lock.unlock();
  if (result != 0) {
    size_t bytes = 0;
    GetProgramLogSize(program, &bytes);
    std::string log(bytes, '\0');
    GetProgramLog(program, log.data());
    return Status(Code::kInternal, "NVRTC " + version_ + " cannot compile " + name + ": " +
                                       GetErrorString(result) + "\n" + log.c_str());
  }
  size_t bytes = 0;
  SOK_RETURN_IF_ERROR(Check(is_exact ? GetCUBINSize(program, &bytes) : GetPTXSize(program, &bytes),
                            "nvrtcGetCUBINSize"));
  std::string image(bytes, '\0');
  SOK_RETURN_IF_ERROR(Check(
      is_exact ? GetCUBIN(program, image.data()) : GetPTX(program, image.data()), "nvrtcGetCUBIN"));
  return image;
}

}  // namespace sok::gpu
