// Table: what goes where a full table needs room, in memory and on disk.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "core/base/test_result.h"
#include "core/base/test_threads.h"
#include "core/storage/storage.h"
#include "core/storage/test_place.h"
#include "core/tables/table.h"

namespace sok {
namespace {

TEST_CASE("a full table evicts exactly as many rows as it needs: least recently, least often") {
  for (const bool on_disk : {false, true}) {
    Place lru(on_disk, Kind("lru"), 4);
    Place lfu(on_disk, Kind("lfu"), 4);
    for (Place* place : {&lru, &lfu}) {
      place->Step({1, 2});
      place->Step({2, 1});
      place->Step({3});
      place->Step({2, 4});
      CHECK(place->Rows() == Keys{1, 2, 3, 4});
      CHECK(place->table->Stats().evicted == 0);
      place->Tick();
      REQUIRE(place->Look({5}).ok());
    }
    CHECK(lru.Rows() == Keys{2, 3, 4, 5});  // 1 was trained in step 2
    CHECK(lfu.Rows() == Keys{1, 2, 4, 5});  // 3 once, before 4
    REQUIRE(lru.Look({6, 7, 6}).ok());
    REQUIRE(lfu.Look({6, 7, 6}).ok());
    CHECK(lru.Rows() == Keys{4, 5, 6, 7});  // 3, then 2, the least key of step 4
    CHECK(lfu.Rows() == Keys{1, 2, 6, 7});  // 5 not at all, 4 once
    CHECK(lru.table->Stats().evicted == 3);
    CHECK(lfu.table->Stats().evicted == 3);
    std::vector<float> row(kDim);
    const Key gone = 3;
    REQUIRE(lfu.table->Lookup(&gone, 1, false, row.data(), SerialFor).ok());
    CHECK(row == std::vector<float>{1, 1});  // as it starts
  }
}

TEST_CASE("of rows of one time and count the least keys go, as unsigned numbers") {
  for (const bool on_disk : {false, true}) {
    for (const char* kind : {"lru", "lfu"}) {
      Place place(on_disk, Kind(kind), 4);
      REQUIRE(place.Look({~Key{0}, 9, 3, Key{1} << 63}).ok());
      REQUIRE(place.Look({1, 0}).ok());
      CHECK(place.Rows() == Keys{0, 1, Key{1} << 63, ~Key{0}});
    }
  }
}

TEST_CASE("keys of the call at hand keep their rows; a call of too many changes nothing") {
  for (const bool on_disk : {false, true}) {
    Place place(on_disk, Kind("lru"), 4);
    place.Step({1});
    place.Step({2, 3, 4});
    REQUIRE(place.Look({1, 5, 6}).ok());  // 1 is the oldest
    CHECK(place.Rows() == Keys{1, 4, 5, 6});
    const Status full = place.Look({1, 7, 8, 9, 10});
    CHECK(full.code() == Code::kResourceExhausted);
    CHECK(full.message().find("brings 4 new keys") != std::string::npos);
    CHECK(place.Rows() == Keys{1, 4, 5, 6});
    CHECK(place.table->Stats().evicted == 2);
    REQUIRE(place.Look({7, 8, 9, 10}).ok());
    CHECK(place.Rows() == Keys{7, 8, 9, 10});
  }
}

TEST_CASE("assignments, updates and rows that commits make evict as lookups do") {
  for (const bool on_disk : {false, true}) {
    Place place(on_disk, Kind("lru"), 3);
    const Keys keys = {1, 2, 3, 4};
    const std::vector<float> values(8, 7.0f);
    REQUIRE(place.table->Assign(keys.data(), 3, values.data(), SerialFor).ok());
    place.Tick();
    REQUIRE(place.table->Assign(keys.data() + 2, 2, values.data(), SerialFor).ok());
    CHECK(place.Rows() == Keys{2, 3, 4});
    CHECK_FALSE(place.table->Assign(keys.data(), 4, values.data(), SerialFor).ok());
    CHECK(place.Rows() == Keys{2, 3, 4});
    // The lookup made no rows.
    place.Tick();
    LookupKeys lookup = Place::Held({9});
    const auto ones = std::make_shared<const std::vector<float>>(kDim, 1.0f);
    REQUIRE(place.table->Deposit(lookup, ones, ones->data(), nullptr).ok());
    CHECK(place.Commit().rows == 1);
    CHECK(place.Rows() == Keys{3, 4, 9});
    const auto sgd = Value(MakeRowOptimizer("sgd", {}));
    const Key key = 10;
    place.Tick();
    REQUIRE(place.table->Update(&key, 1, values.data(), "sgd", *sgd, {}, SerialFor).ok());
    CHECK(place.Rows() == Keys{4, 9, 10});
    CHECK(place.table
              ->MakeRowsAs(
                  &keys[0], 1, [](size_t, float* row, int) { row[0] = row[1] = 5; }, SerialFor)
              .ok());
    CHECK(place.Rows() == Keys{1, 9, 10});
  }
}

TEST_CASE("lookups whose gradients are still to come keep their rows until the commit") {
  for (const bool on_disk : {false, true}) {
    Place place(on_disk, Kind("lru"), 4);
    const Keys first = {1, 2}, second = {3, 4};
    LookupKeys batch = Place::Held(first);
    batch.claim = place.table->Claim(batch);
    REQUIRE(place.Look(first).ok());
    REQUIRE(place.Look(second).ok());
    REQUIRE(place.Look({5, 6}).ok());
    CHECK(place.Rows() == Keys{1, 2, 5, 6});
    CHECK(place.Look({7, 8, 9}).code() == Code::kResourceExhausted);
    CHECK(place.Rows() == Keys{1, 2, 5, 6});
    // The claim passes to the gradients, whatever else holds the lookup's keys.
    place.Deposit(first, batch.claim);
    place.Tick();
    REQUIRE(place.Look({7}).ok());
    CHECK(place.Rows() == Keys{1, 2, 6, 7});
    CHECK(place.Commit().rows == 2);
    place.Tick();
    REQUIRE(place.Look({8, 9, 10, 11}).ok());
    CHECK(place.Rows() == Keys{8, 9, 10, 11});
    // Gradients by a lookup of another time keep rows, too; dropping them ends that.
    place.Deposit({8}, batch.claim);
    REQUIRE(place.Look({1, 2, 3}).ok());
    CHECK(place.Rows() == Keys{1, 2, 3, 8});
    CHECK(place.table->DropDeposits() == 1);
    REQUIRE(place.Look({4, 5, 6, 7}).ok());
    CHECK(place.Rows() == Keys{4, 5, 6, 7});
  }
}

TEST_CASE("the claim of a lookup that nobody takes gradients of ends with it") {
  Place place(false, Kind("lfu"), 2);
  {
    LookupKeys batch = Place::Held({1, 2});
    batch.claim = place.table->Claim(batch);
    REQUIRE(place.Look({1, 2}).ok());
    CHECK_FALSE(place.Look({3}).ok());
  }
  REQUIRE(place.Look({3}).ok());
  CHECK(place.Rows() == Keys{2, 3});
  CHECK(Value(Table::Make(Config(5)))->Claim(Place::Held({1})) == nullptr);  // none is needed
}

TEST_CASE("two gradients of one lookup keep its rows until both were committed") {
  Place place(false, Kind("lru"), 2);
  LookupKeys batch = Place::Held({1});
  batch.claim = place.table->Claim(batch);
  place.Step({2});
  REQUIRE(place.Look({1}).ok());
  place.Deposit({1}, batch.claim);
  place.Deposit({1}, batch.claim);
  batch.claim.reset();
  REQUIRE(place.Look({3}).ok());
  CHECK(place.Rows() == Keys{1, 3});
  CHECK(place.Commit().rows == 1);
  REQUIRE(place.Look({4, 5}).ok());
  CHECK(place.Rows() == Keys{4, 5});
}

TEST_CASE("gradients of rows that have gone touch no other row, and make none") {
  for (const bool on_disk : {false, true}) {
    Place place(on_disk, Kind("lru"), 2);
    REQUIRE(place.Look({1, 2}).ok());
    // A lookup without a claim, as if its claim had ended: rows go before there are gradients.
    REQUIRE(place.Look({3, 4}).ok());
    place.Deposit({1, 2, 3});
    CHECK(place.Commit().rows == 1);
    CHECK(place.Rows() == Keys{3, 4});
    std::vector<float> rows(2 * kDim);
    const Keys keys = {3, 4};
    REQUIRE(place.table->Lookup(keys.data(), 2, false, rows.data(), SerialFor).ok());
    CHECK(rows == std::vector<float>{0, 0, 1, 1});
  }
}

TEST_CASE("rows that were removed, restored or loaded meanwhile are known of") {
  for (const char* kind : {"lru", "lfu"}) {
    Place place(true, Kind(kind), 4);
    place.Step({1, 2, 3, 4});
    place.Step({5});
    CHECK(place.Rows() == Keys{2, 3, 4, 5});
    const Keys gone = {2, 5};
    CHECK(Value(place.table->Remove(gone.data(), 2, SerialFor)) == 2);
    place.Step({6, 5});
    place.Step({7});
    CHECK(place.Rows() == Keys{4, 5, 6, 7});
    REQUIRE(Value(place.storage->Dump(place.storage->path() + "-dump", {}, nullptr)) == 4);
    place.Step({4});
    place.Step({4, 20, 21, 22});
    CHECK(place.Rows() == Keys{4, 20, 21, 22});
    // Back they come, beside others: more than the limit.
    REQUIRE(Value(place.storage->Load(place.storage->path() + "-dump", nullptr)) == 4);
    CHECK(place.table->size() == 7);
    place.Step({20});  // brings none: nothing goes
    CHECK(place.table->size() == 7);
    place.Step({30});  // 4 has its counters of the dump again
    CHECK(place.Rows() == Keys{20, 21, 22, 30});
  }
}

TEST_CASE("rows that have expired need not be made room for") {
  Place place(true, Kind("lfu"), 3, {}, /*ttl=*/10);
  place.storage->SetNow(100);
  REQUIRE(place.Look({1, 2}).ok());
  place.storage->SetNow(108);
  REQUIRE(place.Look({3}).ok());
  place.storage->SetNow(111);
  REQUIRE(place.Look({4, 5}).ok());
  CHECK(place.Rows() == Keys{3, 4, 5});
  CHECK(place.table->Stats().evicted == 0);
  REQUIRE(place.Look({6}).ok());
  CHECK(place.Rows() == Keys{4, 5, 6});
}

TEST_CASE("removals in other threads fail no call that makes rows in a full table") {
  for (const bool on_disk : {false, true}) {
    constexpr uint64_t kMost = 300;
    constexpr size_t kBatch = 60;
    Place place(on_disk, Kind("lru"), kMost);
    Table& table = *place.table;
    std::atomic<int> makers{3};
    std::atomic<int> failures{0};
    const int calls = (on_disk ? 200 : 2000) * (LongTests() ? 3 : 1);
    const auto make = [&](int what) {
      std::mt19937_64 random(what);
      const std::vector<float> values(kBatch * kDim, 1.0f);
      const auto sgd = Value(MakeRowOptimizer("sgd", {{"learning_rate", 1.0}}));
      for (int i = 0; i < calls; ++i) {
        Keys keys(kBatch);
        for (Key& key : keys) key = random() % (2 * kMost);
        Status status;
        if (what == 0) status = table.Assign(keys.data(), kBatch, values.data(), SerialFor);
        if (what == 1) status = place.Look(keys);
        if (what == 2) {
          status = table.Update(keys.data(), kBatch, values.data(), "sgd", *sgd, {}, SerialFor);
        }
        if (!status.ok()) ++failures;
      }
      --makers;
    };
    std::vector<std::thread> threads;
    for (int what = 0; what < 3; ++what) threads.emplace_back(make, what);
    threads.emplace_back([&] {
      std::mt19937_64 random(99);
      while (makers > 0) {
        const Key key = random() % (2 * kMost);
        if (!table.Remove(&key, 1, SerialFor).ok()) ++failures;
        std::this_thread::yield();
      }
    });
    for (std::thread& thread : threads) thread.join();
    CHECK(failures == 0);
    CHECK(table.size() <= kMost);
  }
}

TEST_CASE("a row that was written by a clock ahead counts as trained now") {
  Place place(true, Kind("lru"), 3);
  place.storage->SetNow(1000);
  REQUIRE(place.Look({1}).ok());
  CHECK(place.storage->Close().ok());
  const std::string path = place.storage->path();
  place.table.reset();
  StorageOptions options;
  options.path = path;
  place.storage = Value(Storage::Open(options));
  place.storage->SetNow(500);
  TableSpec config = Config(3);
  config.eviction = Kind("lru");
  place.table = Value(place.storage->OpenTable(config));
  REQUIRE(place.Look({2, 3}).ok());
  REQUIRE(place.Look({4}).ok());
  CHECK(place.Rows() == Keys{2, 3, 4});  // of equal times the least key
}

TEST_CASE("lookups and commits beside each other keep the table within its limit") {
  for (const bool on_disk : {false, true}) {
    for (const char* kind : {"lru", "lfu"}) {
      Place place(on_disk, Kind(kind), 200);
      std::atomic<bool> failed{false}, beyond{false};
      const auto work = [&](uint64_t seed) {
        std::mt19937_64 rng(seed);
        for (int round = 0; round < 150; ++round) {
          Keys keys(40);
          for (Key& key : keys) key = rng() % 1000;
          LookupKeys batch = Place::Held(keys);
          batch.claim = place.table->Claim(batch);
          std::vector<float> out(keys.size() * kDim);
          const Status status =
              place.table->Lookup(batch.keys, batch.n, true, out.data(), SerialFor);
          if (!status.ok()) failed = true;
          std::vector<RowMeta> metas(keys.size());
          std::vector<uint8_t> exists(keys.size());
          if (!place.table->ReadMeta(batch.keys, batch.n, metas.data(), exists.data(), SerialFor)
                   .ok() ||
              std::count(exists.begin(), exists.end(), 0) > 0) {
            failed = true;  // claimed rows are there
          }
          if (place.table->size() > 200) beyond = true;
          const auto ones = std::make_shared<const std::vector<float>>(keys.size() * kDim, 1.0f);
          REQUIRE(place.table->Deposit(batch, ones, ones->data(), nullptr).ok());
          batch.claim.reset();
          if (!place.table->Commit({"sgd", {}, 0, 1.0f}, SerialFor).ok()) failed = true;
        }
      };
      // Four batches of 40 keys at a time fit into 200 rows.
      std::vector<std::thread> threads;
      const uint64_t seed = TestSeed();
      for (uint64_t t = 0; t < 4; ++t) threads.emplace_back(work, seed + t);
      for (std::thread& thread : threads) thread.join();
      CHECK_FALSE(beyond);
      CHECK_FALSE(failed);
      CHECK(place.Rows().size() <= 200);
    }
  }
}

}  // namespace
}  // namespace sok
