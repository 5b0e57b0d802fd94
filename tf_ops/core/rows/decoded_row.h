// Gives access to rows of one shard as floats, one at a time, whatever their types in memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/rows/row_coding.h"
#include "core/rows/row_store.h"

namespace sok {

// Returns the row itself if the layout has no coding, and otherwise floats of its own, which Write
// encodes. The shard's lock must be held; a RowRef is valid until the next call. Rows is RowSlabs
// or CacheRows.
template <typename Rows>
class DecodedRow {
 public:
  // Only the constructor takes memory.
  explicit DecodedRow(const Rows& rows) : rows_(rows), coding_(rows.layout().coding()) {
    if (coding_ != nullptr) floats_.resize(coding_->floats());
  }

  RowRef Read(uint32_t row) {
    if (coding_ == nullptr) return {rows_.row(row), rows_.meta(row)};
    coding_->Decode(rows_.place(row), floats_.data());
    return {floats_.data(), rows_.meta(row)};
  }

  // Returns a new row, whose slots are at their start.
  RowRef Start(uint32_t row) {
    const RowLayout& layout = rows_.layout();
    float* const floats = coding_ == nullptr ? rows_.row(row) : floats_.data();
    std::copy(layout.slot_start().begin(), layout.slot_start().end(), floats + layout.dim());
    return {floats, rows_.meta(row)};
  }

  // Stores the changed floats of the last RowRef, which must be of the same row, rounded to
  // nearest.
  void Write(uint32_t row) {
    if (coding_ != nullptr) coding_->EncodeNearest(floats_.data(), rows_.place(row));
  }

 private:
  const Rows& rows_;
  const RowCoding* const coding_;
  std::vector<float> floats_;
};

}  // namespace sok
