// One shard's cached rows: like RowSlabs, but a row knows its key and its state, and whole blocks
// can be given back.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/types.h"
#include "core/disk/cache_memory.h"
#include "core/rows/row_slabs.h"

namespace sok {

// The flags of a cached row. docs/life-of-a-row.md shows how they follow one another.
enum RowState : uint16_t {
  kRowLive = 1,   // the place is in use
  kRowUsed = 2,   // was used since the hand last passed it; any reader may set it
  kRowDirty = 4,  // changed in the cache: this version is nowhere else
  kRowNew = 8,    // the database has no version of it
  // These two keep a row in the cache: kRowPinned while the lock of its shard is held, kRowKept
  // while a call that changes all of its rows or none is under way.
  kRowPinned = 16,
  kRowKept = 32,
  kRowSpilled = 64,   // this version is in the spill too, so it need not be written again
  kRowOnTrial = 128,  // came into the cache, and the hand has not yet seen that it was used again
  // Four bits that say which rows came into the cache together.
  kRowArrival = 15 << 8,
  kRowAhead = 1 << 12,  // was read ahead; its use by a lookup has not been noted yet
};

// The cached rows of one shard. Not thread-safe, but for Touch: the shard that owns it holds the
// lock.
//
// Rows leave as in S3-FIFO (Yang et al., "FIFO queues are all you need for cache eviction", SOSP
// 2023), without its list of rows that left: a row that comes is on trial until it is used again,
// and while more than a quarter of the rows are on trial, one of them leaves. So keys that come
// once take no more than a quarter of the cache. docs/decisions/rows-on-trial.md compares this with
// others. The trial of a row that is read ahead begins once a lookup has used it, or the hand has
// passed it.
class CacheRows {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  CacheRows(std::shared_ptr<const RowLayout> layout, CacheMemory* memory,
            CacheMemory::Holder* holder);
  ~CacheRows();
  CacheRows(const CacheRows&) = delete;

  char* place(uint32_t row) const {
    return blocks_[row >> shift_] + static_cast<size_t>(row & mask_) * row_bytes_;
  }
  // Returns the address of the row. It has floats only if the layout has no coding.
  float* row(uint32_t row) const { return reinterpret_cast<float*>(place(row)); }
  // Returns the values of the row, as the database has them.
  std::string_view values(uint32_t row) const { return {place(row), layout_->value_bytes()}; }
  RowMeta* meta(uint32_t row) const {
    return reinterpret_cast<RowMeta*>(blocks_[row >> shift_] + meta_offset_) + (row & mask_);
  }
  void Prefetch(uint32_t number) const {
    const char* const values = place(number);
    for (size_t at = 0; at < row_bytes_; at += 64) __builtin_prefetch(values + at);
    __builtin_prefetch(meta(number));
    __builtin_prefetch(&key(number));
  }
  Key& key(uint32_t row) const {
    return reinterpret_cast<Key*>(blocks_[row >> shift_] + key_offset_)[row & mask_];
  }
  uint16_t state(uint32_t row) const { return __atomic_load_n(StateOf(row), __ATOMIC_RELAXED); }
  void set_state(uint32_t row, uint16_t state) {
    __atomic_store_n(StateOf(row), state, __ATOMIC_RELAXED);
  }
  void Mark(uint32_t row, uint16_t flags) { set_state(row, state(row) | flags); }
  void Unmark(uint32_t row, uint16_t flags) {
    if (row != kNone) set_state(row, state(row) & static_cast<uint16_t>(~flags));
  }
  // Notes that the row was changed: from here on this version is only in the cache.
  void MarkChanged(uint32_t row) { set_state(row, (state(row) & ~kRowSpilled) | kRowDirty); }
  bool IsEvictable(uint32_t row) const { return (state(row) & kNotEvictable) == 0; }
  // Notes a use of the row; other readers may run at the same time. A use counts only after a later
  // search for other rows: a step that looks a row up, which brings it in, and then changes it has
  // used it once. (After 16 arrivals the numbers repeat, and some uses that should count do not.)
  void Touch(uint32_t row) const {
    const uint16_t is = state(row);
    const bool just_came = (is & kRowOnTrial) != 0 && (is & kRowArrival) == arrival_;
    const bool counts = !just_came || (is & kRowAhead) != 0;
    if (counts && (is & kRowUsed) == 0) {
      __atomic_fetch_or(StateOf(row), kRowUsed, __ATOMIC_RELAXED);
    }
  }
  // Begins a new arrival: rows that come from here on are later than all before.
  void BeginArrival() { arrival_ = (arrival_ + kRowArrival / 15) & kRowArrival; }

