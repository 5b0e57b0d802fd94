// Table: removing rows by age, by norm and by key; the clock that counts steps.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <thread>
#include <vector>

#include "core/base/test_folder.h"
#include "core/base/test_result.h"
#include "core/base/test_threads.h"
#include "core/storage/storage.h"
#include "core/tables/table.h"

namespace sok {
namespace {

constexpr int kDim = 2;
using Rows = std::map<Key, std::vector<float>>;

std::unique_ptr<Table> MakeTable(bool step_clock = true, bool direct = false) {
  TableSpec config;
  config.dim = kDim;
  config.initializer = "constant";
  config.initializer_a = 0;
  config.step_clock = step_clock;
  config.direct = direct;
  config.max_rows = direct ? 1000 : 0;
  return Value(Table::Make(config));
}

void Assign(Table& table, const Rows& rows) {
  for (const auto& [key, row] : rows) {
    REQUIRE(table.Assign(&key, 1, row.data(), SerialFor).ok());
  }
}

// A step whose gradients are zero.
void StepOn(Table& table, const std::vector<Key>& keys) {
  const auto zeros = std::make_shared<const std::vector<float>>(keys.size() * kDim, 0.0f);
  LookupKeys lookup;
  lookup.keys = keys.data();
  lookup.n = keys.size();
  REQUIRE(table.Deposit(lookup, zeros, zeros->data(), nullptr).ok());
  REQUIRE(table.Commit({"sgd", {}, 0, 1.0f}, ThreadedFor).ok());
}

Rows RowsOf(const EvictedRows& evicted) {
  REQUIRE(evicted.embeddings.size() == evicted.keys.size() * kDim);
  Rows rows;
  for (size_t i = 0; i < evicted.keys.size(); ++i) {
    rows[evicted.keys[i]] = {&evicted.embeddings[i * kDim], &evicted.embeddings[i * kDim] + kDim};
  }
  CHECK(rows.size() == evicted.keys.size());
  return rows;
}

// By one of the two, or both; 0 and less: not by that one.
Rows Evict(Table& table, uint32_t max_age, float min_l2) {
  std::vector<std::unique_ptr<Eviction>> made;
  std::vector<const Eviction*> policies;
  if (max_age > 0) made.push_back(Value(MakeEviction({"max_age", max_age})));
  if (min_l2 > 0) made.push_back(Value(MakeEviction({"min_norm", 0, min_l2})));
  for (const auto& policy : made) policies.push_back(policy.get());
  return RowsOf(Value(table.Evict(policies, ThreadedFor)));
}

Rows Held(Table& table) {
  Rows rows;
  REQUIRE(table
              .ForEachRow([&](Key key, RowRef row) {
                rows[key] = {row.embedding, row.embedding + kDim};
              })
              .ok());
  CHECK(rows.size() == table.size());
  return rows;
}

}  // namespace

TEST_CASE("rows of a smaller norm go and are handed out, all others stay") {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const bool direct : {false, true}) {
    const auto table = MakeTable(false, direct);
    const Rows small = {{1, {0, 0}}, {2, {3, -3.9f}}, {3, {-4.999f, 0}}, {4, {1e-30f, 1e-30f}}};
    const Rows large = {{5, {3, -4}}, {6, {-5.001f, 0}}, {7, {1e30f, 1e30f}}, {8, {kInfinity, 0}}};
    Assign(*table, small);
    Assign(*table, large);
    Assign(*table, {{9, {kNan, 0}}});
    CHECK(Evict(*table, 0, 0.0f).empty());
    CHECK(Evict(*table, 0, -1.0f).empty());
    CHECK(Evict(*table, 0, 5.0f) == small);
    CHECK(table->size() == 5);  // NaN is not small
    CHECK(Evict(*table, 0, 5.0f).empty());
    const Key key = 9;
    CHECK(Value(table->Remove(&key, 1, SerialFor)) == 1);
    CHECK(Held(*table) == large);
  }
}

TEST_CASE("rows that were not updated for max_age steps go") {
  const auto table = MakeTable();
  StepOn(*table, {1});
  StepOn(*table, {2});     // at 2
  StepOn(*table, {3, 1});  // at 3
  CHECK(table->now() == 3);
  CHECK(Evict(*table, 2, 0).empty());
  CHECK(Evict(*table, 1, 0) == Rows{{2, {0, 0}}});
  StepOn(*table, {4});
  CHECK(Evict(*table, 2, 0).empty());
  CHECK(Evict(*table, 1, 0) == Rows{{1, {0, 0}}, {3, {0, 0}}});
  CHECK(Held(*table) == Rows{{4, {0, 0}}});
  CHECK(Evict(*table, std::numeric_limits<uint32_t>::max(), 0).empty());
}

