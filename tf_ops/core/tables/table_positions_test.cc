// Gradients that are some of the rows of what was deposited: the positions of a deposit.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <vector>

#include "core/base/test_folder.h"
#include "core/base/test_result.h"
#include "core/base/test_threads.h"
#include "core/rows/shard_partition.h"
#include "core/storage/storage.h"
#include "core/tables/table.h"

namespace sok {
namespace {

constexpr int kDim = 3;

struct Deposited {
  std::vector<Key> keys;
  std::vector<uint32_t> positions;
  std::vector<float> gradients;
};

// Gradients of which some belong to no key, in an order of their own.
Deposited RandomDeposit(std::mt19937_64& rng) {
  Deposited made;
  const size_t rows = 1 + rng() % 20000;
  for (size_t i = 0; i < rows * kDim; ++i) {
    made.gradients.push_back(static_cast<float>(static_cast<int>(rng() % 17) - 8) / 8);
  }
  std::vector<uint32_t> places(rows);
  std::iota(places.begin(), places.end(), 0);
  std::shuffle(places.begin(), places.end(), rng);
  places.resize(rng() % (rows + 1));
  made.positions = places;
  for (size_t i = 0; i < places.size(); ++i) made.keys.push_back(rng() % 500);
  return made;
}

void CheckSums(Table& table) {
  std::mt19937_64 rng(TestSeed());
  std::map<Key, std::vector<double>> expected;
  for (int step = 0; step < 4; ++step) {
    for (int d = 0; d < 3; ++d) {
      const auto made = std::make_shared<const Deposited>(RandomDeposit(rng));
      const bool half = rng() % 2 == 0;
      LookupKeys keys;
      keys.hold = made;
      keys.keys = made->keys.data();
      keys.n = made->keys.size();
      keys.positions = made->positions.data();
      if (half) {
        std::vector<BFloat16> narrow;
        for (float g : made->gradients) narrow.push_back(FromFloat<BFloat16>(g));
        const auto hold = std::make_shared<const std::vector<BFloat16>>(std::move(narrow));
        REQUIRE(table.Deposit(keys, hold, nullptr, hold->data()).ok());
      } else {
        REQUIRE(table.Deposit(keys, made, made->gradients.data(), nullptr).ok());
      }
      for (size_t i = 0; i < made->keys.size(); ++i) {
        std::vector<double>& row = expected[made->keys[i]];
        row.resize(kDim);
        for (int j = 0; j < kDim; ++j) row[j] -= made->gradients[made->positions[i] * kDim + j];
      }
    }
    const auto outcome = table.Commit({"sgd", {{"learning_rate", 1.0}}, 0, 1.0f},
                                      step % 2 ? SerialFor : ThreadedFor);
    REQUIRE(outcome.ok());
  }
  REQUIRE(table.size() == expected.size());
  for (const auto& [key, row] : expected) {
    std::vector<float> out(kDim);
    REQUIRE(table.Lookup(&key, 1, false, out.data(), SerialFor).ok());
    // Eighths: every sum is exact.
    for (int j = 0; j < kDim; ++j) REQUIRE(out[j] == row[j]);
  }
}

TableSpec Config() {
  TableSpec config;
  config.dim = kDim;
  config.initializer = "constant";
  config.initializer_a = 0;
  return config;
}

}  // namespace

TEST_CASE("each key gets the gradient at its position, in memory, by position and on disk") {
  CheckSums(*Value(Table::Make(Config())));
  TableSpec config = Config();
  config.shards = 20;
  CheckSums(*Value(Table::Make(config)));
  config = Config();
  config.direct = true;
  config.max_rows = 500;
  CheckSums(*Value(Table::Make(config)));
  const TestFolder folder;
  StorageOptions options;
  options.path = folder / "storage";
  options.cache_bytes = uint64_t{1} << 20;
  const auto storage = Value(Storage::Open(options));
  CheckSums(*Value(storage->OpenTable(Config())));
  REQUIRE(storage->Close().ok());
}

TEST_CASE("entries of a partition say the positions that their source gives") {
  std::mt19937_64 rng(TestSeed());
  constexpr uint32_t kShards = 7;
  std::vector<Key> keys(30000);
  std::vector<uint32_t> positions(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    keys[i] = rng();
    positions[i] = static_cast<uint32_t>(rng());
  }
  const std::vector<ShardPartition::Source> sources = {{keys.data(), keys.size(), positions.data()},
                                                       {keys.data(), 100}};
  ShardPartition partition;
  partition.Build(
      sources, kShards, [](Key key) { return static_cast<uint32_t>(key % kShards); }, ThreadedFor);
  for (uint32_t s = 0; s < kShards; ++s) {
    std::vector<std::pair<Key, uint32_t>> expected, ours;
    for (size_t i = 0; i < keys.size(); ++i) {
      if (keys[i] % kShards == s) expected.emplace_back(keys[i], positions[i]);
    }
    for (uint32_t i = 0; i < 100; ++i) {
      if (keys[i] % kShards == s) expected.emplace_back(keys[i], i);
    }
    for (size_t i = 0; i < partition.size(s); ++i) {
      ours.emplace_back(partition.begin(s)[i].key, partition.begin(s)[i].position);
    }
    REQUIRE(ours == expected);
  }
}

TEST_CASE("the least number of shards is a wish that does not change what a table holds") {
  // A lookup holds one lock a shard, and the thread sanitizer supports 64 at a time.
#if defined(__SANITIZE_THREAD__)
  const std::vector<uint32_t> numbers = {0, 1, 3, 20};
#else
  const std::vector<uint32_t> numbers = {0, 1, 3, 257, 100000, UINT32_MAX};
#endif
  for (uint32_t shards : numbers) {
    TableSpec config = Config();
    config.shards = shards;
    config.max_rows = 2000;
    const auto table = Value(Table::Make(config));
    std::vector<Key> keys(2000);
    for (size_t i = 0; i < keys.size(); ++i) keys[i] = i * 12345;
    std::vector<float> rows(keys.size() * kDim);
    std::iota(rows.begin(), rows.end(), 0.0f);
    REQUIRE(table->Assign(keys.data(), keys.size(), rows.data(), ThreadedFor).ok());
    std::vector<float> out(rows.size());
    REQUIRE(table->Lookup(keys.data(), keys.size(), false, out.data(), ThreadedFor).ok());
    CHECK(out == rows);
    CHECK(table->size() == 2000);
    const Key one_more = 1;
    CHECK(table->Assign(&one_more, 1, rows.data(), SerialFor).code() == Code::kResourceExhausted);
  }
}

}  // namespace sok
