#include "core/policies/eviction_queue.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <vector>

#include "core/base/test_result.h"
#include "core/base/test_threads.h"

namespace sok {
namespace {

using Ranks = std::map<Key, uint64_t>;

void Fill(EvictionQueue& queue, const std::vector<RankedKey>& rows, size_t most = 1000000) {
  queue.Begin(most);
  for (const RankedKey& row : rows) queue.Offer(row);
  queue.End();
}

// Returns the ranks of `ranks`; no rank for other keys.
EvictionQueue::RanksOf Of(const Ranks& ranks) {
  return [&ranks](const std::vector<Key>& keys, std::vector<std::optional<uint64_t>>* out) {
    for (size_t i = 0; i < keys.size(); ++i) {
      const auto found = ranks.find(keys[i]);
      if (found != ranks.end()) (*out)[i] = found->second;
    }
    return Status();
  };
}

std::vector<Key> Take(EvictionQueue& queue, size_t n, const Ranks& ranks,
                      const KeySet& staying = {}, uint64_t limit = UINT64_MAX) {
  std::vector<Key> keys;
  for (const RankedKey& row : Value(queue.Take(n, limit, Of(ranks), staying))) {
    CHECK(row.rank == ranks.at(row.key));
    keys.push_back(row.key);
  }
  return keys;
}

using Keys = std::vector<Key>;

}  // namespace

TEST_CASE("the row of the lowest rank comes out first, of equal ones that of the least key") {
  EvictionQueue rows;
  CHECK_FALSE(rows.filled());
  Fill(rows, {{3, 1}, {1, ~Key{0}}, {1, 7}, {1, 8}, {2, 0}});
  CHECK(rows.filled());
  const Ranks ranks = {{1, 3}, {~Key{0}, 1}, {7, 1}, {8, 1}, {0, 2}};
  SUBCASE("all at once") { CHECK(Take(rows, 9, ranks) == Keys{7, 8, ~Key{0}, 0, 1}); }
  SUBCASE("one by one") {
    for (Key key : Keys{7, 8, ~Key{0}, 0, 1}) CHECK(Take(rows, 1, ranks) == Keys{key});
  }
}

TEST_CASE("nothing comes out of none, and Clear forgets all") {
  EvictionQueue rows;
  CHECK(Take(rows, 1, {}).empty());
  Fill(rows, {});
  CHECK(rows.filled());
  CHECK(Take(rows, 1, {}).empty());
  CHECK(rows.filled());
  Fill(rows, {{1, 1}});
  rows.Clear();
  CHECK_FALSE(rows.filled());
  CHECK(Take(rows, 1, {{1, 1}}).empty());
}

TEST_CASE("entries that are out of date are put back where they belong, or dropped") {
  EvictionQueue rows;
  Fill(rows, {{1, 1}, {2, 2}, {3, 3}, {3, 4}});
  const Ranks ranks = {{1, 9}, {2, 5}, {3, 3}};  // 4 has gone
  CHECK(Take(rows, 1, ranks) == Keys{3});
  CHECK(Take(rows, 1, ranks) == Keys{2});
  CHECK(Take(rows, 2, ranks) == Keys{1});
}

TEST_CASE("rows at the limit, and those that are to stay, stay and come out later") {
  EvictionQueue rows;
  Fill(rows, {{1, 1}, {2, 2}, {3, 3}, {4, 4}});
  const Ranks ranks = {{1, 1}, {2, 2}, {3, 3}, {4, 4}};
  KeySet staying;
  staying.Insert(1);
  CHECK(Take(rows, 9, ranks, staying, /*limit=*/3) == Keys{2});
  CHECK(rows.filled());
  CHECK(Take(rows, 9, ranks) == Keys{1, 3, 4});
}

TEST_CASE("what was taken and not used can be put back") {
  EvictionQueue rows;
  Fill(rows, {{1, 1}, {2, 2}});
  const Ranks ranks = {{1, 1}, {2, 2}};
  const auto taken = Value(rows.Take(2, UINT64_MAX, Of(ranks), {}));
  CHECK(rows.size() == 0);
  rows.PutBack(taken);
  CHECK(Take(rows, 2, ranks) == Keys{1, 2});
}

TEST_CASE("after an error everything is where it was") {
  EvictionQueue rows;
  Fill(rows, {{1, 1}, {2, 2}, {3, 3}});
  KeySet staying;
  staying.Insert(1);
  const auto failing = [](const Keys&, std::vector<std::optional<uint64_t>>*) {
    return InvalidArgument("no");
  };
  CHECK_FALSE(rows.Take(2, UINT64_MAX, failing, staying).ok());
  CHECK(Take(rows, 3, {{1, 1}, {2, 2}, {3, 3}}) == Keys{1, 2, 3});
}

TEST_CASE("a row that went and came back comes out once") {
  EvictionQueue rows;
  Fill(rows, {{5, 1}, {6, 2}});
  rows.Add({0, 1});
  rows.Add({0, 1});
  CHECK(Take(rows, 3, {{1, 0}, {2, 6}}) == Keys{1, 2});
}

TEST_CASE("of ranks that may fall, rows come out as long as they are below the limit") {
  EvictionQueue rows(/*ranks_rise=*/false);
  Fill(rows, {{1, 1}, {2, 2}, {3, 3}});
  rows.Add({0, 9});  // what it is by now is not known
  // 1 has risen to the limit, 3 has fallen below 2.
  const Ranks ranks = {{1, 10}, {2, 5}, {3, 0}, {9, 0}};
  Keys keys;
  for (const RankedKey& row : Value(rows.Take(9, /*limit=*/10, Of(ranks), {}))) {
    keys.push_back(row.key);
  }
  CHECK(keys == Keys{2, 3});
  CHECK_FALSE(rows.filled());  // others may have fallen below by now
}

TEST_CASE("random ranks that only rise: what comes out is the least of all, however few it keeps") {
  std::mt19937_64 rng(TestSeed());
  for (const size_t most : {1u, 3u, 20u, 1000u}) {
    EvictionQueue queue;
    Ranks ranks;
    int fills = 0;
    for (int turn = 0; turn < 3000; ++turn) {
      const Key key = rng() % 200;
      if (ranks.count(key) > 0) {
        ranks[key] += rng() % 5;
      } else if (rng() % 3 == 0) {
        // As new rows do, it starts anywhere, also below all that is known.
        ranks[key] = rng() % 40;
        queue.Add({ranks[key], key});
      }
      if (rng() % 20 == 0) ranks.erase(rng() % 200);
      if (rng() % 6 != 0 || ranks.empty()) continue;
      KeySet staying;
      for (int i = 0; i < 3; ++i) staying.Insert(rng() % 200);
      std::vector<RankedKey> expected;
      for (const auto& [of, rank] : ranks) {
        if (!staying.Contains(of)) expected.push_back({rank, of});
      }
      std::sort(expected.begin(), expected.end());
      if (expected.size() > rng() % 5 + 1) expected.resize(1);
      std::vector<RankedKey> taken;
      KeySet passed = staying;
      while (taken.size() < expected.size()) {
        if (!queue.filled()) {
          ++fills;
          taken.clear();
          passed = staying;
          std::vector<RankedKey> all;
          for (const auto& [of, rank] : ranks) all.push_back({rank, of});
          Fill(queue, all, std::max<size_t>(most, expected.size() + staying.size()));
        }
        const size_t before = taken.size();
        for (const RankedKey& row :
             Value(queue.Take(expected.size() - before, UINT64_MAX, Of(ranks), passed))) {
          taken.push_back(row);
          passed.Insert(row.key);
        }
        REQUIRE((taken.size() > before || !queue.filled()));
      }
      REQUIRE(taken == expected);
      for (const RankedKey& row : taken) ranks.erase(row.key);
    }
    CHECK(fills > 0);
  }
}

TEST_CASE("a fill keeps the lowest rows, and needs room for twice as many") {
  std::mt19937_64 rng(TestSeed());
  EvictionQueue queue;
  CHECK(queue.bytes() == 0);
  std::vector<RankedKey> rows;
  Ranks ranks;
  for (Key key = 0; key < 5000; ++key) {
    rows.push_back({rng() % 700, key});
    ranks[key] = rows.back().rank;
  }
  Fill(queue, rows, 100);
  CHECK(queue.size() == 100);
  CHECK(queue.bytes() <= 2 * 100 * sizeof(RankedKey));
  std::sort(rows.begin(), rows.end());
  Keys lowest;
  for (int i = 0; i < 100; ++i) lowest.push_back(rows[i].key);
  CHECK(Take(queue, 100, ranks) == lowest);
  CHECK(queue.filled());
  CHECK(Take(queue, 1, ranks).empty());
  CHECK_FALSE(queue.filled());
}

TEST_CASE("entries of rows that come and go elsewhere do not pile up") {
  EvictionQueue queue;
  Fill(queue, {{5, 1}});
  for (int i = 0; i < 100000; ++i) queue.Add({0, 1});
  CHECK(queue.size() < 2000);
}

}  // namespace sok
