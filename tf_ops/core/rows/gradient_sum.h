// Sums the gradients of equal rows of one shard before a rule sees them.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/grouping.h"
#include "core/rows/row_store.h"
#include "core/rows/shard_partition.h"

namespace sok {

// Sums the gradients that a commit has for the same row of one shard. The object is scratch that
// can be used again and keeps its memory. Not thread-safe.
class GradientSum {
 public:
  // Computes the sums. row_numbers[i] is the row of entries[i], or UINT32_MAX to leave the entry
  // out. A float32 gradient that is the only one of its row, with a factor of 1, is not
  // copied: gradients() points to where it lies. This is so for batches that are summed already, or
  // whose keys are distinct.
  void Build(const ShardEntry* entries, const uint32_t* row_numbers, size_t n,
             const std::vector<GradientBatch>& batches, int dim);

  // The distinct rows in order of first appearance, and a gradient for each.
  const std::vector<uint32_t>& rows() const { return rows_; }
  const std::vector<const float*>& gradients() const { return gradients_; }

 private:
  uint32_t Unique(uint32_t row);
  // Takes gradients of distinct keys.
  void Take(const ShardEntry* entries, const uint32_t* row_numbers, size_t n,
            const GradientBatch& batch, int dim);

  DistinctIndex index_;           // of rows_
  std::vector<uint32_t> unique_;  // (n) position in rows_, UINT32_MAX if the entry is left out
  // For each distinct row: first its number of entries, later 1 if its gradient lies in sums_.
  std::vector<uint32_t> counts_;
  std::vector<uint32_t> rows_;
  std::vector<const float*> gradients_;
  std::vector<float> sums_;
};

}  // namespace sok
