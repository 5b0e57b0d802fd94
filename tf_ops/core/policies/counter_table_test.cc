#include "core/policies/counter_table.h"

#include <doctest/doctest.h>

#include <limits>
#include <random>
#include <unordered_map>

#include "core/base/test_threads.h"

namespace sok {
namespace {

using Counts = std::unordered_map<Key, uint32_t>;

uint32_t CountOf(const CounterTable& table, Key key) {
  const uint32_t* const count = table.Find(key, CounterTable::Hash(key));
  return count == nullptr ? 0 : *count;
}

void CheckSame(const CounterTable& table, const Counts& expected) {
  REQUIRE(table.size() == expected.size());
  Counts visited;
  table.ForEach([&](Key key, uint32_t count) { REQUIRE(visited.emplace(key, count).second); });
  CHECK(visited == expected);
  size_t wrong = 0;
  for (const auto& [key, count] : expected) wrong += CountOf(table, key) != count;
  CHECK(wrong == 0);
}

TEST_CASE("an empty counter table has no key and no memory") {
  CounterTable table;
  CHECK(table.Find(0, CounterTable::Hash(0)) == nullptr);
  CHECK(!table.Erase(0, CounterTable::Hash(0)));
  CHECK(table.bytes() == 0);
}

// Few keys, so that slots are filled and erased in turn; many, so that the table grows.
TEST_CASE("a counter table is std::unordered_map, under random counting and erasing") {
  for (Key keys : {300, 20000}) {
    CAPTURE(keys);
    CAPTURE(TestSeed());
    std::mt19937_64 rng(TestSeed());
    CounterTable table;
    Counts expected;
    for (int phase = 0; phase < 8; ++phase) {
      const uint64_t erased_of_8 = phase % 2 == 0 ? 2 : 6;
      for (int step = 0; step < 20000; ++step) {
        // Also keys that differ in their highest bits only.
        const Key key = rng() % 2 == 0 ? rng() % keys : (rng() % 512) << 55;
        const uint64_t hash = CounterTable::Hash(key);
        if (rng() % 8 < erased_of_8) {
          REQUIRE(table.Erase(key, hash) == (expected.erase(key) == 1));
          continue;
        }
        ++expected[key];
        if (uint32_t* const count = table.Find(key, hash)) {
          ++*count;
        } else {
          REQUIRE(table.Reserve(1).ok());
          table.Insert(key, hash, 1);
        }
      }
      CheckSame(table, expected);
    }
  }
}

TEST_CASE("erasing and inserting in turn does not make a counter table grow") {
  CounterTable table;
  for (Key key = 0; key < 100000; ++key) {
    REQUIRE(table.Reserve(1).ok());
    table.Insert(key, CounterTable::Hash(key), 1);
    if (key >= 100) CHECK(table.Erase(key - 100, CounterTable::Hash(key - 100)));
  }
  CHECK(table.size() == 100);
  CHECK(table.bytes() == 4096);
}

TEST_CASE("a counter table that cannot grow says so and stays as it was") {
  CounterTable table;
  REQUIRE(table.Reserve(1).ok());
  table.Insert(7, CounterTable::Hash(7), 5);
  for (uint64_t more : {uint64_t{1} << 50, std::numeric_limits<uint64_t>::max()}) {
    const Status status = table.Reserve(more);
    CHECK(status.code() == Code::kResourceExhausted);
    CHECK(status.message().find("counting_bloom") != std::string::npos);
    CheckSame(table, {{7, 5}});
  }
}

}  // namespace
}  // namespace sok
