// A file without a name for rows that have left the cache, in segments.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/base/status.h"

namespace sok {

// A file in segments. Thread-safe. It has no name, so it goes with the process, however that ends.
class SpillFile {
 public:
  static constexpr size_t kSegmentBytes = size_t{1} << 20;

  // At most `most_rows` rows may be spilled at a time, since each takes memory for its place.
  static Result<std::unique_ptr<SpillFile>> Open(const std::string& folder, uint64_t most_rows);
  ~SpillFile();
  SpillFile(const SpillFile&) = delete;

  // Counts `rows` more as spilled and returns true, if that keeps to the limit.
  bool Reserve(uint64_t rows);
  void ReserveAnyway(uint64_t rows) { rows_ += rows; }
  void Unreserve(uint64_t rows) { rows_ -= rows; }
  uint64_t rows() const { return rows_; }
  uint64_t most_rows() const { return most_rows_; }
  uint64_t bytes() const;  // the length of the file, free segments included

  uint32_t AllocateSegment();
  // Lets go of a segment, for the next one who asks. This needs no memory.
  void FreeSegment(uint32_t segment);
  // Gives the space of free segments back to the disk, where the file system can do that. It may
  // wait for the disk, for as long as others write there.
  void GiveBack();
  // Makes the file empty, at once: what was written is not waited for. All segments must be free.
  void Clear();

  // Errors: kResourceExhausted if the disk is full.
  Status Write(uint32_t segment, size_t offset, const char* from, size_t n) const;
  Status Read(uint32_t segment, size_t offset, char* to, size_t n) const;
  // Reads into two places: the first `head_bytes` go to head, those that follow to tail.
  Status Read(uint32_t segment, size_t offset, char* head, size_t head_bytes, char* tail,
              size_t tail_bytes) const;
  // A record of a segment, counted by records of one size, and the number that it is to have.
  struct Wanted {
    uint32_t segment;
    uint32_t row;
    uint32_t record;
  };
  // Reads records, and orders `wanted` for that. Records that lie close together are one read.
  Status ReadRecords(std::vector<Wanted>* wanted, size_t record_bytes, char* records) const;

 private:
  SpillFile(int file, std::string folder, uint64_t most_rows)
      : file_(file), folder_(std::move(folder)), most_rows_(most_rows) {}
  Status Failed(const char* what) const;

  const int file_;
  const std::string folder_;
  const uint64_t most_rows_;
  std::atomic<uint64_t> rows_{0};
  mutable std::mutex mu_;  // guards the three below
  uint32_t segments_ = 0;
  std::vector<uint32_t> free_;        // those that have their space
  std::vector<uint32_t> given_back_;  // free ones without
};

}  // namespace sok
