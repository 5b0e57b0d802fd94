#include "core/policies/least_used.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "core/base/test_threads.h"

namespace sok {

TEST_CASE("the row of fewest uses comes out first, of equal ones that of the least key") {
  LeastUsed rows;
  CHECK_FALSE(rows.filled());
  rows.Fill({{3, 1}, {1, ~Key{0}}, {1, 7}, {1, 8}, {2, 0}});
  CHECK(rows.filled());
  const std::map<Key, uint32_t> uses = {{1, 3}, {~Key{0}, 1}, {7, 1}, {8, 1}, {0, 2}};
  std::vector<Key> order;
  UsedKey row;
  while (rows.Take([&](Key key) { return uses.at(key); }, &row)) order.push_back(row.key);
  CHECK(order == std::vector<Key>{7, 8, ~Key{0}, 0, 1});
}

TEST_CASE("nothing comes out of none, and Clear forgets all") {
  LeastUsed rows;
  UsedKey row;
  const auto none = [](Key) { return uint32_t{0}; };
  CHECK_FALSE(rows.Take(none, &row));
  rows.Fill({});
  CHECK(rows.filled());
  CHECK_FALSE(rows.Take(none, &row));
  rows.Fill({{1, 1}});
  rows.Clear();
  CHECK_FALSE(rows.filled());
  CHECK_FALSE(rows.Take(none, &row));
}

TEST_CASE("entries that are out of date are put back where they belong") {
  LeastUsed rows;
  rows.Fill({{1, 1}, {2, 2}, {3, 3}});
  std::map<Key, uint32_t> uses = {{1, 9}, {2, 5}, {3, 3}};
  UsedKey row;
  const auto uses_of = [&](Key key) { return uses.at(key); };
  REQUIRE(rows.Take(uses_of, &row));
  CHECK(row.key == 3);
  REQUIRE(rows.Take(uses_of, &row));
  CHECK((row.key == 2 && row.uses == 5));
  REQUIRE(rows.Take(uses_of, &row));
  CHECK(row.key == 1);
}

TEST_CASE("random uses that only grow: what comes out is the least of all that are in") {
  std::mt19937_64 rng(TestSeed());
  LeastUsed rows;
  rows.Fill({});
  std::map<Key, uint32_t> inside, uses;
  for (int turn = 0; turn < 5000; ++turn) {
    const Key key = rng() % 200;
    uses[key] += rng() % 5;
    if (inside.count(key) == 0 && rng() % 3 == 0) {
      inside[key] = 0;
      rows.Add({uses[key], key});
    }
    if (rng() % 6 != 0) continue;
    UsedKey row;
    const bool found = rows.Take([&](Key of) { return uses.at(of); }, &row);
    REQUIRE(found == !inside.empty());
    if (!found) continue;
    UsedKey least{UINT32_MAX, ~Key{0}};
    for (const auto& [of, unused] : inside) {
      if (least > UsedKey{uses[of], of}) least = {uses[of], of};
    }
    REQUIRE((row.key == least.key && row.uses == least.uses));
    inside.erase(row.key);
  }
}

TEST_CASE("entries at most double what they take") {
  LeastUsed rows;
  CHECK(rows.bytes() == 0);
  rows.Fill(std::vector<UsedKey>(1000, UsedKey{1, 1}));
  CHECK(rows.bytes() >= 1000 * (sizeof(uint32_t) + sizeof(Key)));
  CHECK(rows.bytes() <= 2 * 1000 * sizeof(UsedKey));
}

}  // namespace sok
