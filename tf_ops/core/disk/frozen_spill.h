// The dirty rows that lie in the spill at one moment, in the order of their keys.
#pragma once

#include <cstddef>
#include <vector>

#include "core/base/status.h"
#include "core/disk/durable_store.h"
#include "core/disk/spill.h"
#include "core/disk/spill_file.h"

namespace sok {

// Nothing overwrites these rows before Spill::Thaw, so a thread may read them while others use the
// spill. The spill's file has them in ascending runs, as they were written, which are merged.
// Segments whose runs are short are first read in parts, each of which is sorted in memory and
// written to the file again as one run.
class FrozenSpill final : public DurableStore::FrozenRows {
 public:
  // ForEach takes about twice `memory` bytes, and the rows of the segments.
  FrozenSpill(SpillFile* file, size_t row_bytes, size_t memory);

  void Add(std::vector<Spill::FrozenPart> segments);

  // Errors: those of the file and of fn; kResourceExhausted.
  Status ForEach(const Visit& fn) const override;

 private:
  // Rows [begin, end) of a segment.
  struct Extent {
    uint32_t segment;
    uint32_t begin, end;
  };
  struct Run {
    std::vector<Extent> extents;
    const std::vector<uint64_t>* rows;  // which ones belong to it, a bit a row; null: all
  };
  class RunReader;
  class SortedParts;

  template <typename Fn>
  Status ForEachRecord(const Spill::FrozenPart& segment, const Fn& fn) const;
  Status SortInMemory(const Visit& fn) const;
  Status Merge(const std::vector<Run>& runs, const Visit& fn) const;

  SpillFile& file_;
  const size_t record_bytes_;
  const size_t memory_;
  std::vector<Spill::FrozenPart> segments_;
  size_t rows_ = 0;
};

}  // namespace sok
