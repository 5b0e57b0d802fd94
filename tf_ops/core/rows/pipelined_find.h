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

// Is FindRange, made once for rows of which some are given and once for none, which is faster.
template <bool kGiven, typename Index, typename Shard, typename HashOf, typename ShardOf,
          typename Found, typename Absent>
void FindGroups(const Key* keys, size_t begin, size_t end, const float* const* given,
                int prefetch_floats, const HashOf& hash_of, const ShardOf& shard_of,
                const Found& found, const Absent& absent) {
  // Groups of keys pass through four stages, each a group after the one before, so that reads of
  // control bytes, of entries and of rows are under way all the time. Which keys are there goes on
  // as bits: a branch on each could not be predicted where many are absent.
  constexpr size_t kKeys = 32, kStages = 4;
  struct Pending {
    uint64_t hash;
    const Shard* shard;
    const float* row;
    uint32_t slot;  // its place, then its candidate; once resolved, the row's number
  };
  struct Group {
    size_t first, size;
    uint64_t wanted;  // bits of the keys whose rows are not given
    uint64_t there;   // bits of the keys that have a row
    Pending keys[kKeys];

    uint64_t all() const { return (uint64_t{1} << size) - 1; }
  };
  Group ring[kStages];
  const auto take_given = [&](Group& group) {
    group.wanted = group.all();
    if constexpr (!kGiven) return;
    uint64_t wanted = 0;
    for (size_t j = 0; j < group.size; ++j) {
      wanted |= uint64_t{given[group.first + j] == nullptr} << j;
    }
    ForEachBit(group.all() ^ wanted, [&](size_t j) {
      const float* row = given[group.first + j];
      group.keys[j] = {0, nullptr, row, Index::kNone};
      PrefetchForCopy(row, prefetch_floats);
    });
    group.wanted = wanted;
  };
  const auto for_wanted = [&](const Group& group, const auto& fn) {
    if constexpr (kGiven) {
      ForEachBit(group.wanted, fn);
    } else {
      for (size_t j = 0; j < group.size; ++j) fn(j);
    }
  };
  const auto hash = [&](Group& group) {
    for_wanted(group, [&](size_t j) {
      Pending& key = group.keys[j];
      key.hash = hash_of(keys[group.first + j]);
      key.shard = &shard_of(key.hash);
      key.slot = key.shard->index.Place(key.hash);
    });
  };
  const auto probe = [&](Group& group) {
    uint64_t there = 0;
    for_wanted(group, [&](size_t j) {
      Pending& key = group.keys[j];
      key.slot = key.shard->index.Candidate(key.hash, key.slot);
      there |= uint64_t{key.slot != Index::kNone} << j;
    });
    group.there = there;
  };
  const auto resolve = [&](Group& group) {
    ForEachBit(group.there, [&](size_t j) {
      Pending& key = group.keys[j];
      key.slot = key.shard->index.Resolve(keys[group.first + j], key.hash, key.slot);
      if (key.slot == Index::kNone) {
        group.there ^= uint64_t{1} << j;
        return;
      }
      key.row = key.shard->rows.row(key.slot);
      PrefetchForCopy(key.row, prefetch_floats);
    });
  };
  const auto report = [&](const Group& group) {
    ForEachBit(group.there | (group.all() ^ group.wanted), [&](size_t j) {
      const Pending& key = group.keys[j];
      found(group.first + j, key.shard, key.slot, key.row);
    });
    ForEachBit(group.wanted ^ group.there, [&](size_t j) { absent(group.first + j); });
  };
  const size_t groups = (end - begin + kKeys - 1) / kKeys;
  for (size_t g = 0; g < groups + kStages - 1; ++g) {
    if (g < groups) {
      Group& group = ring[g % kStages];
      group.first = begin + g * kKeys;
      group.size = std::min(kKeys, end - group.first);
      take_given(group);
      hash(group);
    }
    if (g >= 1 && g - 1 < groups) probe(ring[(g - 1) % kStages]);
    if (g >= 2 && g - 2 < groups) resolve(ring[(g - 2) % kStages]);
    if (g >= 3) report(ring[(g - 3) % kStages]);
  }
}

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
    FindGroups<false, Index, Shard>(keys, begin, end, given, prefetch_floats, hash_of, shard_of,
                                    found, absent);
  } else {
    FindGroups<true, Index, Shard>(keys, begin, end, given, prefetch_floats, hash_of, shard_of,
                                   found, absent);
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