TEST_CASE("a row goes if its age or its norm says so") {
  const auto table = MakeTable();
  Assign(*table, {{1, {1, 0}}, {2, {5, 0}}, {3, {1, 0}}, {4, {5, 0}}});
  StepOn(*table, {3, 4});
  CHECK(Evict(*table, 1, 2.0f) == Rows{{1, {1, 0}}, {2, {5, 0}}, {3, {1, 0}}});
  CHECK(Held(*table) == Rows{{4, {5, 0}}});
}

TEST_CASE("a step without deposits, an update in time and a lookup do not move the step clock") {
  const auto table = MakeTable();
  StepOn(*table, {1});
  REQUIRE(table->Commit({"sgd", {}, 0, 1.0f}, SerialFor).ok());
  CommitOptions nothing{"sgd", {}, 0, 1.0f};
  const std::vector<float> arrived(kAnchorSize);
  nothing.redeemed = arrived.data();
  REQUIRE(table->Commit(nothing, SerialFor).ok());
  std::vector<float> out(kDim);
  const Key key = 2;
  REQUIRE(table->Lookup(&key, 1, true, out.data(), SerialFor).ok());
  CHECK(table->now() == 1);
  CHECK(table->steps() == 1);
  StepOn(*table, {1});
  CHECK(Evict(*table, 1, 0) == Rows{{2, {0, 0}}});  // made at 1
}

TEST_CASE("rows that are evicted start anew, and their slots too") {
  const auto table = MakeTable();
  const auto ones = std::make_shared<const std::vector<float>>(kDim, 1.0f);
  const Key key = 1;
  LookupKeys lookup;
  lookup.keys = &key;
  lookup.n = 1;
  REQUIRE(table->Deposit(lookup, ones, ones->data(), nullptr).ok());
  REQUIRE(table->Commit({"adagrad", {}, 0, 1.0f}, SerialFor).ok());
  const uint64_t removals = table->removals();
  CHECK(RowsOf(Value(table->Evict(&key, 1, SerialFor))).size() == 1);
  CHECK(table->removals() > removals);
  std::vector<float> out(kDim);
  REQUIRE(table->Lookup(&key, 1, true, out.data(), SerialFor).ok());
  CHECK(out == std::vector<float>(kDim, 0.0f));
  REQUIRE(table
              ->ForEachRow([](Key, RowRef row) {
                CHECK(row.embedding[kDim] == doctest::Approx(0.1));
                CHECK(row.meta->update_num == 0);
              })
              .ok());
}

TEST_CASE("rows of keys go with what they were, keys without a row do not matter") {
  for (const bool direct : {false, true}) {
    const auto table = MakeTable(false, direct);
    Assign(*table, {{1, {1, 2}}, {2, {3, 4}}, {3, {5, 6}}});
    const std::vector<Key> keys = {3, 99, 1};
    CHECK(RowsOf(Value(table->Evict(keys.data(), 3, ThreadedFor))) ==
          Rows{{1, {1, 2}}, {3, {5, 6}}});
    CHECK(Held(*table) == Rows{{2, {3, 4}}});
    CHECK(Value(table->Evict(nullptr, 0, ThreadedFor)).keys.empty());
  }
}

TEST_CASE("an empty table evicts nothing") {
  const auto table = MakeTable();
  CHECK(Evict(*table, 1, 100.0f).empty());
}

TEST_CASE("a table on disk evicts as one in memory, by its own clock, and what went stays away") {
  const TestFolder folder;
  StorageOptions options;
  options.path = folder / "storage";
  options.cache_bytes = uint64_t{1} << 20;
  uint32_t now = 1000;
  options.now = [&now] { return now; };
  TableSpec config;
  config.dim = kDim;
  config.initializer = "constant";
  config.initializer_a = 0;
  {
    const auto storage = Value(Storage::Open(options));
    const auto table = Value(storage->OpenTable(config));
    Assign(*table, {{1, {1, 0}}, {2, {5, 0}}, {3, {6, 0}}});
    REQUIRE(storage->Flush().ok());
    now = 1010;
    Assign(*table, {{4, {1, 0}}});
    StepOn(*table, {3});
    CHECK(Evict(*table, 11, 0).empty());
    CHECK(Evict(*table, 10, 0) == Rows{{1, {1, 0}}, {2, {5, 0}}});
    CHECK(Evict(*table, 0, 2) == Rows{{4, {1, 0}}});
    CHECK(Held(*table) == Rows{{3, {6, 0}}});
    REQUIRE(storage->Close().ok());
  }
  const auto storage = Value(Storage::Open(options));
  const auto table = Value(storage->OpenTable(config));
  CHECK(Held(*table) == Rows{{3, {6, 0}}});
  REQUIRE(storage->Close().ok());
}

