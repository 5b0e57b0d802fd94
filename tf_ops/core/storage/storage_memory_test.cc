// The memory of a cache that has to give some back.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "core/base/test_folder.h"
#include "core/base/test_result.h"
#include "core/base/thread_pool.h"
#include "core/disk/disk_store.h"
#include "core/disk/rocksdb/row_database.h"
#include "core/disk/test_failing_database.h"

namespace sok {
namespace {

constexpr int kDim = 16;
constexpr uint64_t kCache = uint64_t{32} << 20;

// A group with nothing but itself in its storage. The row of a key has its number in each element.
struct Group {
  explicit Group(uint64_t most_spilled = 1 << 20)
      : core(std::make_shared<StorageCore>(/*ttl=*/0, /*now=*/nullptr, kCache)) {
    core->path = folder / "rows";
    core->database = Value(FailingDatabase::Over(
        RowDatabase::Open, faults)({core->path, /*read_only=*/false, core->expiry}));
    core->spill = Value(SpillFile::Open(core->path, most_spilled));
    GroupMeta meta;
    meta.dim = kDim;
    store = std::make_unique<DiskStore>(core, /*group=*/0, meta);
  }

  // Writes rows whose values are the key's number and `more`.
  void Write(Key first, size_t n, float more = 0) {
    std::vector<Key> keys(n);
    std::iota(keys.begin(), keys.end(), first);
    const auto write = [&](size_t position, RowRef row, bool) {
      std::fill_n(row.embedding, kDim, static_cast<float>(keys[position]) + more);
      row.meta->update_num += 2;  // rows that were hardly updated are not spilled
    };
    REQUIRE(store->Upsert(keys.data(), n, /*max_rows=*/0, /*now=*/0, write, ProcessPool()).ok());
  }
  void Check(size_t n) {
    std::vector<Key> keys(n);
    std::iota(keys.begin(), keys.end(), Key{0});
    std::vector<float> out(n * kDim);
    std::vector<uint32_t> missing;
    REQUIRE(store->Gather(keys.data(), n, out.data(), {}, nullptr, &missing, ProcessPool()).ok());
    CHECK(missing.empty());
    size_t wrong = 0;
    for (size_t i = 0; i < n * kDim; ++i) wrong += out[i] != static_cast<float>(i / kDim);
    CHECK(wrong == 0);
  }

  // Forgets the cache. Rows that it has and the database lacks must have been settled.
  void EmptyCache() {
    store->DropSpilled();
    store->DropCache(store->size(), 0);
  }

