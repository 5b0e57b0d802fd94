// Files that are opened and lose their names at once.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/base/status.h"

namespace sok {

// A folder in the system's folder of temporary files, TMPDIR or /tmp. One thread may use it.
class ScratchFolder {
 public:
  // Errors: as SystemError returns.
  static Result<std::unique_ptr<ScratchFolder>> Make();
  // Removes the folder and its files; those that are open or mapped stay readable.
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  // Returns a path for the next file.
  std::string NewPath();

 private:
  explicit ScratchFolder(std::string path) : path_(std::move(path)) {}

  const std::string path_;
  size_t files_ = 0;
};

}  // namespace sok
