#include "core/disk/cache_rows.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <set>
#include <thread>
#include <vector>

namespace sok {
namespace {

constexpr size_t kBlock = CacheMemory::kBlockBytes;

struct NoHolder final : CacheMemory::Holder {
  bool GiveUpBlock() override { return false; }
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
      apart &= cache.rows.state(rows[i]) == kRowLive;
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
  CHECK(cache.rows.state(first) == kRowLive);
  CHECK(cache.rows.key(first) == 3);
}

TEST_CASE("a row that changes differs from what the spill has of it") {
  Cache cache(8);
  REQUIRE(cache.rows.Grow(false));
  const uint32_t row = cache.rows.Allocate(1);
  cache.rows.Mark(row, kRowSpilled);
  cache.rows.MarkChanged(row);
  CHECK(cache.rows.state(row) == (kRowLive | kRowDirty));
  cache.rows.Unmark(CacheRows::kNone, kRowDirty);
}

TEST_CASE("the clock's hand takes rows in turn, and spares once those that were used") {
  Cache cache(16);
  REQUIRE(cache.rows.Grow(false));
  const std::vector<uint32_t> rows = cache.Fill();
  const std::vector<uint32_t> first(rows.begin(), rows.begin() + 4);
  CHECK(cache.rows.Victims(4) == first);
  CHECK(cache.rows.state(rows[0]) == kRowLive);  // choosing leaves no mark
  cache.Evict(first);

  cache.rows.Touch(rows[5]);
  cache.rows.Touch(rows[6]);
  const std::vector<uint32_t> next = cache.rows.Victims(3);
  CHECK(next == std::vector<uint32_t>{rows[4], rows[7], rows[8]});
  cache.Evict(next);
  CHECK(cache.rows.state(rows[5]) == kRowLive);  // the next pass takes it

  // The hand goes on to the end, and from the start again: the two that were spared come last.
  std::vector<uint32_t> rest(rows.begin() + 9, rows.end());
  rest.push_back(rows[5]);
  rest.push_back(rows[6]);
  CHECK(cache.rows.Victims(rows.size()) == rest);
}

TEST_CASE("rows that were all used are victims in their order all the same") {
  Cache cache(16);
  REQUIRE(cache.rows.Grow(false));
  REQUIRE(cache.rows.Grow(false));
  const std::vector<uint32_t> rows = cache.Fill();
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
    CHECK(cache.rows.state(staying) == (kRowLive | state));
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
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (uint32_t row : rows) cache.rows.Touch(row);
    });
  }
  for (std::thread& thread : threads) thread.join();
  bool as_expected = true;
  for (size_t i = 0; i < rows.size(); ++i) {
    const int expected = kRowLive | kRowUsed | (i % 2 == 0 ? kRowDirty : 0);
    as_expected &= cache.rows.state(rows[i]) == expected;
  }
  CHECK(as_expected);
}

}  // namespace
}  // namespace sok
