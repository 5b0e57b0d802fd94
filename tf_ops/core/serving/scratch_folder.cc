#include "core/serving/scratch_folder.h"

#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "core/base/file.h"

namespace sok {

Result<std::unique_ptr<ScratchFolder>> ScratchFolder::Make() {
  const char* const set = getenv("TMPDIR");
  const std::string parent = set == nullptr || *set == '\0' ? "/tmp" : set;
  std::string path = parent + "/sok-rows-XXXXXX";
  if (mkdtemp(path.data()) == nullptr) {
    return SystemError(errno, "make a folder for temporary files in", parent);
  }
  return std::unique_ptr<ScratchFolder>(new ScratchFolder(std::move(path)));
}

ScratchFolder::~ScratchFolder() {
  for (size_t i = 0; i < files_; ++i) {
    unlink((path_ + "/" + std::to_string(i) + ".safetensors").c_str());
  }
  rmdir(path_.c_str());
}

std::string ScratchFolder::NewPath() {
  return path_ + "/" + std::to_string(files_++) + ".safetensors";
}

}  // namespace sok
