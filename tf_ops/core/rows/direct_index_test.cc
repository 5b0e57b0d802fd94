#include "core/rows/direct_index.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <map>
#include <vector>

namespace sok {
namespace {

// Holds the shards of one process' index.
class Shards {
 public:
  explicit Shards(const IndexConfig& config) : config_(config) {
    for (uint32_t s = 0; s < 1u << config.shard_bits; ++s) shards_.emplace_back(config, s);
  }

  DirectIndex& Of(Key key) {
    return shards_[DirectIndex::ShardOf(DirectIndex::Hash(key, config_), config_.shard_bits)];
  }
  void Insert(Key key, uint32_t row) {
    REQUIRE(Of(key).Reserve(1).ok());
    Of(key).Insert(key, DirectIndex::Hash(key, config_), row);
  }
  uint32_t Find(Key key) { return Of(key).Find(key, DirectIndex::Hash(key, config_)); }
  uint32_t FindInSteps(Key key) {
    const uint64_t hash = DirectIndex::Hash(key, config_);
    return Of(key).Resolve(key, hash, Of(key).Candidate(hash, Of(key).Place(hash)));
  }
  uint32_t Erase(Key key) { return Of(key).Erase(key, DirectIndex::Hash(key, config_)); }

  std::map<Key, uint32_t> Contents() const {
    std::map<Key, uint32_t> rows;
    for (const DirectIndex& shard : shards_) {
      uint32_t visited = 0;
      shard.ForEach([&](Key key, uint32_t row) {
        REQUIRE(rows.emplace(key, row).second);
        ++visited;
      });
      REQUIRE(visited == shard.size());
    }
    return rows;
  }

 private:
  IndexConfig config_;
  std::vector<DirectIndex> shards_;
};

// Calls fn(config) for every owner of one, two and three, with few shards and with many.
template <typename Fn>
void ForEachConfig(const Fn& fn) {
  for (uint64_t owners = 1; owners <= 3; ++owners) {
    for (uint64_t owner = 0; owner < owners; ++owner) {
      for (int shard_bits : {0, 2, 5}) {
        IndexConfig config;
        config.shard_bits = shard_bits;
        config.capacity = 101;
        config.owners = owners;
        config.owner = owner;
        INFO("owner ", owner, " of ", owners, ", shard bits ", shard_bits);
        fn(config);
      }
    }
  }
}

TEST_CASE("the positions of a process' keys are 0, 1, 2, … in order") {
  ForEachConfig([](const IndexConfig& config) {
    uint64_t position = 0;
    for (Key key = config.owner; key < 101 * config.owners; key += config.owners) {
      REQUIRE(DirectIndex::Hash(key, config) == position++);
    }
    REQUIRE(position == config.capacity);
  });
}

TEST_CASE("every key of the range has a place of its own, and ForEach gives the keys back") {
  ForEachConfig([](const IndexConfig& config) {
    Shards index(config);
    std::map<Key, uint32_t> expected;
    for (Key key = config.owner; key < 101 * config.owners; key += config.owners) {
      REQUIRE(index.Find(key) == DirectIndex::kNone);
      const auto row = static_cast<uint32_t>(1000 - key);
      index.Insert(key, row);
      expected[key] = row;
    }
    for (const auto& [key, row] : expected) {
      REQUIRE(index.Find(key) == row);
      REQUIRE(index.FindInSteps(key) == row);
    }
    REQUIRE(index.Contents() == expected);
  });
}

TEST_CASE("an erased key is gone, and the others stay") {
  ForEachConfig([](const IndexConfig& config) {
    Shards index(config);
    std::map<Key, uint32_t> expected;
    for (Key key = config.owner; key < 101 * config.owners; key += config.owners) {
      index.Insert(key, static_cast<uint32_t>(key));
      expected[key] = static_cast<uint32_t>(key);
    }
    for (Key key = config.owner; key < 101 * config.owners; key += 2 * config.owners) {
      REQUIRE(index.Erase(key) == key);
      REQUIRE(index.Erase(key) == DirectIndex::kNone);
      REQUIRE(index.FindInSteps(key) == DirectIndex::kNone);
      expected.erase(key);
    }
    REQUIRE(index.Contents() == expected);
  });
}

TEST_CASE("row 0 is a row like any other") {
  IndexConfig config;
  config.capacity = 1;
  Shards index(config);
  index.Insert(0, 0);
  CHECK(index.Find(0) == 0);
  CHECK(index.Contents() == std::map<Key, uint32_t>{{0, 0}});
}

TEST_CASE("an index takes the pages that have keys, and Trim gives them back") {
  IndexConfig config;
  config.shard_bits = 0;
  config.capacity = 300000;
  DirectIndex index(config, 0);
  REQUIRE(index.Reserve(1).ok());
  CHECK(index.bytes() == 0);
  index.Insert(0, 0, 7);
  const size_t page = index.bytes();
  CHECK(page >= 4096);
  CHECK(page < config.capacity);
  index.Insert(1, 1, 8);
  CHECK(index.bytes() == page);
  index.Insert(299999, 299999, 9);
  CHECK(index.bytes() == 2 * page);
  CHECK(index.Erase(0, 0) == 7);
  index.Trim(1);
  CHECK(index.bytes() == 2 * page);
  CHECK(index.Erase(299999, 299999) == 9);
  index.Insert(299998, 299998, 6);  // the page is needed after all
  index.Trim(1);
  CHECK(index.bytes() == 2 * page);
  CHECK(index.Erase(299998, 299998) == 6);
  CHECK(index.Erase(1, 1) == 8);
  index.Trim(2);
  CHECK(index.bytes() == 0);
  CHECK(index.Find(1, 1) == DirectIndex::kNone);
  index.Insert(1, 1, 5);
  CHECK(index.Find(1, 1) == 5);
  CHECK(index.bytes() == page);
}

TEST_CASE("an index that no memory can hold says so when rows are asked for, and holds none") {
  IndexConfig config;
  config.shard_bits = 0;
  config.capacity = uint64_t{1} << 55;
  DirectIndex index(config, 0);
  CHECK(index.Reserve(1).code() == Code::kResourceExhausted);
  CHECK(index.Find(5, DirectIndex::Hash(5, config)) == DirectIndex::kNone);
  CHECK(index.Erase(5, DirectIndex::Hash(5, config)) == DirectIndex::kNone);
}

}  // namespace
}  // namespace sok
