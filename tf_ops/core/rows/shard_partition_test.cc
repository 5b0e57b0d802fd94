#include "core/rows/shard_partition.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "core/base/test_threads.h"

namespace sok {
namespace {

// Returns every shard's entries, by one loop over the sources in order.
std::vector<std::vector<ShardEntry>> Expected(const std::vector<std::vector<Key>>& sources,
                                              uint32_t shards) {
  std::vector<std::vector<ShardEntry>> expected(shards);
  for (uint32_t batch = 0; batch < sources.size(); ++batch) {
    for (uint32_t i = 0; i < sources[batch].size(); ++i) {
      const Key key = sources[batch][i];
      expected[key % shards].push_back({key, batch, i});
    }
  }
  return expected;
}

void CheckPartition(ShardPartition& partition, const std::vector<std::vector<Key>>& keys,
                    uint32_t shards, const ParallelFor& parallel_for) {
  std::vector<ShardPartition::Source> sources;
  size_t total = 0;
  for (const std::vector<Key>& batch : keys) {
    sources.push_back({batch.data(), batch.size()});
    total += batch.size();
  }
  partition.Build(
      sources, shards, [shards](Key key) { return static_cast<uint32_t>(key % shards); },
      parallel_for);
  REQUIRE(partition.total() == total);
  const auto expected = Expected(keys, shards);
  for (uint32_t s = 0; s < shards; ++s) {
    INFO("shard ", s, " of ", shards);
    REQUIRE(partition.size(s) == expected[s].size());
    for (size_t i = 0; i < expected[s].size(); ++i) {
      const ShardEntry &entry = partition.begin(s)[i], &wanted = expected[s][i];
      REQUIRE((entry.key == wanted.key && entry.batch == wanted.batch &&
               entry.position == wanted.position));
    }
  }
}

std::vector<Key> RandomKeys(size_t n, std::mt19937_64& rng) {
  std::vector<Key> keys(n);
  for (Key& key : keys) key = rng() % 1000;  // many equal ones
  return keys;
}

TEST_CASE("every entry lands in its shard, in the order of sources and positions") {
  std::mt19937_64 rng(TestSeed());
  ShardPartition partition;
  for (uint32_t shards : {1u, 2u, 32u}) {
    for (size_t n : {1, 100, 8191, 8192, 8193, 50000}) {
      const auto keys = RandomKeys(n, rng);
      CheckPartition(partition, {keys}, shards, SerialFor);
      CheckPartition(partition, {keys}, shards, ThreadedFor);
    }
  }
}

TEST_CASE("several sources are one sequence, whatever their lengths") {
  std::mt19937_64 rng(TestSeed());
  ShardPartition partition;
  for (int round = 0; round < 10; ++round) {
    std::vector<std::vector<Key>> sources;
    for (uint64_t s = rng() % 5; s > 0; --s) sources.push_back(RandomKeys(rng() % 20000, rng));
    sources.insert(sources.begin() + rng() % (sources.size() + 1), std::vector<Key>());
    CheckPartition(partition, sources, 32, SerialFor);
    CheckPartition(partition, sources, 32, ThreadedFor);
  }
}

TEST_CASE("nothing to partition leaves every shard empty, also after a larger batch") {
  std::mt19937_64 rng(TestSeed());
  ShardPartition partition;
  CheckPartition(partition, {}, 32, SerialFor);
  CheckPartition(partition, {RandomKeys(20000, rng)}, 32, SerialFor);
  CheckPartition(partition, {{}, {}}, 32, ThreadedFor);
  CheckPartition(partition, {}, 2, SerialFor);
}

TEST_CASE("all keys may belong to one shard") {
  ShardPartition partition;
  CheckPartition(partition, {std::vector<Key>(20000, 5)}, 32, SerialFor);
  CheckPartition(partition, {std::vector<Key>(20000, 5)}, 32, ThreadedFor);
}

}  // namespace
}  // namespace sok
