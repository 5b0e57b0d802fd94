#include "core/partition/partition.h"

#include <algorithm>
#include <cstring>

#include "core/base/bfloat16.h"
#include "core/base/grouping.h"
#include "core/base/hash.h"
#include "core/rows/shard_partition.h"

namespace sok {
namespace {

constexpr uint32_t kShards = 32;

// Holds the distinct keys of one shard, in order of first appearance.
struct ShardKeys {
  std::vector<Key> keys;
  std::vector<uint32_t> owners;     // (keys)
  std::vector<uint32_t> of_entry;   // (entries) position in keys
  std::vector<uint32_t> per_owner;  // number of keys, then the place of its next key
};

uint32_t ShardOf(Key key) {
  return static_cast<uint32_t>(Mix64(key + 0x9e3779b97f4a7c15ull) >> 59);
}

void FindDistinct(const ShardEntry* entries, size_t n, ShardKeys* found) {
  DistinctIndex index;
  index.Reset(n);
  found->of_entry.resize(n);
  for (size_t i = 0; i < n; ++i) {
    const Key key = entries[i].key;
    found->of_entry[i] = index.FindOrAdd(key, [&](uint32_t number) { return found->keys[number]; });
    if (found->of_entry[i] == found->keys.size()) found->keys.push_back(key);
  }
}

}  // namespace

Partition UniqueAndPartition(const Key* keys, size_t n, uint32_t owners, int32_t* inverse,
                             const ParallelFor& parallel_for) {
  const auto owner_of = [owners](Key key) { return OwnerOf(key, owners); };
  return UniqueAndPartition(keys, n, owners, owner_of, inverse, parallel_for);
}

Partition UniqueAndPartition(const Key* keys, size_t n, uint32_t owners,
                             const std::function<uint32_t(Key key)>& owner_of, int32_t* inverse,
                             const ParallelFor& parallel_for) {
  ShardPartition by_shard;
  by_shard.Build({{keys, n}}, kShards, ShardOf, parallel_for);
  std::vector<ShardKeys> shards(kShards);
  const int64_t shard_cost = static_cast<int64_t>(n) + 1000;
  parallel_for(kShards, shard_cost, [&](int64_t first, int64_t last) {
    for (int64_t s = first; s < last; ++s) {
      ShardKeys& shard = shards[s];
      FindDistinct(by_shard.begin(s), by_shard.size(s), &shard);
      shard.per_owner.assign(owners, 0);
      for (Key key : shard.keys) {
        shard.owners.push_back(owner_of(key));
        ++shard.per_owner[shard.owners.back()];
      }
    }
  });

  Partition partition;
  partition.splits.resize(owners);
  uint32_t next = 0;
  for (uint32_t owner = 0; owner < owners; ++owner) {
    const uint32_t begin = next;
    for (ShardKeys& shard : shards) next += std::exchange(shard.per_owner[owner], next);
    partition.splits[owner] = static_cast<int32_t>(next - begin);
  }
  partition.keys.resize(next);
  parallel_for(kShards, shard_cost, [&](int64_t first, int64_t last) {
    for (int64_t s = first; s < last; ++s) {
      ShardKeys& shard = shards[s];
      std::vector<int32_t> place(shard.keys.size());
      for (size_t u = 0; u < shard.keys.size(); ++u) {
        place[u] = static_cast<int32_t>(shard.per_owner[shard.owners[u]]++);
        partition.keys[place[u]] = shard.keys[u];
      }
      const ShardEntry* entries = by_shard.begin(s);
      for (size_t i = 0; i < shard.of_entry.size(); ++i) {
        inverse[entries[i].position] = place[shard.of_entry[i]];
      }
    }
  });
  return partition;
}

template <typename T>
void SumByRow(const T* gradients, const int32_t* inverse, size_t n, size_t distinct, int dim,
              float* sums, const ParallelFor& parallel_for) {
  // Positions are sorted by distinct row, so that each sum has one writer and a fixed order.
  std::vector<uint32_t> starts(distinct + 1);
  CountingSort sort(starts.data(), static_cast<uint32_t>(distinct));
  for (size_t i = 0; i < n; ++i) sort.Count(inverse[i]);
  sort.Start();
  std::vector<uint32_t> positions(n);
  for (size_t i = 0; i < n; ++i) positions[sort.Take(inverse[i])] = static_cast<uint32_t>(i);
  sort.Finish();
  const int64_t mean_group = static_cast<int64_t>(n / std::max<size_t>(distinct, 1)) + 1;
  parallel_for(static_cast<int64_t>(distinct), mean_group * (10 + dim / 4),
               [&](int64_t begin, int64_t end) {
                 for (int64_t u = begin; u < end; ++u) {
                   float* sum = sums + u * dim;
                   std::fill_n(sum, dim, 0.0f);
                   for (uint32_t p = starts[u]; p < starts[u + 1]; ++p) {
                     const T* gradient = gradients + size_t{positions[p]} * dim;
                     for (int j = 0; j < dim; ++j) sum[j] += ToFloat(gradient[j]);
                   }
                 }
               });
}

template void SumByRow(const float*, const int32_t*, size_t, size_t, int, float*,
                       const ParallelFor&);
template void SumByRow(const BFloat16*, const int32_t*, size_t, size_t, int, float*,
                       const ParallelFor&);

}  // namespace sok