TEST_CASE("rows that are assigned meanwhile do not go, and all that go are handed out") {
  constexpr size_t count = 20000;
  std::vector<Key> keys(count);
  std::iota(keys.begin(), keys.end(), Key{0});
  const std::vector<float> small(count * kDim, 0.1f), large(count * kDim, 5.0f);
  const TestFolder folder;
  StorageOptions options;
  options.path = folder / "storage";
  const auto storage = Value(Storage::Open(options));
  TableSpec config;
  config.dim = kDim;
  const std::shared_ptr<Table> in_memory = MakeTable(false);
  for (const auto& table : {in_memory, Value(storage->OpenTable(config))}) {
    for (int round = 0; round < 10; ++round) {
      REQUIRE(table->Assign(keys.data(), count, small.data(), SerialFor).ok());
      std::thread assigner([&] {
        std::this_thread::sleep_for(std::chrono::microseconds(300 * round));
        REQUIRE(table->Assign(keys.data(), count, large.data(), SerialFor).ok());
      });
      const auto by_norm = Value(MakeEviction({"min_norm", 0, 1.0f}));
      const auto evicted = Value(table->Evict({by_norm.get()}, SerialFor));
      assigner.join();
      // Whichever came first, the large rows are there.
      CHECK(table->size() == count);
      CHECK((evicted.keys.empty() || evicted.keys.size() == count));
      CHECK(std::count(evicted.embeddings.begin(), evicted.embeddings.end(), 0.1f) ==
            static_cast<int64_t>(evicted.embeddings.size()));
    }
  }
  REQUIRE(storage->Close().ok());
}

TEST_CASE("rows that a storage takes in meanwhile do not go unseen") {
  constexpr size_t count = 20000;
  std::vector<Key> keys(count);
  std::iota(keys.begin(), keys.end(), Key{0});
  const std::vector<float> small(count * kDim, 0.1f), large(count * kDim, 5.0f);
  const TestFolder folder;
  StorageOptions options;
  options.path = folder / "storage";
  const auto storage = Value(Storage::Open(options));
  TableSpec config;
  config.dim = kDim;
  const auto table = Value(storage->OpenTable(config));
  REQUIRE(table->Assign(keys.data(), count, large.data(), SerialFor).ok());
  REQUIRE(Value(storage->Dump(folder / "dump", {}, nullptr)) == count);
  const auto policy = Value(MakeEviction({"min_norm", 0, 1.0f}));
  const auto by_norm = [&] { return Value(table->Evict({policy.get()}, SerialFor)); };
  for (int round = 0; round < 10; round += LongTests() ? 1 : 3) {
    REQUIRE(table->Assign(keys.data(), count, small.data(), SerialFor).ok());
    std::thread loader([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(500 * round));
      REQUIRE(Value(storage->Load(folder / "dump", nullptr)) == count);
    });
    const auto evicted = by_norm();
    // By their keys any rows go, but those that are handed out are those that went.
    const auto named = Value(table->Evict(keys.data(), 100, SerialFor));
    loader.join();
    CHECK((table->size() == count || table->size() == count - named.keys.size()));
    CHECK((evicted.keys.empty() || evicted.keys.size() == count));
    CHECK(std::count(evicted.embeddings.begin(), evicted.embeddings.end(), 0.1f) ==
          static_cast<int64_t>(evicted.embeddings.size()));
    CHECK(by_norm().keys.empty());
  }
  REQUIRE(storage->Close().ok());
}

TEST_CASE("a table on disk that is to count steps does so, or is refused") {
  const TestFolder folder;
  StorageOptions options;
  options.path = folder / "storage";
  const auto storage = Value(Storage::Open(options));
  TableSpec config;
  config.dim = kDim;
  config.step_clock = true;
  auto table = storage->OpenTable(config);
  if (table.ok()) {
    StepOn(*table.value(), {1});
    CHECK(table.value()->now() == 1);
  }
  table = InvalidArgument("closed");
  REQUIRE(storage->Close().ok());
}

}  // namespace sok
