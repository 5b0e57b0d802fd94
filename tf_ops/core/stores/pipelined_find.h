// How a batch of keys is found in sharded indexes: the reads of many keys overlap.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/stores/row_copy.h"
#include "core/stores/shard_partition.h"
#include "core/types.h"

namespace sok {

// Calls found(i, shard, number, row) for i in [begin, end) in order; of a key without a row, number
// is Index::kNone and row null. hash_of(key) gives its hash, shard_of(hash) a const Shard&, which
// has an `index` and `rows`. Every shard must be locked.
template <typename Index, typename Shard, typename HashOf, typename ShardOf, typename Found>
void FindRange(const Key* keys, size_t begin, size_t end, int prefetch_floats,
               const HashOf& hash_of, const ShardOf& shard_of, const Found& found) {
  // A key passes through four stages, each kAhead keys after the one before, so that reads of
  // control bytes, of entries and of rows are under way all the time.
  constexpr size_t kAhead = 8, kRing = 32;
  static_assert(kRing > 3 * kAhead && (kRing & (kRing - 1)) == 0);
  struct Pending {
    uint64_t hash;
    const Shard* shard;
    const float* row;
    uint32_t slot;  // later: the row's number
  };
  Pending ring[kRing];
  const auto at = [&](size_t i) -> Pending& { return ring[i & (kRing - 1)]; };
  const size_t n = end - begin;
  for (size_t i = 0; i < n + 3 * kAhead; ++i) {
    if (i < n) {
      Pending& key = at(i);
      key.hash = hash_of(keys[begin + i]);
      key.shard = &shard_of(key.hash);
      key.shard->index.PrefetchControl(key.hash);
    }
    if (i >= kAhead && i - kAhead < n) {
      Pending& key = at(i - kAhead);
      key.slot = key.shard->index.Candidate(key.hash);
    }
    if (i >= 2 * kAhead && i - 2 * kAhead < n) {
      Pending& key = at(i - 2 * kAhead);
      const Key value = keys[begin + i - 2 * kAhead];
      key.slot = key.shard->index.Resolve(value, key.hash, key.slot);
      key.row = key.slot == Index::kNone ? nullptr : key.shard->rows.row(key.slot);
      if (key.row != nullptr) PrefetchForCopy(key.row, prefetch_floats);
    }
    if (i >= 3 * kAhead) {
      const Pending& key = at(i - 3 * kAhead);
      found(begin + i - 3 * kAhead, *key.shard, key.slot, key.row);
    }
  }
}

// numbers[i] is the row of one shard's entries, or Index::kNone. The shard must be locked.
template <typename Index, typename HashOf>
void FindEntries(const Index& index, const ShardEntry* entries, size_t n, const HashOf& hash_of,
                 uint32_t* numbers) {
  constexpr size_t kBlock = 64;  // keys whose index reads overlap
  uint64_t hashes[kBlock];
  for (size_t base = 0; base < n; base += kBlock) {
    const size_t m = std::min(kBlock, n - base);
    for (size_t i = 0; i < m; ++i) {
      hashes[i] = hash_of(entries[base + i].key);
      index.PrefetchControl(hashes[i]);
    }
    for (size_t i = 0; i < m; ++i) numbers[base + i] = index.Candidate(hashes[i]);
    for (size_t i = 0; i < m; ++i) {
      numbers[base + i] = index.Resolve(entries[base + i].key, hashes[i], numbers[base + i]);
    }
  }
}

}  // namespace sok
