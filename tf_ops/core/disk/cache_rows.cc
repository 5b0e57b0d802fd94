#include "core/disk/cache_rows.h"

#include <algorithm>
#include <new>

namespace sok {
namespace {

constexpr size_t kLine = 64;
constexpr uint32_t kFewestRows = 8;
// While more than one row in kTrialPart is on trial, the next victim is one of these.
constexpr size_t kTrialPart = 4;

size_t Lines(size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

size_t BytesBeside(uint32_t rows) {
  return Lines(rows * sizeof(RowMeta)) + Lines(rows * sizeof(Key)) + Lines(rows * sizeof(uint16_t));
}

}  // namespace

CacheRows::CacheRows(std::shared_ptr<const RowLayout> layout, CacheMemory* memory,
                     CacheMemory::Holder* holder)
    : memory_(memory), holder_(holder) {
  Reset(std::move(layout));
}

void CacheRows::Reset(std::shared_ptr<const RowLayout> layout) {
  for (uint32_t block = 0; block < blocks_.size(); ++block) {
    if (blocks_[block] != nullptr) memory_->Free(holder_, blocks_[block], block_bytes_);
  }
  blocks_.clear();
  free_.clear();
  used_blocks_ = 0;
  hand_block_ = hand_row_ = 0;
  on_trial_ = 0;
  ahead_rows_.clear();
  if (ahead_ > 0) UnreserveAhead(std::exchange(ahead_, 0));
  layout_ = std::move(layout);
  row_bytes_ = layout_->row_bytes();
  const auto bytes = [&](uint32_t rows) { return Lines(rows * row_bytes_) + BytesBeside(rows); };
  const size_t usual = memory_->block_bytes();
  rows_per_block_ = static_cast<uint32_t>(
      usual / (row_bytes_ + sizeof(RowMeta) + sizeof(Key) + sizeof(uint16_t)));
  while (rows_per_block_ > kFewestRows && bytes(rows_per_block_) > usual) {
    --rows_per_block_;
  }
  rows_per_block_ = std::max(rows_per_block_, kFewestRows);
  block_bytes_ = std::max(usual, bytes(rows_per_block_));
  shift_ = 0;
  while ((uint32_t{1} << shift_) < rows_per_block_) ++shift_;
  mask_ = (uint32_t{1} << shift_) - 1;
  meta_offset_ = Lines(rows_per_block_ * row_bytes_);
  key_offset_ = meta_offset_ + Lines(rows_per_block_ * sizeof(RowMeta));
  state_offset_ = key_offset_ + Lines(rows_per_block_ * sizeof(Key));
}

CacheRows::~CacheRows() {
  UnreserveAhead(ahead_);
  for (char* block : blocks_) {
    if (block != nullptr) memory_->Free(holder_, block, block_bytes_);
  }
}

uint32_t CacheRows::Allocate(Key key_of_row) {
  const uint32_t row = free_.back();
  free_.pop_back();
  key(row) = key_of_row;
  set_state(row, kRowLive | kRowOnTrial | arrival_);
  ++on_trial_;
  return row;
}

void CacheRows::EndAhead() {
  bool began = false;
  const auto ended = [&](uint32_t row) {
    if (blocks_[row >> shift_] == nullptr) return true;  // its block was given back
    const uint16_t is = state(row);
    if ((is & kRowAhead) == 0) return true;
    if ((is & kRowUsed) == 0) return false;
    if (!began) BeginArrival();
    began = true;
    BeginTrial(row);
    return true;
  };
  ahead_rows_.erase(std::remove_if(ahead_rows_.begin(), ahead_rows_.end(), ended),
                    ahead_rows_.end());
}

void CacheRows::Free(uint32_t row) {
  on_trial_ -= (state(row) & kRowOnTrial) != 0;
  if ((state(row) & kRowAhead) != 0) UnmarkAhead(row);
  set_state(row, 0);
  free_.push_back(row);
}

bool CacheRows::Grow(bool beyond_budget) {
  auto place = std::find(blocks_.begin(), blocks_.end(), nullptr);
  const auto block = static_cast<uint32_t>(place - blocks_.begin());
  if (block >= (kNone >> shift_)) return false;
  try {
    if (place == blocks_.end()) place = blocks_.insert(place, nullptr);
    // Room is reserved here, since Free must not need memory.
    const size_t rows = capacity() + rows_per_block_;
    if (free_.capacity() < rows) free_.reserve(rows + rows / 2);
  } catch (const std::bad_alloc&) {
    return false;
  }
  char* memory = memory_->Allocate(holder_, block_bytes_, beyond_budget);
  if (memory == nullptr) return false;
  *place = memory;
  ++used_blocks_;
  beyond_ += beyond_budget;
  for (uint32_t i = rows_per_block_; i-- > 0;) {
    set_state((block << shift_) | i, 0);
    free_.push_back((block << shift_) | i);
  }
  return true;
}

template <typename Visit>
void CacheRows::Turn(size_t turns, const Visit& visit) {
  const size_t steps = turns * blocks_.size() * rows_per_block_;
  for (size_t step = 0; step < steps; ++step) {
    if (hand_row_ >= rows_per_block_) {
      hand_row_ = 0;
      ++hand_block_;
    }
    if (hand_block_ >= blocks_.size()) hand_block_ = 0;
    if (blocks_[hand_block_] == nullptr) {
      hand_row_ = rows_per_block_;
      step += rows_per_block_ - 1;
      continue;
    }
    const uint32_t row = (hand_block_ << shift_) | hand_row_++;
    const uint16_t is = state(row);
    if ((is & kRowLive) != 0 && (is & kNotEvictable) == 0 && !visit(row, is)) return;
  }
}

std::vector<uint32_t> CacheRows::Victims(size_t wanted) {
  std::vector<uint32_t> victims;
  const size_t most_on_trial = live() / kTrialPart;
  size_t on_trial = on_trial_;  // without rows that are victims already
  const auto take = [&](uint32_t row) {
    Mark(row, kRowPinned);  // the hand passes over it from here on
    victims.push_back(row);
    return victims.size() < wanted;
  };
  Turn(2, [&](uint32_t row, uint16_t is) {
    const bool is_tried = (is & kRowOnTrial) != 0;
    // While too many rows are on trial, rows that have passed their trial stay; otherwise rows on
    // trial stay. New rows take the places of rows that left, so the hand comes to them in turn.
    if (is_tried != (on_trial > most_on_trial)) return true;
    if ((is & kRowAhead) != 0) {
      BeginTrial(row);
      return true;
    }
    if ((is & kRowUsed) != 0) {
      set_state(row, is & ~(kRowUsed | kRowOnTrial));
      on_trial_ -= is_tried;
      on_trial -= is_tried;
      return true;
    }
    on_trial -= is_tried;
    return take(row);
  });
  if (victims.size() < wanted) {
    Turn(1, [&](uint32_t row, uint16_t) { return take(row); });
  }
  for (uint32_t row : victims) Unmark(row, kRowPinned);
  return victims;
}

uint32_t CacheRows::SpillableBlock() {
  for (size_t tried = 0; tried < blocks_.size(); ++tried) {
    if (hand_block_ >= blocks_.size()) hand_block_ = 0;
    const uint32_t block = hand_block_++;
    hand_row_ = 0;
    if (blocks_[block] == nullptr) continue;
    bool evictable = true;
    ForEachOfBlock(block, [&](uint32_t row) { evictable &= (state(row) & kNotEvictable) == 0; });
    if (evictable) return block;
  }
  return kNone;
}

void CacheRows::Release(uint32_t block) {
  free_.erase(std::remove_if(free_.begin(), free_.end(),
                             [&](uint32_t row) { return row >> shift_ == block; }),
              free_.end());
  memory_->Free(holder_, blocks_[block], block_bytes_);
  blocks_[block] = nullptr;
  --used_blocks_;
}

}  // namespace sok
