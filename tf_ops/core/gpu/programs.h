// The programs for a GPU, compiled when they are first needed and kept in a folder.
#pragma once

#include <memory>
#include <string>

#include "core/base/status.h"
#include "core/gpu/compiler.h"
#include "core/gpu/device.h"

namespace sok::gpu {

// The constants that a program is compiled with.
struct Specialty {
  int dim = 0;        // floats of an embedding; 0: the program does not read rows
  std::string rule;   // the type of a rule, or empty
  bool fuses = true;  // uses fused multiply-add; without it results have the bits of the host
};

// Returns the program "index", "rows", "rule" or "bags" for a device. Each is compiled once per
// process. Thread-safe.
Result<std::shared_ptr<Module>> LoadProgram(const std::shared_ptr<Device>& device,
                                            const std::string& name, const Specialty& specialty);

// Returns a compiled program for compute capability `architecture`. It is read from the cache
// folder if it was compiled before: by the same NVRTC, from the same sources, with the same
// options. A cache that cannot be read or written costs time and is not an error.
Result<std::string> CachedProgram(const Compiler& compiler, int architecture,
                                  const std::string& name, const Specialty& specialty);

// Compiles a program without reading the cache.
Result<std::string> CompileProgram(const Compiler& compiler, int architecture,
                                   const std::string& name, const Specialty& specialty);

// Returns the folder of compiled programs: sok-embed/gpu in $XDG_CACHE_HOME or ~/.cache; empty if
// no home is known.
std::string ProgramCacheFolder();

}  // namespace sok::gpu
