// Finds the number of a row by its key, in a known range of keys. A key's position is its place,
// without hash and probing.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/page_memory.h"
#include "core/base/status.h"
#include "core/base/types.h"
#include "core/rows/index_config.h"

namespace sok {

// The index of a table over the keys [0, capacity * owners), of which this process owns those with
// key % owners == owner; the position of a key is key / owners. The interface is that of HashIndex,
// whose comments hold here. Not thread-safe. Keys that are out of range must have been refused
// before.
class DirectIndex {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  DirectIndex(const IndexConfig& config, uint32_t shard)
      : owners_(config.owners),
        owner_(config.owner),
        shard_bits_(config.shard_bits),
        shard_(shard),
        positions_((config.capacity >> config.shard_bits) + 1),
        memory_(positions_ * sizeof(uint32_t), false),  // zero pages cost nothing until written
        row_plus_one_(reinterpret_cast<uint32_t*>(memory_.data())),
        page_positions_(memory_.page_bytes() / sizeof(uint32_t)),
        pages_(memory_.bytes() / memory_.page_bytes()) {}

  static uint64_t Hash(Key key, const IndexConfig& config) {
    return config.owners == 1 ? key : key / config.owners;  // divisions are slow
  }
  static uint32_t ShardOf(uint64_t hash, int shard_bits) {
    return static_cast<uint32_t>(hash & ((uint64_t{1} << shard_bits) - 1));
  }

  uint32_t Place(uint64_t hash) const {
    __builtin_prefetch(row_plus_one_ + (hash >> shard_bits_));
    return 0;
  }
  uint32_t Candidate(uint64_t hash, uint32_t /*place*/) const { return Find(0, hash); }
  uint32_t Resolve(Key /*key*/, uint64_t /*hash*/, uint32_t candidate) const { return candidate; }
  uint32_t Find(Key /*key*/, uint64_t hash) const {
    if (row_plus_one_ == nullptr) return kNone;
    return row_plus_one_[hash >> shard_bits_] - 1;  // 0 - 1 is kNone
  }

  Status Reserve(uint32_t /*more*/) {
    if (row_plus_one_ != nullptr) return Status();
    return Status(Code::kResourceExhausted, "no memory for the index of a table with " +
                                                std::to_string(positions_) + " positions a shard");
  }

  void Insert(Key /*key*/, uint64_t hash, uint32_t row) {
    row_plus_one_[hash >> shard_bits_] = row + 1;
    ++size_;
    Page& page = pages_[(hash >> shard_bits_) / page_positions_];
    ++page.keys;
    resident_ += !page.resident;
    page.resident = true;
  }

  uint32_t Erase(Key key, uint64_t hash) {
    const uint32_t row = Find(key, hash);
    if (row == kNone) return kNone;
    row_plus_one_[hash >> shard_bits_] = 0;
    --size_;
    const uint64_t page = (hash >> shard_bits_) / page_positions_;
    if (--pages_[page].keys == 0) emptied_.push_back(page);
    return row;
  }

  // Gives pages without keys back to the system.
  void Trim(uint32_t /*erased*/) {
    for (const uint64_t p : emptied_) {
      Page& page = pages_[p];
      if (page.keys > 0 || !page.resident) continue;
      memory_.Release(p * memory_.page_bytes(), memory_.page_bytes());
      page.resident = false;
      --resident_;
    }
    emptied_ = {};
  }

  uint32_t size() const { return size_; }
  // Returns the memory of the pages that keys were written to.
  size_t bytes() const { return resident_ * memory_.page_bytes(); }

  template <typename Fn>
  void ForEach(const Fn& fn) const {
    if (size_ == 0) return;
    for (uint64_t p = 0; p < pages_.size(); ++p) {
      if (pages_[p].keys == 0) continue;
      const uint64_t end = std::min(positions_, (p + 1) * page_positions_);
      for (uint64_t i = p * page_positions_; i < end; ++i) {
        if (row_plus_one_[i] == 0) continue;
        const uint64_t position = (i << shard_bits_) | shard_;
        fn(position * owners_ + owner_, row_plus_one_[i] - 1);
      }
    }
  }

 private:
  struct Page {
    uint32_t keys : 31;
    uint32_t resident : 1;
  };

  uint64_t owners_, owner_;
  int shard_bits_;
  uint32_t shard_;
  uint64_t positions_;
  uint32_t size_ = 0;
  PageBuffer memory_;
  uint32_t* row_plus_one_;
  uint64_t page_positions_;
  std::vector<Page> pages_;
  std::vector<uint64_t> emptied_;  // pages that have lost their last key
  uint64_t resident_ = 0;          // pages
};

}  // namespace sok
