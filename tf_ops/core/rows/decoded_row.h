// Rows of one shard as floats, one at a time, whatever they lie in memory as.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/rows/row_coding.h"
#include "core/rows/row_store.h"

namespace sok {

// Hands out the row itself where the layout has no coding, and else floats of its own, which Write
// encodes. The shard's lock must be held; a RowRef is good until the next call. Rows is RowSlabs or
// CacheRows.
template <typename Rows>
class DecodedRow {
 public:
  // This alone takes memory.
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

  // Keeps what the last RowRef was changed to, rounded to nearest. Must be of the same row.
  void Write(uint32_t row) {
    if (coding_ != nullptr) coding_->EncodeNearest(floats_.data(), rows_.place(row));
  }

 private:
  const Rows& rows_;
  const RowCoding* const coding_;
  std::vector<float> floats_;
};

}  // namespace sok
