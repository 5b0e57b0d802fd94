// Every key of a range is reported once, as found or absent, whatever the length of the range.
#include "core/rows/pipelined_find.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "core/base/test_threads.h"
#include "core/rows/hash_index.h"

namespace sok {
namespace {

struct Rows {
  std::vector<float> values;
  const float* row(uint32_t number) const { return &values[number]; }
};

struct Shard {
  HashIndex index;
  Rows rows;
};

struct Reported {
  std::vector<size_t> found, absent;
};

Reported FindAll(const std::vector<Shard>& shards, const std::vector<Key>& keys,
                 const std::vector<const float*>& given, size_t begin) {
  const auto shard_of = [&](uint64_t hash) -> const Shard& { return shards[hash >> 63]; };
  Reported reported;
  FindRange<HashIndex, Shard>(
      keys.data(), begin, keys.size(), given.empty() ? nullptr : given.data(),
      /*prefetch_floats=*/1, [](Key key) { return HashIndex::Hash(key); }, shard_of,
      [&](size_t i, const Shard* shard, uint32_t number, const float* row) {
        reported.found.push_back(i);
        if (!given.empty() && given[i] != nullptr) {
          CHECK(shard == nullptr);
          CHECK(row == given[i]);
          return;
        }
        CHECK(shard == &shard_of(HashIndex::Hash(keys[i])));
        CHECK(row == shard->rows.row(number));
        CHECK(*row == static_cast<float>(keys[i]));
      },
      [&](size_t i) { reported.absent.push_back(i); });
  return reported;
}

TEST_CASE("FindRange reports each key of a range, in order, as found or absent") {
  constexpr Key kKeys = 5000;
  std::mt19937_64 rng(TestSeed());
  for (const double share : {0.0, 0.03, 0.5, 0.97, 1.0}) {
    CAPTURE(share);
    std::bernoulli_distribution is_in(share);
    std::vector<Shard> shards(2);
    std::vector<bool> in(kKeys);
    for (Key key = 0; key < kKeys; ++key) {
      const uint64_t hash = HashIndex::Hash(key);
      Shard& shard = shards[hash >> 63];
      REQUIRE(shard.index.Reserve(1).ok());
      shard.index.Insert(key, hash, static_cast<uint32_t>(shard.rows.values.size()));
      shard.rows.values.push_back(static_cast<float>(key));
      in[key] = is_in(rng);
    }
    // Erased keys leave their bytes behind.
    for (Key key = 0; key < kKeys; ++key) {
      const uint64_t hash = HashIndex::Hash(key);
      if (!in[key]) shards[hash >> 63].index.Erase(key, hash);
    }
    for (const size_t n : {0, 1, 2, 31, 32, 33, 63, 64, 65, 96, 127, 128, 129, 1000}) {
      CAPTURE(n);
      std::vector<Key> keys(n + 7);
      for (Key& key : keys) key = rng() % kKeys;
      for (const int in_a_hundred : {-1, 0, 40, 100}) {
        CAPTURE(in_a_hundred);  // how many rows are given; -1: called without `given`
        const float some = 1;
        std::vector<const float*> given(in_a_hundred < 0 ? 0 : n + 7);
        for (const float*& row : given) {
          row = static_cast<int>(rng() % 100) < in_a_hundred ? &some : nullptr;
        }
        const Reported reported = FindAll(shards, keys, given, 7);
        std::vector<size_t> found, absent;
        for (size_t i = 7; i < n + 7; ++i) {
          const bool is_given = !given.empty() && given[i] != nullptr;
          (is_given || in[keys[i]] ? found : absent).push_back(i);
        }
        CHECK(reported.found == found);
        CHECK(reported.absent == absent);
      }
    }
  }
}

}  // namespace
}  // namespace sok