  // Takes a free place for a row, and returns it; there must be one.
  uint32_t Allocate(Key key);
  // Reserves room for rows that are read ahead, as CacheMemory does, or gives it back.
  size_t ReserveAhead(size_t rows) { return memory_->ReserveAhead(rows, bytes_of_row()); }
  void UnreserveAhead(size_t rows) { memory_->UnreserveAhead(rows, bytes_of_row()); }
  // Notes that a row, which has just been allocated and for which there is room, is read ahead of
  // its step. ExpectAhead has made room for its number.
  void MarkAhead(uint32_t row) {
    Mark(row, kRowAhead);
    ahead_rows_.push_back(row);
    ++ahead_;
  }
  // Has the trials of those begin that lookups have used by now, and gives their room back. Their
  // step may still be changing them, which does not count.
  void EndAhead();
  // Makes room for the numbers of so many more rows that are read ahead.
  void ExpectAhead(size_t rows) { ahead_rows_.reserve(ahead_rows_.size() + rows); }
  void Free(uint32_t row);
  size_t free() const { return free_.size(); }
  size_t live() const { return capacity() - free_.size(); }
  size_t on_trial() const { return on_trial_; }

  // Adds one more block of rows. Returns false if there is no memory, or none within the budget.
  bool Grow(bool beyond_budget);
  uint64_t block_bytes() const { return block_bytes_; }
  // Returns how many blocks were added beyond the budget since the last call.
  size_t TakeBeyond() { return std::exchange(beyond_, 0); }

  // Calls fn(row) for the live rows.
  template <typename Fn>
  void ForEach(const Fn& fn) const {
    for (uint32_t block = 0; block < blocks_.size(); ++block) ForEachOfBlock(block, fn);
  }
  uint32_t block_numbers() const { return static_cast<uint32_t>(blocks_.size()); }
  template <typename Fn>
  void ForEachOfBlock(uint32_t block, const Fn& fn) const {
    if (blocks_[block] == nullptr) return;
    for (uint32_t i = 0; i < rows_per_block_; ++i) {
      const uint32_t row = (block << shift_) | i;
      if ((state(row) & kRowLive) != 0) fn(row);
    }
  }

  // Returns up to `wanted` rows that may leave the cache. While more than a quarter of the rows are
  // on trial, these are rows on trial that were not used again; otherwise rows that have passed
  // their trial and were not used since the hand last passed. If there are not enough of these, it
  // returns any rows that may leave.
  std::vector<uint32_t> Victims(size_t wanted);

  // Returns a block whose rows may all leave the cache, or UINT32_MAX if there is none.
  uint32_t SpillableBlock();
  // Gives back a block that has no live row.
  void Release(uint32_t block);
  // Gives all blocks back, and starts again with another layout. Needs no memory.
  void Reset(std::shared_ptr<const RowLayout> layout);

  size_t blocks() const { return used_blocks_; }

  const RowLayout& layout() const { return *layout_; }
  // Replaces the layout by one of the same shape.
  void set_layout(std::shared_ptr<const RowLayout> layout) { layout_ = std::move(layout); }

 private:
  uint16_t* StateOf(uint32_t row) const {
    return reinterpret_cast<uint16_t*>(blocks_[row >> shift_] + state_offset_) + (row & mask_);
  }
  static constexpr uint16_t kNotEvictable = kRowPinned | kRowKept;
  size_t bytes_of_row() const { return block_bytes_ / rows_per_block_; }
  void UnmarkAhead(uint32_t row) {
    Unmark(row, kRowAhead);
    UnreserveAhead(1);
    --ahead_;
  }
  // Has the trial of a row that was read ahead begin.
  void BeginTrial(uint32_t row) {
    UnmarkAhead(row);
    const uint16_t fresh = state(row) & static_cast<uint16_t>(~(kRowUsed | kRowArrival));
    set_state(row, fresh | arrival_);
  }
  size_t capacity() const { return used_blocks_ * rows_per_block_; }
  // Moves the hand over all rows up to `turns` times. Calls visit(row, state) for each row that may
  // leave, until it returns false.
  template <typename Visit>
  void Turn(size_t turns, const Visit& visit);

  std::shared_ptr<const RowLayout> layout_;
  CacheMemory* const memory_;
  CacheMemory::Holder* const holder_;
  size_t row_bytes_;
  uint32_t rows_per_block_;
  int shift_;  // a row's number is its block << shift_, plus its place in the block
  uint32_t mask_;
  size_t block_bytes_, meta_offset_, key_offset_, state_offset_;
  std::vector<char*> blocks_;  // null: the block was given back
  size_t used_blocks_ = 0;
  size_t beyond_ = 0;
  std::vector<uint32_t> free_;
  size_t on_trial_ = 0;
  size_t ahead_ = 0;                  // rows that are marked kRowAhead
  std::vector<uint32_t> ahead_rows_;  // these, and some that are not any more
  uint16_t arrival_ = 0;
  uint32_t hand_block_ = 0, hand_row_ = 0;
};

}  // namespace sok
