// The dense gradient of a weight whose positions come in blocks: a block's elements are added
// together.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "core/bags/contributions.h"
#include "core/bags/gradient.h"
#include "core/base/grouping.h"
#include "core/base/types.h"

namespace sok {

// Adds values (n) to `to`. The usual lengths of blocks are constants, for which compilers unroll
// the loop.
template <typename Sum>
void AddTo(Sum* to, const Sum* values, int n) {
  const auto add = [to, values](auto count) {
    for (int j = 0; j < count; ++j) to[j] += values[j];
  };
  switch (n) {
    case 8:
      return add(std::integral_constant<int, 8>());
    case 16:
      return add(std::integral_constant<int, 16>());
    case 32:
      return add(std::integral_constant<int, 32>());
    default:
      return add(n);
  }
}

// Computes the gradient of a weight by blocks. Each range of positions has one writer, as in
// PositionPartition. The part of a block that lies beyond the end of its range goes to the range's
// halo, which is added to the next range when all ranges are done.
template <typename Sum>
class BlockGradient {
 public:
  // Returns whether blocks are long enough to be worth it, and fit into ranges of 1 << shift
  // positions.
  static bool Suits(const BagGradient<Sum>& gradient, int shift) {
    const PositionMap& positions = gradient.positions;
    return gradient.mode != BagMode::kMax && positions.block_size() >= 4 &&
           positions.block_size() <= std::min(positions.size(), int64_t{1} << shift) &&
           positions.blocks() <= kMaxBlocks;
  }

  // Both arguments must outlive this object.
  BlockGradient(const BagGradient<Sum>& gradient, const EntryGradients<Sum>& entry_gradients,
                int shift)
      : gradient_(gradient),
        positions_(gradient.positions),
        entry_gradients_(entry_gradients),
        shift_(shift),
        shards_(static_cast<uint32_t>(((positions_.size() - 1) >> shift) + 1)),
        halo_(positions_.block_size() - 1),
        halos_(size_t{shards_} * halo_, Sum{0}) {}

  void Run(Sum* sums, const ParallelFor& parallel_for) {
    const int64_t entries = gradient_.bags.entries();
    int64_t begin = 0;
    do {
      const int64_t end = std::min(begin + kRoundBlocks / positions_.blocks(), entries);
      Partition(begin, end, parallel_for);
      const int64_t cost = (end - begin) * positions_.dim() / shards_ + 1000;
      parallel_for(shards_, cost, [&](int64_t first, int64_t last) {
        for (int64_t s = first; s < last; ++s) Add(static_cast<uint32_t>(s), begin == 0, sums);
      });
      begin = end;
    } while (begin < entries);
    for (uint32_t shard = 0; shard < shards_; ++shard) {
      for (int j = 0; j < halo_; ++j) {
        sums[(SliceEnd(shard) + j) % positions_.size()] += halos_[size_t{shard} * halo_ + j];
      }
    }
  }

 private:
  static constexpr int kBlockBits = 12;
  static constexpr int64_t kMaxBlocks = int64_t{1} << kBlockBits;
  static constexpr int64_t kChunkBlocks = 4096;
  static constexpr int64_t kRoundBlocks = int64_t{1} << 19;  // entries of a round fit in 20 bits

  struct Record {
    uint32_t local;
    uint32_t place;  // entry of the round << kBlockBits | block
  };

  int64_t SliceEnd(uint32_t shard) const {
    return std::min(positions_.size(), (int64_t{shard} + 1) << shift_);
  }

  void Partition(int64_t begin, int64_t end, const ParallelFor& parallel_for) {
    const int blocks = positions_.blocks();
    round_begin_ = begin;
    chunk_entries_ = std::max<int64_t>(1, kChunkBlocks / blocks);
    chunks_ = (end - begin + chunk_entries_ - 1) / chunk_entries_;
    bag_of_.resize(end - begin);
    records_.resize(chunks_ * chunk_entries_ * blocks);
    starts_.resize(chunks_ * (shards_ + 1));
    parallel_for(chunks_, 4 * kChunkBlocks, [&](int64_t first, int64_t last) {
      std::vector<uint64_t> bases(chunk_entries_ * blocks);
      for (int64_t chunk = first; chunk < last; ++chunk) {
        const int64_t from = begin + chunk * chunk_entries_;
        SortChunk(chunk, from, std::min(from + chunk_entries_, end), bases.data());
      }
    });
  }

