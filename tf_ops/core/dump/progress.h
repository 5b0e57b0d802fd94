// Reports the progress of reading or writing a long file.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "core/base/status.h"

namespace sok {

// Gets how far a walk is and where it ends, in bytes of a file, or in rows; returns false to stop
// the walk. Called
// about once a MiB, and at the end with done == total. Null: no reports.
using DumpProgress = std::function<bool(uint64_t done, uint64_t total)>;

namespace dump {

// kFailedPrecondition if the callback wants the walk to stop.
inline Status Report(const DumpProgress& progress, uint64_t done, uint64_t total,
                     const std::string& path) {
  if (!progress || progress(done, total)) return Status();
  return Status(Code::kFailedPrecondition, "Cancelled by the progress callback at byte " +
                                               std::to_string(done) + " of " +
                                               std::to_string(total) + " of " + path + ".");
}

}  // namespace dump
}  // namespace sok
