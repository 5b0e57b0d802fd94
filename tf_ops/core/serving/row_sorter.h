// Sorts rows by the hash of their keys in bounded memory. If they do not fit, sorted runs of them
// are written to a file without a name, and the runs are merged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/base/types.h"
#include "core/serving/scratch_file.h"

namespace sok {

// A record is a key, in its first 8 bytes, and bytes that belong to it. One thread at a time.
class RowSorter {
 public:
  // Takes about `memory` bytes. The file is in `folder`.
  RowSorter(size_t record_bytes, size_t memory, std::string folder);

  // Returns memory for the next records. *n is the most records that the caller has; it becomes the
  // number that fits, at least 1. Records count once they are reported to Added.
  Result<char*> Room(size_t* n);
  void Added(size_t n) { held_ += n; }
  uint64_t size() const { return spilled_ + held_; }

  // Calls put(hash, record) for each record, in the order of the hashes. Nothing can be added
  // afterwards. Errors: kInvalidArgument for a key that came twice; errors of put and of files.
  using Put = std::function<Status(uint64_t hash, const char* record)>;
  Status Drain(const Put& put);

 private:
  struct Run {
    uint64_t begin, end;  // bytes of the file
  };
  class RunReader;

  // Calls put for each record in memory.
  Status DrainMemory(const Put& put);
  Status Spill();
  Status Merge(const Put& put);

  const size_t record_bytes_, memory_, capacity_;
  const std::string folder_;
  std::unique_ptr<char[]> records_;
  std::vector<std::pair<uint64_t, uint32_t>> order_;  // hash, place
  size_t held_ = 0;
  uint64_t spilled_ = 0;
  std::unique_ptr<ScratchFile> file_;
  std::vector<Run> runs_;
};

}  // namespace sok
