// Finds a batch of keys in sharded indexes, so that the reads of many keys overlap.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/base/types.h"
#include "core/rows/row_copy.h"
#include "core/rows/shard_partition.h"

namespace sok {

// Calls fn(j) for every bit j that is set.
template <typename Fn>
void ForEachBit(uint64_t bits, const Fn& fn) {
  for (; bits != 0; bits &= bits - 1) fn(static_cast<size_t>(__builtin_ctzll(bits)));
}

// Finds keys block by block. The blocks pass through four stages, each one block after the other,
// so that reads of control bytes, of entries and of rows are under way all the time. Stages pass on
// as bits which keys exist: if many are absent, a branch on each key would be mispredicted. kGiven
// is true for batches in which some rows are given; without them the code is faster.
template <bool kGiven, typename Index, typename Shard, typename HashOf, typename ShardOf>
class PipelinedFind {
 public:
  // The arguments are those of FindRange.
  PipelinedFind(const Key* keys, const float* const* given, int prefetch_floats,
                const HashOf& hash_of, const ShardOf& shard_of)
      : keys_(keys),
        given_(given),
        prefetch_floats_(prefetch_floats),
        hash_of_(hash_of),
        shard_of_(shard_of) {}

  template <typename Found, typename Absent>
  void Run(size_t begin, size_t end, const Found& found, const Absent& absent) {
    Block ring[kStages];
    const size_t blocks = (end - begin + kKeys - 1) / kKeys;
    for (size_t b = 0; b < blocks + kStages - 1; ++b) {
      if (b < blocks) {
        Block& block = ring[b % kStages];
        block.first = begin + b * kKeys;
        block.size = std::min(kKeys, end - block.first);
        TakeGivenRows(block);
        Hash(block);
      }
      if (b >= 1 && b - 1 < blocks) Probe(ring[(b - 1) % kStages]);
      if (b >= 2 && b - 2 < blocks) Resolve(ring[(b - 2) % kStages]);
      if (b >= 3) Report(ring[(b - 3) % kStages], found, absent);
    }
  }

 private:
  static constexpr size_t kKeys = 16, kStages = 4;
  struct Pending {
    uint64_t hash;
    const Shard* shard;
    const float* row;
    uint32_t at;  // its place, then its candidate; once resolved, the row's number
  };
  struct Block {
    size_t first, size;
    uint64_t wanted;  // bits of the keys whose rows are not given
    uint64_t there;   // bits of the keys that have a row
    Pending keys[kKeys];

    uint64_t all() const { return (uint64_t{1} << size) - 1; }
  };

  template <typename Fn>
  static void ForWanted(const Block& block, const Fn& fn) {
    if constexpr (kGiven) {
      ForEachBit(block.wanted, fn);
    } else {
      for (size_t j = 0; j < block.size; ++j) fn(j);
    }
  }

  void TakeGivenRows(Block& block) const {
    block.wanted = block.all();
    if constexpr (!kGiven) return;
    uint64_t wanted = 0;
    for (size_t j = 0; j < block.size; ++j) {
      wanted |= uint64_t{given_[block.first + j] == nullptr} << j;
    }
    ForEachBit(block.all() ^ wanted, [&](size_t j) {
      const float* row = given_[block.first + j];
      block.keys[j] = {0, nullptr, row, Index::kNone};
      PrefetchForCopy(row, prefetch_floats_);
    });
    block.wanted = wanted;
  }

  void Hash(Block& block) const {
    ForWanted(block, [&](size_t j) {
      Pending& key = block.keys[j];
      key.hash = hash_of_(keys_[block.first + j]);
      key.shard = &shard_of_(key.hash);
      key.at = key.shard->index.Place(key.hash);
    });
  }

  static void Probe(Block& block) {
    uint64_t there = 0;
    ForWanted(block, [&](size_t j) {
      Pending& key = block.keys[j];
      key.at = key.shard->index.Candidate(key.hash, key.at);
      there |= uint64_t{key.at != Index::kNone} << j;
    });
    block.there = there;
  }

  void Resolve(Block& block) const {
    ForEachBit(block.there, [&](size_t j) {
      Pending& key = block.keys[j];
      key.at = key.shard->index.Resolve(keys_[block.first + j], key.hash, key.at);
      if (key.at == Index::kNone) {
        block.there ^= uint64_t{1} << j;
        return;
      }
      key.row = key.shard->rows.row(key.at);
      PrefetchForCopy(key.row, prefetch_floats_);
    });
  }

  template <typename Found, typename Absent>
  static void Report(const Block& block, const Found& found, const Absent& absent) {
    ForEachBit(block.there | (block.all() ^ block.wanted), [&](size_t j) {
      const Pending& key = block.keys[j];
      found(block.first + j, key.shard, key.at, key.row);
    });
    ForEachBit(block.wanted ^ block.there, [&](size_t j) { absent(block.first + j); });
  }

  const Key* const keys_;
  const float* const* const given_;
  const int prefetch_floats_;
  const HashOf& hash_of_;
  const ShardOf& shard_of_;
};

// Calls found(i, shard, number, row) for each i in [begin, end) whose key has a row, and absent(i)
// for the others; each of the two in order. Where given[i] is not null, that is the row, and shard
// is null; given itself may be null. hash_of(key) returns a key's hash, shard_of(hash) a const
// Shard&, which has an `index` and `rows`. Every shard must be locked.
template <typename Index, typename Shard, typename HashOf, typename ShardOf, typename Found,
          typename Absent>
void FindRange(const Key* keys, size_t begin, size_t end, const float* const* given,
               int prefetch_floats, const HashOf& hash_of, const ShardOf& shard_of,
               const Found& found, const Absent& absent) {
  if (given == nullptr) {
    PipelinedFind<false, Index, Shard, HashOf, ShardOf>(keys, given, prefetch_floats, hash_of,
                                                        shard_of)
        .Run(begin, end, found, absent);
  } else {
    PipelinedFind<true, Index, Shard, HashOf, ShardOf>(keys, given, prefetch_floats, hash_of,
                                                       shard_of)
        .Run(begin, end, found, absent);
  }
}

// Finds the rows of one shard's entries: numbers[i] becomes a row, or Index::kNone. The shard must
// be locked.
template <typename Index, typename HashOf>
void FindEntries(const Index& index, const ShardEntry* entries, size_t n, const HashOf& hash_of,
                 uint32_t* numbers) {
  constexpr size_t kBlock = 64;  // keys whose index reads overlap
  uint64_t hashes[kBlock];
  for (size_t base = 0; base < n; base += kBlock) {
    const size_t m = std::min(kBlock, n - base);
    for (size_t i = 0; i < m; ++i) {
      hashes[i] = hash_of(entries[base + i].key);
      numbers[base + i] = index.Place(hashes[i]);
    }
    for (size_t i = 0; i < m; ++i) {
      numbers[base + i] = index.Candidate(hashes[i], numbers[base + i]);
    }
    for (size_t i = 0; i < m; ++i) {
      numbers[base + i] = index.Resolve(entries[base + i].key, hashes[i], numbers[base + i]);
    }
  }
}

}  // namespace sok
