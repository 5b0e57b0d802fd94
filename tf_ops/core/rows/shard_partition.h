// Groups the items of a batch by shard, keeping their order within each.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/base/types.h"

namespace sok {

struct ShardEntry {
  Key key;
  uint32_t batch;
  uint32_t position;  // the key's place in the batch
};

// The items of a batch by shard, made by a counting sort in two parallel passes over blocks. The
// object can be used again, and keeps its memory.
class ShardPartition {
 public:
  struct Source {
    const Key* keys;
    size_t n;
    const uint32_t* positions =
        nullptr;  // (n) the position that entries have for each key; null: its index
  };

  // Sorts the sources. shard_of(key) must be below shards. Each source holds fewer than 2^32 keys.
  template <typename ShardOf>
  void Build(const std::vector<Source>& sources, uint32_t shards, const ShardOf& shard_of,
             const ParallelFor& parallel_for) {
    blocks_.clear();
    size_t total = 0;
    for (uint32_t s = 0; s < sources.size(); ++s) {
      total += sources[s].n;
      for (size_t begin = 0; begin < sources[s].n; begin += kBlock) {
        blocks_.push_back({sources[s].keys, sources[s].positions, s, begin,
                           std::min(begin + kBlock, sources[s].n)});
      }
    }
    entries_.resize(total);
    offsets_.assign(blocks_.size() * shards, 0);
    const auto count = static_cast<int64_t>(blocks_.size());
    parallel_for(count, kBlock * 2, [&](int64_t first, int64_t last) {
      for (int64_t b = first; b < last; ++b) {
        uint64_t* counts = &offsets_[b * shards];
        const Block& block = blocks_[b];
        for (size_t i = block.begin; i < block.end; ++i) ++counts[shard_of(block.keys[i])];
      }
    });
    starts_.resize(shards);
    uint64_t next = 0;
    for (uint32_t shard = 0; shard < shards; ++shard) {
      starts_[shard] = next;
      for (int64_t b = 0; b < count; ++b) {
        next += std::exchange(offsets_[b * shards + shard], next);
      }
    }
    ends_.assign(starts_.begin() + 1, starts_.end());
    ends_.push_back(next);
    parallel_for(count, kBlock * 4, [&](int64_t first, int64_t last) {
      for (int64_t b = first; b < last; ++b) {
        uint64_t* to = &offsets_[b * shards];
        const Block& block = blocks_[b];
        for (size_t i = block.begin; i < block.end; ++i) {
          const Key key = block.keys[i];
          const uint32_t position =
              block.positions == nullptr ? static_cast<uint32_t>(i) : block.positions[i];
          entries_[to[shard_of(key)]++] = {key, block.source, position};
        }
      }
    });
  }

  // Takes the entries of several partitions over the same shards. In each shard the entries of a
  // part come after those of the part before, and their batch is the number of the part.
  void Join(const std::vector<const ShardPartition*>& parts, const ParallelFor& parallel_for) {
    const uint32_t shards = parts.front()->shards();
    starts_.resize(shards);
    ends_.resize(shards);
    uint64_t next = 0;
    for (uint32_t shard = 0; shard < shards; ++shard) {
      starts_[shard] = next;
      for (const ShardPartition* part : parts) next += part->size(shard);
      ends_[shard] = next;
    }
    entries_.resize(next);
    parallel_for(shards, kBlock, [&](int64_t first, int64_t last) {
      for (int64_t shard = first; shard < last; ++shard) {
        ShardEntry* to = entries(static_cast<uint32_t>(shard));
        for (uint32_t p = 0; p < parts.size(); ++p) {
          for (size_t i = 0; i < parts[p]->size(shard); ++i) {
            *to = parts[p]->begin(shard)[i];
            (to++)->batch = p;
          }
        }
      }
    });
  }

  uint32_t shards() const { return static_cast<uint32_t>(starts_.size()); }
  const ShardEntry* begin(uint32_t shard) const { return entries_.data() + starts_[shard]; }
  size_t size(uint32_t shard) const { return ends_[shard] - starts_[shard]; }
  size_t total() const {
    size_t entries = 0;
    for (uint32_t shard = 0; shard < shards(); ++shard) entries += size(shard);
    return entries;
  }

  // These two are for callers that keep only the first n entries of a shard.
  ShardEntry* entries(uint32_t shard) { return entries_.data() + starts_[shard]; }
  void Shorten(uint32_t shard, size_t n) { ends_[shard] = starts_[shard] + n; }
  // Returns the number of a shard's first entry among those that Build has made.
  uint64_t offset(uint32_t shard) const { return starts_[shard]; }

 private:
  static constexpr size_t kBlock = 8192;
  struct Block {
    const Key* keys;
    const uint32_t* positions;
    uint32_t source;
    size_t begin, end;
  };
  std::vector<Block> blocks_;
  std::vector<uint64_t> offsets_;        // (blocks, shards)
  std::vector<uint64_t> starts_, ends_;  // (shards)
  std::vector<ShardEntry> entries_;
};

}  // namespace sok
