// TableStats: the counters of lookups and of rows that were made.
#include <doctest/doctest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/test_folder.h"
#include "core/base/test_result.h"
#include "core/base/test_threads.h"
#include "core/storage/storage.h"
#include "core/tables/table.h"

namespace sok {
namespace {

constexpr int kDim = 3;

TableSpec Config() {
  TableSpec config;
  config.dim = kDim;
  return config;
}

std::shared_ptr<Storage> OpenStorage(const std::string& path) {
  StorageOptions options;
  options.path = path;
  options.cache_bytes = uint64_t{1} << 20;
  return Value(Storage::Open(options));
}

std::shared_ptr<Table> OpenTable(Storage& storage) { return Value(storage.OpenTable(Config())); }

// Tables in memory, in memory by position, and on disk.
struct Tables {
  Tables() {
    TableSpec direct = Config();
    direct.direct = true;
    direct.max_rows = 100;
    all = {Value(Table::Make(Config())), Value(Table::Make(direct)), OpenTable(*storage)};
  }
  ~Tables() {
    all.clear();
    CHECK(storage->Close().ok());
  }
  TestFolder folder;
  std::shared_ptr<Storage> storage = OpenStorage(folder / "storage");
  std::vector<std::shared_ptr<Table>> all;
};

void Look(Table& table, const std::vector<Key>& keys, bool make_rows) {
  std::vector<float> out(keys.size() * kDim);
  REQUIRE(table.Lookup(keys.data(), keys.size(), make_rows, out.data(), ThreadedFor).ok());
}

void Check(Table& table, uint64_t looked_up, uint64_t found, uint64_t made) {
  const TableStats stats = table.Stats();
  CHECK(stats.looked_up == looked_up);
  CHECK(stats.found == found);
  CHECK(stats.made == made);
  CHECK(stats.refused == 0);
}

void Deposit(Table& table, const std::vector<Key>& keys) {
  const auto ones = std::make_shared<const std::vector<float>>(keys.size() * kDim, 1.0f);
  LookupKeys lookup;
  lookup.keys = keys.data();
  lookup.n = keys.size();
  REQUIRE(table.Deposit(lookup, ones, ones->data(), nullptr).ok());
  REQUIRE(table.Commit({"sgd", {}, 0, 1.0f}, ThreadedFor).ok());
}

TEST_CASE("each occurrence of a key is looked up, and found if it had a row before the call") {
  const Tables tables;
  for (const auto& table : tables.all) {
    Check(*table, 0, 0, 0);
    Look(*table, {1, 2, 1}, /*make_rows=*/false);
    Check(*table, 3, 0, 0);
    Look(*table, {1, 2, 1}, /*make_rows=*/true);
    Check(*table, 6, 0, 2);
    Look(*table, {1, 3, 1}, /*make_rows=*/true);
    Check(*table, 9, 2, 3);
    Look(*table, {1, 9}, /*make_rows=*/false);
    Check(*table, 11, 3, 3);
    Look(*table, {}, /*make_rows=*/true);
    Check(*table, 11, 3, 3);
  }
}

TEST_CASE("Find notes the keys that it looks up, and nothing where it does not say who had a row") {
  const Tables tables;
  for (const auto& table : tables.all) {
    Look(*table, {1}, /*make_rows=*/true);
    const std::vector<Key> keys = {1, 2, 1};
    const std::vector<float> row(kDim);
    const float* const given[] = {nullptr, nullptr, row.data()};
    GatherOptions options;
    std::vector<float> out(3 * kDim);
    std::vector<uint32_t> missing = {7};
    LookupCounts met;
    REQUIRE(table->Find(keys.data(), 3, options, out.data(), &missing, &met, SerialFor).ok());
    Check(*table, 1, 0, 1);
    table->Count(met);
    Check(*table, 4, 2, 1);
    options.given = given;
    LookupCounts asked;
    REQUIRE(table->Find(keys.data(), 3, options, out.data(), &missing, &asked, SerialFor).ok());
    table->Count(asked);
    Check(*table, 6, 3, 1);
    LookupCounts none;
    REQUIRE(
        table->Find<float>(keys.data(), 3, options, out.data(), nullptr, &none, SerialFor).ok());
    table->Count(none);
    Check(*table, 6, 3, 1);
  }
}

TEST_CASE("rows are made by lookups, assignments, commits and restores, and by nothing else") {
  const Tables tables;
  const std::vector<float> rows(2 * kDim, 1.0f);
  for (const auto& table : tables.all) {
    const std::vector<Key> keys = {1, 2}, more = {2, 3};
    REQUIRE(table->Assign(keys.data(), 2, rows.data(), SerialFor).ok());
    Check(*table, 0, 0, 2);
    REQUIRE(table->Assign(more.data(), 2, rows.data(), SerialFor).ok());
    Check(*table, 0, 0, 3);
    Deposit(*table, {3, 4});
    Check(*table, 0, 0, 4);
    REQUIRE(table->Remove(keys.data(), 1, SerialFor).ok());
    Check(*table, 0, 0, 4);
    Look(*table, {1}, /*make_rows=*/true);
    Check(*table, 1, 0, 5);
    TableContents contents;
    const std::vector<int64_t> zeros(2);
    contents.n = 2;
    contents.rows = {more.data(), rows.data(), nullptr, zeros.data(), zeros.data()};
    REQUIRE(table->Restore(contents, SerialFor).ok());
    CHECK(table->size() == 2);
    Check(*table, 1, 0, 7);
  }
}

TEST_CASE("keys of a call that fails are not counted") {
  TableSpec config = Config();
  config.direct = true;
  config.max_rows = 4;
  const auto table = Value(Table::Make(config));
  const std::vector<Key> keys = {1, 9};
  std::vector<float> out(2 * kDim);
  CHECK(!table->Lookup(keys.data(), 2, true, out.data(), SerialFor).ok());
  Check(*table, 0, 0, 0);
}

TEST_CASE("keys of a call that finds the table full are not counted") {
  AdmissionConfig frequency;
  frequency.min_count = 2;
  const TestFolder folder;
  const auto storage = OpenStorage(folder / "storage");
  for (const bool on_disk : {false, true}) {
    CAPTURE(on_disk);
    TableSpec config = Config();
    config.max_rows = 2;
    config.admission = frequency;
    const std::shared_ptr<Table> table = on_disk
                                             ? Value(storage->OpenTable(config))
                                             : std::shared_ptr<Table>(Value(Table::Make(config)));
    Look(*table, {1, 2, 3}, /*make_rows=*/true);
    Look(*table, {1, 2}, /*make_rows=*/true);
    const TableStats before = table->Stats();
    const std::vector<Key> keys = {1, 3, 4};  // 3 is admitted, and has no room; 4 is refused
    std::vector<float> out(keys.size() * kDim);
    CHECK(table->Lookup(keys.data(), keys.size(), true, out.data(), SerialFor).code() ==
          Code::kResourceExhausted);
    const TableStats after = table->Stats();
    CHECK(after.looked_up == before.looked_up);
    CHECK(after.found == before.found);
    CHECK(after.refused == before.refused);
    CHECK(after.made == 2);
  }
  CHECK(storage->Close().ok());
}

TEST_CASE("an admission refuses each occurrence that it counts and gives no row") {
  AdmissionConfig frequency;
  frequency.min_count = 3;
  TableSpec config = Config();
  config.admission = frequency;
  const auto table = Value(Table::Make(config));
  Look(*table, {7, 8}, /*make_rows=*/true);
  CHECK(table->Stats().refused == 2);
  Look(*table, {7, 8}, /*make_rows=*/false);  // does not count
  CHECK(table->Stats().refused == 2);
  Look(*table, {7}, /*make_rows=*/true);
  CHECK(table->Stats().refused == 3);
  Look(*table, {7, 8}, /*make_rows=*/true);  // 7 for the third time, 8 for the second
  const TableStats stats = table->Stats();
  CHECK(stats.refused == 4);
  CHECK(stats.made == 1);
  CHECK(stats.looked_up == 7);
  CHECK(stats.found == 0);
}

TEST_CASE("lookups hit the cache of a storage if it has the row; memory has no cache") {
  const TestFolder folder;
  {
    const auto storage = OpenStorage(folder / "storage");
    const auto table = OpenTable(*storage);
    Look(*table, {1, 2}, /*make_rows=*/true);
    CHECK(table->Stats().cache_hits == 0);
    Look(*table, {1, 2, 1, 9}, /*make_rows=*/false);
    CHECK(table->Stats().cache_hits == 3);
    REQUIRE(storage->Flush().ok());
    REQUIRE(storage->Close().ok());
  }
  const auto storage = OpenStorage(folder / "storage");
  const auto table = OpenTable(*storage);
  Check(*table, 0, 0, 0);
  for (const uint64_t hits : {0, 2}) {
    Look(*table, {1, 2}, /*make_rows=*/false);
    CHECK(table->Stats().cache_hits == hits);
  }
  Check(*table, 4, 4, 0);
  REQUIRE(storage->Close().ok());
  const auto memory = Value(Table::Make(Config()));
  for (int i = 0; i < 2; ++i) Look(*memory, {1}, /*make_rows=*/true);
  CHECK(memory->Stats().cache_hits == 0);
}

TEST_CASE("lookups of several threads are all counted") {
  const Tables tables;
  constexpr int kThreads = 4, kTurns = 200;
  for (const auto& table : tables.all) {
    Look(*table, {1, 2}, /*make_rows=*/true);
    std::atomic<int> failed{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&] {
        const std::vector<Key> keys = {1, 2, 50};
        std::vector<float> out(3 * kDim);
        for (int turn = 0; turn < kTurns; ++turn) {
          failed += !table->Lookup(keys.data(), 3, false, out.data(), SerialFor).ok();
        }
      });
    }
    for (auto& thread : threads) thread.join();
    CHECK(failed == 0);
    Check(*table, 2 + 3 * kThreads * kTurns, 2 * kThreads * kTurns, 2);
  }
}

}  // namespace
}  // namespace sok
