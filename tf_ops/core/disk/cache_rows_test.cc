#include "core/disk/cache_rows.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <list>
#include <memory>
#include <random>
#include <set>
#include <thread>
#include <unordered_map>
#include <vector>

#include "core/base/test_threads.h"

namespace sok {
namespace {

constexpr size_t kBlock = CacheMemory::kBlockBytes;
constexpr uint16_t kCame = kRowLive | kRowOnTrial;  // the state of a row that came first of all

struct NoHolder final : CacheMemory::Holder {
  bool GiveUpBlock() override { return false; }
  void EndAhead() override {}
};

// Holds the rows of one shard that has the budget for itself.
struct Cache {
  explicit Cache(int dim, uint64_t budget = uint64_t{1} << 29, std::vector<Slot> slots = {})
      : memory(budget),
        rows(std::make_shared<const RowLayout>(dim, std::move(slots)), &memory, &holder) {}

  // Makes all the rows that there is place for, with the keys 1000, 1001, …
  std::vector<uint32_t> Fill() {
    std::vector<uint32_t> made;
    for (Key key = 1000; rows.free() > 0; ++key) made.push_back(rows.Allocate(key));
    return made;
  }
  void Evict(const std::vector<uint32_t>& victims) {
    for (uint32_t row : victims) rows.Free(row);
  }

