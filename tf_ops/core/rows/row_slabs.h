// The layout of a row in memory, and the rows of one shard: rows have fixed places in slabs, which
// never move, and are given back once they are empty. Nothing here is thread-safe. Errors:
// kResourceExhausted where memory ends; nothing has changed then.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/base/page_memory.h"
#include "core/base/status.h"
#include "core/rows/row_coding.h"
#include "core/rows/row_type.h"
#include "core/rules/row_optimizer.h"

namespace sok {

struct RowMeta {
  static constexpr uint32_t kMostUpdates = UINT32_MAX;

  uint32_t update_num;  // commits that touched the row; it stays at the most that there is
  // The time of the last commit, or when the row was made: in seconds since 1970, or in steps of
  // the table.
  uint32_t update_time;

  uint32_t next_update() const { return update_num + (update_num != kMostUpdates); }
};

// The floats of a row: the embedding, then the slots of the table's rule. They lie in memory as
// they are, or in fewer bytes.
class RowLayout {
 public:
  RowLayout(int dim, std::vector<Slot> slots, const RowForm& form = {});

  int dim() const { return dim_; }
  int slot_floats() const { return static_cast<int>(slot_start_.size()); }
  int stride() const { return stride_; }  // floats from one row to the next, without a coding
  // Returns the bytes from one row in memory to the next.
  size_t row_bytes() const { return coding_ ? coding_->bytes() : stride_ * sizeof(float); }
  // Returns the bytes of a row's values, without those that align the next row.
  size_t value_bytes() const { return embedding_bytes() + slot_bytes_.size(); }
  size_t embedding_bytes() const { return CodedBytes(form_.row, dim_); }
  const RowForm& form() const { return form_; }
  // Returns the coding between the bytes and the floats of a row; null: a row consists of floats.
  const RowCoding* coding() const { return coding_ ? &*coding_ : nullptr; }
  const std::vector<Slot>& slots() const { return slots_; }
  // Returns the start values of the slots of a new row, as they are after rounding.
  const std::vector<float>& slot_start() const { return slot_start_; }
  // Returns the same values as the bytes that follow a row's embedding.
  const std::vector<char>& slot_bytes() const { return slot_bytes_; }
  bool SameShape(const RowLayout& other) const;

  // Turns the values of a row into floats: the embedding alone, or with the slots behind it. The
  // values need not be aligned.
  void DecodeEmbedding(const char* values, float* embedding) const {
    DecodeValues(form_.row, values, dim_, embedding);
  }
  void Decode(const char* values, float* floats) const {
    DecodeEmbedding(values, floats);
    DecodeValues(form_.slots, values + embedding_bytes(), slot_floats(), floats + dim_);
  }
  // Turns such floats into values of value_bytes(), each rounded to nearest.
  void EncodeNearest(const float* floats, char* values) const;

 private:
  int dim_;
  int stride_;
  std::vector<Slot> slots_;
  std::vector<float> slot_start_;
  std::vector<char> slot_bytes_;
  RowForm form_;
  std::optional<RowCoding> coding_;
};

// The rows of one shard. Not thread-safe: the shard that owns it holds the lock.
class RowSlabs {
 public:
  RowSlabs(std::shared_ptr<const RowLayout> layout, std::shared_ptr<Arena> arena)
      : layout_(std::move(layout)), arena_(std::move(arena)), row_bytes_(layout_->row_bytes()) {}

  // Makes sure that `more` calls of Allocate succeed. On an error nothing has changed.
  Status Reserve(uint32_t more);

  // Returns the lowest number of an unused row. Its floats and its meta are not set.
  uint32_t Allocate();
  // Frees a row. A slab whose last row goes is given back.
  void Free(uint32_t row);

  char* place(uint32_t row) const {
    return slabs_[row >> kShift] + static_cast<size_t>(row & kMask) * row_bytes_;
  }
  // Returns the address of the row. It has floats only if the layout has no coding.
  float* row(uint32_t row) const { return reinterpret_cast<float*>(place(row)); }
  // Counters lie beside the rows of the slab and not inside of them, so that embeddings of 16, 32,
  // … floats keep to whole cache lines.
  RowMeta* meta(uint32_t row) const {
    return reinterpret_cast<RowMeta*>(slabs_[row >> kShift] + RowsBytes()) + (row & kMask);
  }

  const RowLayout& layout() const { return *layout_; }
  const std::shared_ptr<const RowLayout>& shared_layout() const { return layout_; }
  // Replaces the layout by one of the same shape. Hyperparameters may change what new slots start
  // from.
  void set_layout(std::shared_ptr<const RowLayout> layout) { layout_ = std::move(layout); }

  // Returns the same rows under the same numbers, with other slots: embeddings and metas are
  // copied, and the new slots start from their initial values.
  Result<RowSlabs> WithLayout(std::shared_ptr<const RowLayout> layout,
                              std::shared_ptr<Arena> arena) const;

  const Arena& arena() const { return *arena_; }

  // All rows have numbers below this.
  uint32_t end() const { return static_cast<uint32_t>(slabs_.size()) << kShift; }
  // Returns which rows are in use, a bit a row.
  std::vector<uint64_t> taken() const;

  // Returns the bytes of the pages of the slabs that no row was written to yet.
  size_t untouched_bytes() const;

 private:
  static constexpr int kShift = 9;
  static constexpr uint32_t kRows = 1u << kShift;
  static constexpr uint32_t kMask = kRows - 1;

  // The rows of a slab that are in use.
  struct Use {
    uint64_t taken[kRows / 64] = {};  // a bit a row
    uint16_t rows = 0;                // how many
    uint16_t touched = 0;             // rows from here on were never in use
  };

  size_t RowsBytes() const { return size_t{kRows} * row_bytes_; }
  size_t SlabBytes() const { return RowsBytes() + kRows * sizeof(RowMeta); }
  Status AddSlab(uint32_t slab);
  // Notes whether the slab has a row that is free.
  void SetFree(uint32_t slab, bool is_free);

  std::shared_ptr<const RowLayout> layout_;
  std::shared_ptr<Arena> arena_;
  size_t row_bytes_;
  std::vector<char*> slabs_;  // null where one was given back
  std::vector<Use> uses_;
  std::vector<uint32_t> vacant_;     // the numbers of those that were given back
  std::vector<uint64_t> with_free_;  // a bit a slab
  size_t first_free_ = 0;            // words of with_free_ before this one are 0
  uint64_t free_ = 0;                // rows
};

}  // namespace sok
