// The checksum of files and of pieces of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace sok {

// Returns XXH3-64 of the bytes, seeded with the file offset at which they start, so that a whole
// piece that stands in the wrong place is found as well.
uint64_t Checksum(const void* bytes, size_t size, uint64_t file_offset);

// Computes the same checksum when the bytes come in several parts.
class RunningChecksum {
 public:
  RunningChecksum();
  ~RunningChecksum();

  // Begins anew, with bytes that start at this offset.
  void Start(uint64_t file_offset);
  void Add(const void* bytes, size_t size);
  uint64_t value() const;

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace sok