  CacheMemory memory;
  NoHolder holder;
  CacheRows rows;
};

TEST_CASE("cached rows grow by blocks within the budget, and beyond it only when told") {
  Cache cache(16, 3 * kBlock);
  REQUIRE(cache.rows.block_bytes() == kBlock);
  CHECK(cache.rows.free() == 0);
  REQUIRE(cache.rows.Grow(false));
  const size_t rows_per_block = cache.rows.free();
  // A row takes 64 bytes of floats, a meta of 8, a key of 8 and a state of 2; each kind lies in
  // cache lines of its own.
  const size_t most = kBlock / (64 + 8 + 8 + sizeof(RowState));
  CHECK(rows_per_block <= most);
  CHECK(rows_per_block >= most * 98 / 100);
  CHECK(cache.rows.Grow(false));
  CHECK(cache.rows.Grow(false));
  CHECK_FALSE(cache.rows.Grow(false));
  CHECK(cache.rows.blocks() == 3);
  CHECK(cache.memory.used() == 3 * kBlock);
  CHECK(cache.rows.Grow(true));
  CHECK(cache.rows.free() == 4 * rows_per_block);
  CHECK(cache.holder.held() == 4 * kBlock);
}

TEST_CASE("no two cached rows overlap, at any length of row") {
  for (int dim : {1, 3, 16, 500, 3000, 50000}) {
    CAPTURE(dim);
    Cache cache(dim, uint64_t{1} << 30, {{"slot", 2, 0.0f}});
    const int floats = dim + 2;
    REQUIRE(cache.rows.Grow(false));
    REQUIRE(cache.rows.Grow(false));
    const std::vector<uint32_t> rows = cache.Fill();
    REQUIRE(rows.size() >= 16);
    CHECK(std::set<uint32_t>(rows.begin(), rows.end()).size() == rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      std::fill_n(cache.rows.row(rows[i]), floats, static_cast<float>(i));
      *cache.rows.meta(rows[i]) = RowMeta{static_cast<uint32_t>(i), 7};
    }
    bool apart = true;
    for (size_t i = 0; i < rows.size(); ++i) {
      const float* row = cache.rows.row(rows[i]);
      apart &= std::count(row, row + floats, static_cast<float>(i)) == floats;
      apart &= cache.rows.meta(rows[i])->update_num == i;
      apart &= cache.rows.meta(rows[i])->update_time == 7;
      apart &= cache.rows.key(rows[i]) == 1000 + i;
      apart &= cache.rows.state(rows[i]) == kCame;
      apart &= reinterpret_cast<uintptr_t>(row) % 16 == 0;
    }
    CHECK(apart);
  }
}

TEST_CASE("ForEach visits the live rows, and a freed row comes back without its state") {
  Cache cache(8);
  REQUIRE(cache.rows.Grow(false));
  const size_t capacity = cache.rows.free();
  const uint32_t first = cache.rows.Allocate(1), second = cache.rows.Allocate(2);
  cache.rows.Mark(first, kRowDirty | kRowNew);
  cache.rows.Free(first);
  CHECK(cache.rows.live() == 1);
  CHECK(cache.rows.free() == capacity - 1);
  std::vector<uint32_t> visited;
  cache.rows.ForEach([&](uint32_t row) { visited.push_back(row); });
  CHECK(visited == std::vector<uint32_t>{second});
  CHECK(cache.rows.Allocate(3) == first);
  CHECK(cache.rows.state(first) == kCame);
  CHECK(cache.rows.key(first) == 3);
  CHECK(cache.rows.on_trial() == 2);
}

TEST_CASE("the trial of a row that is read ahead begins with the step that uses it") {
  Cache cache(8);
  CacheRows& rows = cache.rows;
  REQUIRE(rows.Grow(false));
  REQUIRE(rows.ReserveAhead(2) == 2);
  const uint32_t row = rows.Allocate(1), other = rows.Allocate(2);
  for (const uint32_t each : {row, other}) rows.MarkAhead(each);
  CHECK(cache.memory.ahead() >= 2 * 8 * sizeof(float));
  const auto is_used = [&] { return (rows.state(row) & kRowUsed) != 0; };
  rows.EndAhead();
  CHECK(rows.state(row) == rows.state(other));
  rows.Touch(row);  // by the lookup of its step
  rows.EndAhead();
  rows.Touch(row);  // by the commit
  CHECK_FALSE(is_used());
  CHECK((rows.state(row) & kRowAhead) == 0);
  CHECK(cache.memory.ahead() >= 8 * sizeof(float));
  CHECK(cache.memory.ahead() < 2 * 8 * sizeof(float) + 64);
  rows.Touch(other);
  rows.EndAhead();
  CHECK(cache.memory.ahead() == 0);
  rows.Touch(row);  // by the next step
  CHECK(is_used());
}

TEST_CASE("a row that is read ahead and not used stays until the hand has passed twice") {
  Cache cache(8);
  CacheRows& rows = cache.rows;
  REQUIRE(rows.Grow(false));
  const std::vector<uint32_t> all = cache.Fill();
  const std::vector<uint32_t> ahead(all.begin(), all.begin() + 10);
  REQUIRE(rows.ReserveAhead(ahead.size()) == ahead.size());
  for (const uint32_t row : ahead) rows.MarkAhead(row);
  const auto first = rows.Victims(all.size() / 2);
  CHECK(first.size() == all.size() / 2);
  for (const uint32_t row : ahead) CHECK(std::count(first.begin(), first.end(), row) == 0);
  CHECK(cache.memory.ahead() == 0);
  rows.BeginArrival();
  rows.Touch(ahead[0]);  // counts from here on
  const auto second = rows.Victims(all.size() / 2 + ahead.size() - 1);
  CHECK(std::count(second.begin(), second.end(), ahead[0]) == 0);
  for (size_t i = 1; i < ahead.size(); ++i) {
    CHECK(std::count(second.begin(), second.end(), ahead[i]) == 1);
  }
}

TEST_CASE("rows that are read ahead have room in a quarter of the budget, and none once they go") {
  Cache cache(16, 16 * kBlock);
  CacheRows& rows = cache.rows;
  while (rows.Grow(false)) continue;
  const size_t places = rows.free();
  const size_t room = rows.ReserveAhead(places);
  CHECK(room > places / 5);
  CHECK(room <= places / 4 + 1);
  CHECK(rows.ReserveAhead(1) == 0);
  std::vector<uint32_t> ahead;
  for (size_t i = 0; i + 1 < room; ++i) {
    ahead.push_back(rows.Allocate(i));
    rows.MarkAhead(ahead.back());
  }
  rows.UnreserveAhead(1);
  CHECK(rows.ReserveAhead(2) == 1);
  rows.MarkAhead(rows.Allocate(room));
  for (const uint32_t row : ahead) rows.Free(row);
  CHECK(rows.ReserveAhead(places) == room - 1);
  rows.UnreserveAhead(room - 1);
  rows.Reset(std::make_shared<const RowLayout>(8, std::vector<Slot>()));
  CHECK(cache.memory.ahead() == 0);
}

TEST_CASE("a row that changes differs from what the spill has of it") {
  Cache cache(8);
  REQUIRE(cache.rows.Grow(false));
  const uint32_t row = cache.rows.Allocate(1);
  cache.rows.Mark(row, kRowSpilled);
  cache.rows.MarkChanged(row);
  CHECK(cache.rows.state(row) == (kCame | kRowDirty));
  cache.rows.Unmark(CacheRows::kNone, kRowDirty);
}

TEST_CASE("rows on trial leave in turn, but for those that were used again") {
  Cache cache(16);
  REQUIRE(cache.rows.Grow(false));
  const std::vector<uint32_t> rows = cache.Fill();
  CHECK(cache.rows.on_trial() == rows.size());
  const std::vector<uint32_t> first(rows.begin(), rows.begin() + 4);
  CHECK(cache.rows.Victims(4) == first);
  CHECK(cache.rows.state(rows[0]) == kCame);  // choosing leaves no mark
  cache.Evict(first);
  CHECK(cache.rows.on_trial() == rows.size() - 4);

  cache.rows.Touch(rows[7]);  // nothing came since then, so this counts for nothing
  cache.rows.BeginArrival();
  cache.rows.Touch(rows[5]);
  cache.rows.Touch(rows[6]);
  const std::vector<uint32_t> next = cache.rows.Victims(3);
  CHECK(next == std::vector<uint32_t>{rows[4], rows[7], rows[8]});
  cache.Evict(next);
  CHECK(cache.rows.state(rows[5]) == kRowLive);  // it has passed its trial
  CHECK(cache.rows.on_trial() == rows.size() - 9);

  // The others on trial go until a quarter of those that are left is on trial.
  const std::vector<uint32_t> rest = cache.rows.Victims(rows.size());
  CHECK(rest.size() == rows.size() - 7);
  CHECK(rest[0] == rows[9]);
  CHECK(std::set<uint32_t>(rest.begin(), rest.end()).size() == rest.size());
}

TEST_CASE("rows that passed their trial leave in turn once a quarter is on trial, the used later") {
  Cache cache(16);
  REQUIRE(cache.rows.Grow(false));
  std::vector<uint32_t> rows = cache.Fill();
  const size_t passed = rows.size() * 9 / 10;
  cache.rows.BeginArrival();
  for (size_t i = 0; i < passed; ++i) cache.rows.Touch(rows[i]);
  // The hand ends the trials of the first three quarters, and takes those of them in turn that were
  // not used since.
  cache.rows.Touch(rows[1]);
  CHECK(cache.rows.on_trial() == rows.size());
  CHECK(cache.rows.Victims(3) == std::vector<uint32_t>(rows.begin(), rows.begin() + 3));
  CHECK(cache.rows.on_trial() == rows.size() / 4);
  cache.rows.Touch(rows[4]);
  CHECK(cache.rows.Victims(3) == std::vector<uint32_t>{rows[3], rows[5], rows[6]});
}

TEST_CASE("keys that come once take no rows from those that come often") {
  std::mt19937_64 rng(TestSeed());
  Cache cache(16);
  REQUIRE(cache.rows.Grow(false));
  const size_t places = cache.rows.free();
  const size_t often = places / 2;  // the keys below this one come often
  std::unordered_map<Key, uint32_t> cached;
  const auto use = [&](Key key) {
    const auto found = cached.find(key);
    if (found != cached.end()) {
      cache.rows.Touch(found->second);
      return true;
    }
    if (cache.rows.free() == 0) {
      for (uint32_t row : cache.rows.Victims(32)) {
        cached.erase(cache.rows.key(row));
        cache.rows.Free(row);
      }
    }
    REQUIRE(cache.rows.free() > 0);
    cache.rows.BeginArrival();
    const uint32_t row = cached[key] = cache.rows.Allocate(key);
    cache.rows.Touch(row);
    return false;
  };
  std::list<Key> by_use;  // as many keys, the one that was used last before the others
  std::unordered_map<Key, std::list<Key>::iterator> listed;
  const auto use_listed = [&](Key key) {
    const auto found = listed.find(key);
    const bool is_listed = found != listed.end();
    if (is_listed) by_use.erase(found->second);
    by_use.push_front(key);
    listed[key] = by_use.begin();
    if (by_use.size() > places) {
      listed.erase(by_use.back());
      by_use.pop_back();
    }
    return is_listed;
  };
  Key next = 1 << 20;
  size_t missed = 0, missed_by_use = 0;
  for (size_t round = 0; round < 60; ++round) {
    // Four of five keys have never been seen, and never come again.
    for (size_t i = 0; i < places / 2; ++i) {
      if (rng() % 5 != 0) {
        use(next);
        use_listed(next++);
        continue;
      }
      const Key key = static_cast<Key>(rng() % often);
      const bool hit = use(key), hit_by_use = use_listed(key);
      if (round < 30) continue;
      missed += !hit;
      missed_by_use += !hit_by_use;
    }
    REQUIRE(cache.rows.live() + cache.rows.free() == places);
    REQUIRE(cache.rows.live() == cached.size());
  }
  CAPTURE(missed);
  CAPTURE(missed_by_use);
  CHECK(missed < missed_by_use / 3);
}

TEST_CASE("rows that were all used are victims all the same") {
  Cache cache(16);
  REQUIRE(cache.rows.Grow(false));
  REQUIRE(cache.rows.Grow(false));
  const std::vector<uint32_t> rows = cache.Fill();
  cache.rows.BeginArrival();
  for (uint32_t row : rows) cache.rows.Touch(row);
  std::vector<uint32_t> in_order = rows;
  std::sort(in_order.begin(), in_order.end());
  in_order.resize(10);
  CHECK(cache.rows.Victims(10) == in_order);
}

TEST_CASE("rows that are pinned, kept or being written are not evicted, nor is their block") {
  Cache cache(16);
  REQUIRE(cache.rows.Grow(false));
  REQUIRE(cache.rows.Grow(false));
  const std::vector<uint32_t> rows = cache.Fill();
  for (RowState state : {kRowPinned, kRowKept}) {
    const uint32_t staying = rows[3];
    const uint32_t evictable = cache.rows.SpillableBlock();
    CHECK(evictable != CacheRows::kNone);
    cache.rows.Mark(staying, state);
    const std::vector<uint32_t> victims = cache.rows.Victims(rows.size());
    CHECK(victims.size() == rows.size() - 1);
    CHECK(std::count(victims.begin(), victims.end(), staying) == 0);
    CHECK(cache.rows.state(staying) == (kCame | state));
    for (int i = 0; i < 4; ++i) {
      bool has_staying = false;
      cache.rows.ForEachOfBlock(cache.rows.SpillableBlock(),
                                [&](uint32_t row) { has_staying |= row == staying; });
      CHECK_FALSE(has_staying);
    }
    cache.rows.Unmark(staying, state);
  }
  for (uint32_t row : rows) cache.rows.Mark(row, kRowKept);
  CHECK(cache.rows.Victims(5).empty());
  CHECK(cache.rows.SpillableBlock() == CacheRows::kNone);
}

TEST_CASE("there are no victims in an empty cache") {
  Cache cache(16);
  CHECK(cache.rows.Victims(3).empty());
  CHECK(cache.rows.SpillableBlock() == CacheRows::kNone);
  REQUIRE(cache.rows.Grow(false));
  CHECK(cache.rows.Victims(3).empty());
}

TEST_CASE("a block that is given back leaves the others as they are, and its place is used again") {
  Cache cache(16);
  for (int i = 0; i < 3; ++i) REQUIRE(cache.rows.Grow(false));
  const size_t rows_per_block = cache.rows.free() / 3;
  const std::vector<uint32_t> rows = cache.Fill();
  for (uint32_t row : rows) *cache.rows.row(row) = static_cast<float>(row);
  const uint32_t block = cache.rows.SpillableBlock();
  REQUIRE(block != CacheRows::kNone);
  std::vector<uint32_t> gone;
  cache.rows.ForEachOfBlock(block, [&](uint32_t row) { gone.push_back(row); });
  CHECK(gone.size() == rows_per_block);
  cache.Evict(gone);
  CHECK(cache.rows.free() == rows_per_block);
  cache.rows.Release(block);
  CHECK(cache.rows.free() == 0);
  CHECK(cache.rows.blocks() == 2);
  CHECK(cache.rows.live() == 2 * rows_per_block);
  CHECK(cache.memory.used() == 2 * kBlock);
  size_t left = 0;
  cache.rows.ForEach(
      [&](uint32_t row) { left += *cache.rows.row(row) == static_cast<float>(row); });
  CHECK(left == 2 * rows_per_block);
  CHECK(cache.rows.Victims(rows.size()).size() == 2 * rows_per_block);

  REQUIRE(cache.rows.Grow(false));
  std::vector<uint32_t> again = cache.Fill();
  std::sort(again.begin(), again.end());
  CHECK(again == gone);
}

TEST_CASE("a reset gives all blocks back and takes another length of row") {
  Cache cache(16);
  REQUIRE(cache.rows.Grow(false));
  const size_t before = cache.rows.free();
  cache.Fill();
  cache.rows.Reset(std::make_shared<const RowLayout>(64, std::vector<Slot>{}));
  CHECK(cache.memory.used() == 0);
  CHECK(cache.rows.live() == 0);
  CHECK(cache.rows.free() == 0);
  CHECK(cache.rows.layout().dim() == 64);
  REQUIRE(cache.rows.Grow(false));
  CHECK(cache.rows.free() < before / 2);
}

TEST_CASE("readers touch rows at once, and no other mark of a row is lost") {
  Cache cache(4);
  REQUIRE(cache.rows.Grow(false));
  const std::vector<uint32_t> rows = cache.Fill();
  for (size_t i = 0; i < rows.size(); i += 2) cache.rows.Mark(rows[i], kRowDirty);
  cache.rows.BeginArrival();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (uint32_t row : rows) cache.rows.Touch(row);
    });
  }
  for (std::thread& thread : threads) thread.join();
  bool as_expected = true;
  for (size_t i = 0; i < rows.size(); ++i) {
    const int expected = kRowLive | kRowOnTrial | kRowUsed | (i % 2 == 0 ? kRowDirty : 0);
    as_expected &= cache.rows.state(rows[i]) == expected;
  }
  CHECK(as_expected);
}

}  // namespace
}  // namespace sok
