// A file without a name: it disappears with the process, however the process ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/base/status.h"

namespace sok {

// One thread at a time may use it.
class ScratchFile {
 public:
  static Result<std::unique_ptr<ScratchFile>> Open(const std::string& folder);
  ~ScratchFile();
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  // Writes after the last byte. Errors: as SystemError returns.
  Status Append(const char* bytes, size_t size);
  // Reads bytes that were written before.
  Status ReadAt(uint64_t offset, char* out, size_t size) const;

  uint64_t bytes() const { return bytes_; }

 private:
  ScratchFile(int fd, std::string folder) : fd_(fd), folder_(std::move(folder)) {}

  const int fd_;
  const std::string folder_;
  uint64_t bytes_ = 0;
};

}  // namespace sok
