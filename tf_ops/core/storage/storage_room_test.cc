// Calls that make room for their rows, where time or the disk comes between.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "core/base/test_folder.h"
#include "core/base/test_result.h"
#include "core/disk/rocksdb/row_database.h"
#include "core/disk/test_failing_database.h"
#include "core/rules/row_optimizer.h"
#include "core/storage/storage.h"

namespace sok {
namespace {

constexpr int kDim = 2;
using Keys = std::vector<Key>;

TEST_CASE("rows of the call that expire while room is made for others get new ones") {
  const TestFolder folder;
  const auto faults = std::make_shared<PlantedFaults>();
  StorageOptions options;
  options.path = folder / "storage";
  options.ttl = 100;
  options.open_database = FailingDatabase::Over(RowDatabase::Open, faults);
  const auto storage = Value(Storage::Open(options));
  storage->SetNow(1000);
  TableSpec config;
  config.dim = kDim;
  config.max_rows = 4;
  config.eviction = EvictionConfig{"lru"};
  const auto table = Value(storage->OpenTable(config));
  const std::vector<float> rows(4 * kDim, 2.0f);
  const Keys old = {1}, young = {2, 3, 4}, call = {1, 5};
  REQUIRE(table->Assign(old.data(), 1, rows.data(), SerialFor).ok());
  storage->SetNow(1050);
  REQUIRE(table->Assign(young.data(), 3, rows.data(), SerialFor).ok());
  storage->SetNow(1099);
  faults->before_look = [&](Database*) {
    faults->before_look = nullptr;
    storage->SetNow(1101);
  };
  REQUIRE(table->Assign(call.data(), 2, rows.data(), SerialFor).ok());
  CHECK(faults->before_look == nullptr);
  Keys there;
  REQUIRE(table->ForEachRow([&](Key key, RowRef) { there.push_back(key); }).ok());
  std::sort(there.begin(), there.end());
  CHECK(there == Keys{1, 3, 4, 5});
  CHECK(table->Stats().evicted == 1);
}

TEST_CASE("rows that a failed call has made all the same go before those that were trained") {
  const TestFolder folder;
  StorageOptions options;
  options.path = folder / "storage";
  options.write_through = true;
  const auto storage = Value(Storage::Open(options));
  TableSpec config;
  config.dim = kDim;
  config.max_rows = 4;
  config.eviction = EvictionConfig{"lfu"};
  const auto table = Value(storage->OpenTable(config));
  const Keys trained = {1, 2, 3, 4}, failed = {10}, next = {11};
  const std::vector<float> values(4 * kDim, 1.0f);
  const auto sgd = Value(MakeRowOptimizer("sgd", {{"learning_rate", 1.0}}));
  for (int step = 0; step < 3; ++step) {
    REQUIRE(table->Update(trained.data(), 4, values.data(), "sgd", *sgd, {}, SerialFor).ok());
  }
  {
    const FileSizeLimit full(0);
    CHECK_FALSE(table->Assign(failed.data(), 1, values.data(), SerialFor).ok());
  }
  std::vector<RowMeta> metas(1);
  std::vector<uint8_t> exists(1);
  REQUIRE(table->ReadMeta(failed.data(), 1, metas.data(), exists.data(), SerialFor).ok());
  REQUIRE(exists[0] == 1);  // it is in memory, and not on disk
  REQUIRE(table->Assign(next.data(), 1, values.data(), SerialFor).ok());
  REQUIRE(table->ReadMeta(failed.data(), 1, metas.data(), exists.data(), SerialFor).ok());
  CHECK(exists[0] == 0);
  CHECK(table->Stats().evicted == 2);
}

}  // namespace
}  // namespace sok