  const TestFolder folder;  // goes last
  const std::shared_ptr<PlantedFaults> faults = std::make_shared<PlantedFaults>();
  const std::shared_ptr<StorageCore> core;
  std::unique_ptr<DiskStore> store;
};

}  // namespace

TEST_CASE("memory that something else takes at once is given back by calls, a part by each") {
  Group group;
  CacheMemory& memory = group.core->memory;
  size_t rows = 0;
  for (; rows < 400000; rows += 20000) group.Write(rows, 20000);
  // Indexes have grown meanwhile, which calls that follow make good.
  for (int call = 0; call < 20 && memory.used() > memory.limit(); ++call) group.Write(0, 1000);
  REQUIRE(memory.used() > memory.limit() - memory.limit() / 8);
  REQUIRE(memory.used() <= memory.limit());
  memory.Charge(0, kCache / 2);
  REQUIRE(memory.used() > memory.limit() + (uint64_t{8} << 20));
  int calls = 0;
  for (; memory.used() > memory.limit() && calls < 100; ++calls) {
    const uint64_t before = memory.used();
    group.Write(0, 1);  // a row of one shard
    CHECK(memory.used() + (uint64_t{2} << 20) + CacheMemory::kBlockBytes >= before);
    group.Write(rows++, 1);
  }
  CHECK(calls > 1);
  CHECK(memory.used() <= memory.limit());
  group.Check(rows);
}

TEST_CASE("a call gives back all memory that it took beyond the cache") {
  Group group;
  const CacheMemory& memory = group.core->memory;
  for (size_t rows : {1000, 600000, 600000}) {
    group.Write(0, rows);
    // Indexes have grown meanwhile, which calls that follow make good.
    CHECK(memory.used() <= memory.budget());
    for (int call = 0; call < 20 && memory.used() > memory.limit(); ++call) group.Write(0, 1000);
    CHECK(memory.used() <= memory.limit());
  }
  group.Check(600000);
}

TEST_CASE("rows that were used again stay while rows are made that are not") {
  Group group(/*most_spilled=*/1 << 16);
  constexpr size_t kUsed = 1000;
  group.Write(0, kUsed);
  group.Write(kUsed, 20000);
  group.Check(kUsed);
  size_t rows = kUsed + 20000;
  for (; rows < 600000; rows += 20000) group.Write(rows, 20000);
  const uint64_t before = group.store->cache_hits();
  group.Check(kUsed);
  // Some were in blocks that left whole, since indexes grew.
  CHECK(group.store->cache_hits() - before > kUsed / 4);
}

TEST_CASE("rows that are read ahead are in the cache when a call asks for them") {
  Group group;
  DiskStore& store = *group.store;
  constexpr size_t kRows = 20000;
  group.Write(0, kRows);
  REQUIRE(store.Settle().ok());
  group.EmptyCache();
  std::vector<Key> keys(2 * kRows);  // half of them have no row
  std::iota(keys.begin(), keys.end(), Key{0});
  for (int turn = 0; turn < 2; ++turn) {
    REQUIRE(store.ReadAhead(keys.data(), keys.size(), ProcessPool()).ok());
    CHECK(store.ahead().read == kRows);
  }
  CHECK(store.size() == kRows);
  CHECK(store.made() == kRows);
  CHECK(store.cache_hits() == 0);
  group.Check(kRows);
  CHECK(store.cache_hits() == kRows);
  CHECK(Value(store.Missing(keys.data(), keys.size(), ProcessPool())).size() == kRows);
  CHECK(store.ahead().left_behind == 0);
}

TEST_CASE("rows that are read ahead take a quarter of the cache, until a call has used them") {
  Group group;
  DiskStore& store = *group.store;
  constexpr size_t kRows = 600000;  // four times what the cache holds
  for (size_t row = 0; row < kRows; row += 20000) group.Write(row, 20000);
  REQUIRE(store.Settle().ok());
  group.EmptyCache();
  std::vector<Key> keys(kRows);
  std::iota(keys.begin(), keys.end(), Key{0});
  const CacheMemory& memory = group.core->memory;
  for (size_t turn = 0; turn < 3; ++turn) {
    REQUIRE(store.ReadAhead(keys.data(), kRows, ProcessPool()).ok());
    const auto [read, left_behind] = store.ahead();
    CHECK(memory.ahead() > memory.limit() / 8);
    CHECK(memory.ahead() <= memory.limit() / 4 + memory.limit() / 100);
    CHECK(read + left_behind >= kRows);
    // A call that changes all rows needs room for them, and meets most of those that were read.
    group.Write(0, kRows);
    group.core->memory.EndAhead();
    CHECK(memory.ahead() < memory.limit() / 8);
    REQUIRE(store.Settle().ok());
    group.EmptyCache();
  }
  group.Check(kRows);
}

TEST_CASE("lookups alone make room for more rows that are read ahead") {
  Group group;
  DiskStore& store = *group.store;
  constexpr size_t kRows = 100000, kBatch = 2000;  // all of them fit into the cache
  group.Write(0, kRows);
  REQUIRE(store.Settle().ok());
  group.EmptyCache();
  std::vector<Key> keys(kBatch);
  std::vector<float> out(kBatch * kDim);
  for (Key first = 0; first < kRows; first += kBatch) {
    std::iota(keys.begin(), keys.end(), first);
    REQUIRE(store.ReadAhead(keys.data(), kBatch, ProcessPool()).ok());
    REQUIRE(store.Gather(keys.data(), kBatch, out.data(), {}, nullptr, nullptr, SerialFor).ok());
  }
  CHECK(store.ahead().left_behind == 0);
  CHECK(store.ahead().read == kRows);
  CHECK(store.cache_hits() == kRows);
}

TEST_CASE("a row that changes while it is read ahead is the changed one") {
  constexpr Key kRows = 100, kMore = 1000000;
  std::vector<Key> keys(kRows);
  std::iota(keys.begin(), keys.end(), Key{0});
  for (const uint64_t most_spilled : {0, 1 << 20}) {
    for (const int kind : {0, 1, 2}) {
      const bool erased = kind == 1, after_others = kind == 2;
      CAPTURE(most_spilled);
      CAPTURE(kind);
      Group group(most_spilled);
      DiskStore& store = *group.store;
      group.Write(0, kRows);
      REQUIRE(store.Settle().ok());
      group.EmptyCache();
      std::atomic<bool> changed{false};
      group.faults->after_read = [&] {
        if (changed.exchange(true)) return;
        std::thread other([&] {
          // More rows leave the cache than a shard notes.
          if (after_others) group.Write(kMore, 600000);
          group.Write(0, kRows, 0.5f);
          if (erased) REQUIRE(store.Erase(keys.data(), kRows / 2, ProcessPool()).ok());
          group.Write(kMore + 300000, 300000);  // the rows leave the cache
          group.Write(kMore, 300000);
        });
        other.join();
      };
      REQUIRE(store.ReadAhead(keys.data(), kRows, SerialFor).ok());
      group.faults->after_read = nullptr;
      REQUIRE(changed);
      std::vector<float> out(kRows * kDim, -1.0f);
      std::vector<uint32_t> missing;
      REQUIRE(store.Gather(keys.data(), kRows, out.data(), {}, nullptr, &missing, SerialFor).ok());
      CHECK(missing.size() == (erased ? kRows / 2 : 0));
      size_t wrong = 0;
      for (size_t i = erased ? kRows / 2 : 0; i < kRows; ++i) {
        wrong += out[i * kDim] != static_cast<float>(i) + 0.5f;
      }
      CHECK(wrong == 0);
      CHECK(store.size() == 600000 + kRows - missing.size());
    }
  }
}

TEST_CASE("keys that a search found nowhere have rows once somebody has made them") {
  Group group;
  std::vector<Key> keys(1000);
  std::iota(keys.begin(), keys.end(), Key{0});
  const auto made = [&] {
    std::atomic<size_t> made{0};
    const auto write = [&](size_t, RowRef, bool is_new) { made += is_new; };
    REQUIRE(group.store->Upsert(keys.data(), keys.size(), 0, 0, write, ProcessPool()).ok());
    return made.load();
  };
  const auto missing = [&] {
    return Value(group.store->Missing(keys.data(), keys.size(), ProcessPool())).size();
  };
  for (const bool flushed : {false, true}) {
    CHECK(missing() == 1000);
    CHECK(missing() == 1000);
    group.Write(0, 1000);
    CHECK(missing() == 0);
    // These rows leave the cache, by way of the spill or for the database.
    group.Write(1000, 400000);
    if (flushed) {
      REQUIRE(group.store->Settle().ok());
      group.store->DropSpilled();
    }
    CHECK(made() == 0);
    CHECK(Value(group.store->Erase(keys.data(), keys.size(), ProcessPool())) == 1000);
    CHECK(missing() == 1000);
    CHECK(made() == 1000);
    CHECK(made() == 0);
    CHECK(Value(group.store->Erase(keys.data(), keys.size(), ProcessPool())) == 1000);
  }
}

TEST_CASE("the places of spilled rows take no more memory than they were given") {
  Group group(/*most_spilled=*/1 << 18);
  group.Write(0, 1000);
  const CacheMemory& memory = group.core->memory;
  constexpr size_t kRows = 1200000;
  for (size_t rows = 0; rows < kRows; rows += 20000) group.Write(rows, 20000);
  // Beside them there is the index of cached rows, at most 40 bytes for each 100 of a row, and the
  // filters and indexes of files of pending rows, at most 4 bytes a row.
  const uint64_t places = (uint64_t{1} << 18) * (HashIndex::kBytesAKey + 2);
  const uint64_t others = StorageCore::WorkBytes(kCache) + kCache * 2 / 5 + kRows * 4;
  CHECK(memory.charged() <= places + others);
  CHECK(group.core->spill->rows() > (1 << 18) * 3 / 4);
  group.Check(1000);
}

}  // namespace sok
