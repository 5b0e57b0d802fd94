// From a key of a known range to the number of its row, by position: no hash and no probing.
#pragma once

#include <cstdint>
#include <string>

#include "core/page_memory.h"
#include "core/status.h"
#include "core/stores/index_config.h"
#include "core/types.h"

namespace sok {

// The index of a table over the keys [0, capacity * owners), of which this process owns those with
// key % owners == owner; the position of a key is key / owners. Same interface as HashIndex, whose
// comments hold here. Not thread-safe. Keys that are out of range must have been refused before.
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
        row_plus_one_(reinterpret_cast<uint32_t*>(memory_.data())) {}

  static uint64_t Hash(Key key, const IndexConfig& config) {
    return config.owners == 1 ? key : key / config.owners;  // divisions are slow
  }
  static uint32_t ShardOf(uint64_t hash, int shard_bits) {
    return static_cast<uint32_t>(hash & ((uint64_t{1} << shard_bits) - 1));
  }

  void PrefetchControl(uint64_t hash) const {
    __builtin_prefetch(row_plus_one_ + (hash >> shard_bits_));
  }
  uint32_t Candidate(uint64_t hash) const { return Find(0, hash); }
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
  }

  uint32_t Erase(Key key, uint64_t hash) {
    const uint32_t row = Find(key, hash);
    if (row == kNone) return kNone;
    row_plus_one_[hash >> shard_bits_] = 0;
    --size_;
    return row;
  }

  uint32_t size() const { return size_; }
  size_t bytes() const { return memory_.bytes(); }

  template <typename Fn>
  void ForEach(const Fn& fn) const {
    if (size_ == 0) return;
    for (uint64_t i = 0; i < positions_; ++i) {
      if (row_plus_one_[i] == 0) continue;
      const uint64_t position = (i << shard_bits_) | shard_;
      fn(position * owners_ + owner_, row_plus_one_[i] - 1);
    }
  }

 private:
  uint64_t owners_, owner_;
  int shard_bits_;
  uint32_t shard_;
  uint64_t positions_;
  uint32_t size_ = 0;
  PageBuffer memory_;
  uint32_t* row_plus_one_;
};

}  // namespace sok
