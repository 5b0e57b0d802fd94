// Table::TakeRemoved: keys whose rows have gone, in whichever way.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/base/test_folder.h"
#include "core/base/test_result.h"
#include "core/base/test_threads.h"
#include "core/storage/storage.h"
#include "core/tables/table.h"

namespace sok {
namespace {

constexpr size_t kLimit = 100;

void Assign(Table& table, const std::vector<Key>& keys) {
  const std::vector<float> rows(keys.size() * table.dim(), 1.0f);
  REQUIRE(table.Assign(keys.data(), keys.size(), rows.data(), SerialFor).ok());
}

void Remove(Table& table, const std::vector<Key>& keys) {
  REQUIRE(table.Remove(keys.data(), keys.size(), SerialFor).ok());
}

// Nothing where the keys are not complete.
std::optional<std::vector<Key>> Taken(Table& table, size_t limit = kLimit) {
  RemovedSince taken = Value(table.TakeRemoved(limit, ThreadedFor));
  if (!taken.complete) {
    CHECK(taken.keys.empty());
    return std::nullopt;
  }
  std::sort(taken.keys.begin(), taken.keys.end());
  return taken.keys;
}

using Keys = std::vector<Key>;

std::unique_ptr<Table> MakeTable(uint64_t max_rows = 0) {
  TableSpec config;
  config.dim = 1;
  config.max_rows = max_rows;
  if (max_rows > 0) config.eviction = EvictionConfig{"lru"};
  return Value(Table::Make(config));
}

TEST_CASE("keys that were removed are told once, from the first call on") {
  const auto table = MakeTable();
  Assign(*table, {1, 2, 3, 4, 5});
  Remove(*table, {5});
  CHECK(Taken(*table) == std::nullopt);
  CHECK(Taken(*table) == Keys{});
  Remove(*table, {1, 2, 9});  // 9 has no row
  Remove(*table, {2});
  CHECK(Taken(*table) == Keys{1, 2});
  CHECK(Taken(*table) == Keys{});
}

TEST_CASE("a key that has a row again is not told") {
  const auto table = MakeTable();
  Assign(*table, {1, 2});
  Taken(*table);
  Remove(*table, {1, 2});
  Assign(*table, {1});
  CHECK(Taken(*table) == Keys{2});
  Remove(*table, {1});
  CHECK(Taken(*table) == Keys{1});
}

TEST_CASE("keys that made room for others are told, and those that a policy had go") {
  const auto table = MakeTable(3);
  Assign(*table, {1, 2, 3});
  Taken(*table);
  Assign(*table, {4});
  CHECK(Taken(*table) == Keys{1});
  const auto small = Value(MakeEviction({"min_norm", 0, 10.0f}));
  REQUIRE(table->Evict({small.get()}, SerialFor).ok());
  CHECK(Taken(*table) == Keys{2, 3, 4});
}

TEST_CASE("more keys than the limit are not complete, and the next ones are told again") {
  const auto table = MakeTable();
  Keys keys(20);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = i;
  Assign(*table, keys);
  Taken(*table, 5);
  Remove(*table, {1, 2, 3, 4, 5});
  CHECK(Taken(*table, 5) == Keys{1, 2, 3, 4, 5});
  Remove(*table, {6, 7, 8, 9, 10, 11});
  CHECK(Taken(*table, 5) == std::nullopt);
  Remove(*table, {12});
  CHECK(Taken(*table, 0) == Keys{12});
  Remove(*table, {13});  // a limit of 0 has ended it
  CHECK(Taken(*table) == std::nullopt);
}

TEST_CASE("a restore, which replaces all rows, leaves keys that nobody knows") {
  const auto table = MakeTable();
  Assign(*table, {1, 2});
  Taken(*table);
  Remove(*table, {1});
  TableContents nothing;
  REQUIRE(table->Restore(nothing, SerialFor).ok());
  CHECK(Taken(*table) == std::nullopt);
  CHECK(Taken(*table) == Keys{});
}

std::shared_ptr<Table> Open(Storage& storage, int group) {
  TableSpec config;
  config.dim = 1;
  config.group = group;
  return Value(storage.OpenTable(config));
}

TEST_CASE("rows of a storage that have expired are told when something comes upon them") {
  const TestFolder folder;
  const auto now = std::make_shared<std::atomic<uint32_t>>(1000);
  StorageOptions options;
  options.path = folder / "rows";
  options.ttl = 50;
  options.now = [now] { return now->load(); };
  const auto storage = Value(Storage::Open(options));
  const auto table = Open(*storage, 0), other = Open(*storage, 1);
  Assign(*table, {1, 2, 3});
  Assign(*other, {7});
  Taken(*table);
  Taken(*other);
  REQUIRE(storage->Flush().ok());
  *now = 1040;
  Assign(*table, {4});
  *now = 1060;
  float row;
  const Key asked = 2;
  REQUIRE(table->Lookup(&asked, 1, false, &row, SerialFor).ok());
  CHECK(Taken(*table) == Keys{2});
  REQUIRE(storage->Compact().ok());
  CHECK(Taken(*table) == Keys{1, 3});
  CHECK(Taken(*other) == Keys{7});
  CHECK(table->size() == 1);
}

}  // namespace
}  // namespace sok
