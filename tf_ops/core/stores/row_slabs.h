// One shard's rows: fixed places in slabs that never move.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/optimizers/row_optimizer.h"
#include "core/page_memory.h"
#include "core/status.h"

namespace sok {

struct RowMeta {
  uint32_t update_num;   // commits that touched the row
  uint32_t update_time;  // of the last one, in seconds since 1970
};

// The floats of a row: the embedding, then the slots of the table's rule.
class RowLayout {
 public:
  RowLayout(int dim, std::vector<Slot> slots);

  int dim() const { return dim_; }
  int slot_floats() const { return static_cast<int>(slot_start_.size()); }
  int stride() const { return stride_; }  // floats from one row to the next
  const std::vector<Slot>& slots() const { return slots_; }
  // What the slots of a new row hold.
  const std::vector<float>& slot_start() const { return slot_start_; }
  bool SameShape(const RowLayout& other) const;

 private:
  int dim_;
  int stride_;
  std::vector<Slot> slots_;
  std::vector<float> slot_start_;
};

// Not thread-safe: the shard that owns it holds the lock.
class RowSlabs {
 public:
  RowSlabs(std::shared_ptr<const RowLayout> layout, std::shared_ptr<Arena> arena)
      : layout_(std::move(layout)), arena_(std::move(arena)), stride_(layout_->stride()) {}

  // Makes sure that `more` calls of Allocate succeed. On an error nothing has changed.
  Status Reserve(uint32_t more);

  // The number of a row that nobody uses. Its floats and its meta are what they were last.
  uint32_t Allocate();
  void Free(uint32_t row) { free_.push_back(row); }

  float* row(uint32_t row) const {
    return reinterpret_cast<float*>(slabs_[row >> kShift]) +
           static_cast<size_t>(row & kMask) * stride_;
  }
  // Beside the rows of the slab and not inside of them, so that embeddings of 16, 32, … floats keep
  // to whole cache lines.
  RowMeta* meta(uint32_t row) const {
    return reinterpret_cast<RowMeta*>(reinterpret_cast<float*>(slabs_[row >> kShift]) +
                                      static_cast<size_t>(kRows) * stride_) +
           (row & kMask);
  }

  const RowLayout& layout() const { return *layout_; }
  // Hyperparameters may change what new slots start from; the shape must stay.
  void set_layout(std::shared_ptr<const RowLayout> layout) { layout_ = std::move(layout); }

  // The same rows under the same numbers, with other slots: embeddings and metas are copied, the
  // new slots start from their initial values.
  Result<RowSlabs> Relaid(std::shared_ptr<const RowLayout> layout,
                          std::shared_ptr<Arena> arena) const;

 private:
  static constexpr int kShift = 9;
  static constexpr uint32_t kRows = 1u << kShift;
  static constexpr uint32_t kMask = kRows - 1;

  std::shared_ptr<const RowLayout> layout_;
  std::shared_ptr<Arena> arena_;
  int stride_;
  std::vector<char*> slabs_;
  uint32_t used_ = 0;           // rows ever handed out
  std::vector<uint32_t> free_;  // those that came back
};

}  // namespace sok
