// NVRTC, NVIDIA's compiler for programs that are text. Like the driver, its library is opened when
// it is first needed.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "core/base/status.h"

namespace sok::gpu {

// A file that a program may include, and the name by which it is included.
struct Header {
  const char* name;
  const char* text;
};

// libnvrtc. Thread-safe.
class Compiler {
 public:
  // Opens the library that the environment variable SOK_NVRTC names, or else the newest of
  // libnvrtc.so.13 and libnvrtc.so.12 that the loader finds, once per process. Errors:
  // kUnavailable, with advice on what to install.
  static Result<const Compiler*> Get();
  // Opens one of these libraries.
  static Result<std::unique_ptr<Compiler>> Open(const std::vector<std::string>& libraries);

  // Returns its version, such as "12.9".
  const std::string& version() const { return version_; }

  // Compiles a program for compute capability `architecture` (90 is 9.0). If the GPU is newer than
  // this NVRTC supports, the result is for the newest supported one, and the driver compiles it
  // further. Errors: kInternal with the compiler's log.
  Result<std::string> Compile(const std::string& name, const std::string& source,
                              const std::vector<Header>& headers,
                              const std::vector<std::string>& options, int architecture) const;

 private:
  Compiler() = default;

  Status Check(int result, const char* call) const;

  std::string version_;
  std::vector<int> architectures_;
  const char* (*GetErrorString)(int result);
  int (*Version)(int* major, int* minor);
  int (*GetNumSupportedArchs)(int* count);
  int (*GetSupportedArchs)(int* architectures);
  int (*CreateProgram)(void** program, const char* source, const char* name, int count,
                       const char* const* headers, const char* const* names);
  int (*DestroyProgram)(void** program);
  int (*CompileProgram)(void* program, int count, const char* const* options);
  int (*GetCUBINSize)(void* program, size_t* bytes);
  int (*GetCUBIN)(void* program, char* image);
  int (*GetPTXSize)(void* program, size_t* bytes);
  int (*GetPTX)(void* program, char* image);
  int (*GetProgramLogSize)(void* program, size_t* bytes);
  int (*GetProgramLog)(void* program, char* log);
};

}  // namespace sok::gpu