  void SortChunk(int64_t chunk, int64_t begin, int64_t end, uint64_t* bases) {
    const Bags& bags = gradient_.bags;
    const int blocks = positions_.blocks();
    CountingSort sort(&starts_[chunk * (shards_ + 1)], shards_);
    BagFinder finder(bags, begin);
    for (int64_t e = begin; e < end; ++e) {
      if (bags.padded(e)) continue;
      bag_of_[e - round_begin_] = finder.BagOf(e);
      uint64_t* of_entry = bases + (e - begin) * blocks;
      positions_.Bases(static_cast<uint64_t>(bags.ids[e]), of_entry);
      for (int k = 0; k < blocks; ++k) sort.Count(of_entry[k] >> shift_);
    }
    sort.Start();
    Record* records = &records_[chunk * chunk_entries_ * blocks];
    const uint64_t mask = (uint64_t{1} << shift_) - 1;
    for (int64_t e = begin; e < end; ++e) {
      if (bags.padded(e)) continue;
      const uint64_t* of_entry = bases + (e - begin) * blocks;
      const auto entry = static_cast<uint32_t>(e - round_begin_) << kBlockBits;
      for (int k = 0; k < blocks; ++k) {
        records[sort.Take(of_entry[k] >> shift_)] = {static_cast<uint32_t>(of_entry[k] & mask),
                                                     entry | static_cast<uint32_t>(k)};
      }
    }
    sort.Finish();
  }

  void Add(uint32_t shard, bool first_round, Sum* sums) {
    const int64_t low = int64_t{shard} << shift_;
    const auto length = static_cast<int>(SliceEnd(shard) - low);
    Sum* slice = sums + low;
    Sum* halo = halos_.data() + size_t{shard} * halo_;
    if (first_round) std::fill_n(slice, length, Sum{0});
    const int block_size = positions_.block_size();
    const bool plain = gradient_.scales == nullptr && !positions_.sign();
    std::vector<Sum> scaled(block_size);
    std::vector<uint64_t> signs(positions_.sign_words());
    for (int64_t chunk = 0; chunk < chunks_; ++chunk) {
      const uint32_t* starts = &starts_[chunk * (shards_ + 1)];
      const Record* records = &records_[chunk * chunk_entries_ * positions_.blocks()];
      for (uint32_t i = starts[shard]; i < starts[shard + 1]; ++i) {
        const int64_t entry = records[i].place >> kBlockBits;
        const int begin = static_cast<int>(records[i].place & (kMaxBlocks - 1)) * block_size;
        const int n = std::min(block_size, positions_.dim() - begin);
        const Sum* values = entry_gradients_.of_bag(bag_of_[entry]) + begin;
        if (!plain) {
          Scale(round_begin_ + entry, begin, n, values, signs.data(), scaled.data());
          values = scaled.data();
        }
        const auto local = static_cast<int>(records[i].local);
        const int inside = std::min(n, length - local);
        AddTo(slice + local, values, inside);
        for (int j = inside; j < n; ++j) halo[j - inside] += values[j];
      }
    }
  }

  void Scale(int64_t entry, int begin, int n, const Sum* values, uint64_t* signs,
             Sum* scaled) const {
    const Sum scale = gradient_.scales == nullptr ? Sum{1} : gradient_.scales[entry];
    for (int j = 0; j < n; ++j) scaled[j] = values[j] * scale;
    if (!positions_.sign()) return;
    positions_.SignWords(static_cast<uint64_t>(gradient_.bags.ids[entry]), signs);
    ApplySigns(signs, begin, n, scaled);
  }

  const BagGradient<Sum>& gradient_;
  const PositionMap& positions_;
  const EntryGradients<Sum>& entry_gradients_;
  const int shift_;
  const uint32_t shards_;
  const int halo_;           // positions
  std::vector<Sum> halos_;   // (shards, halo)
  int64_t round_begin_ = 0;  // entry
  int64_t chunk_entries_ = 0;
  int64_t chunks_ = 0;
  std::vector<int64_t> bag_of_;   // (entries of the round); unset for padding
  std::vector<Record> records_;   // (chunks, chunk_entries * blocks)
  std::vector<uint32_t> starts_;  // (chunks, shards + 1)
};

}  // namespace sok
