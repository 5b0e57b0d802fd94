// Rows that expire in the midst of a call that makes room for others.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "core/base/test_folder.h"
#include "core/base/test_result.h"
#include "core/disk/rocksdb/row_database.h"
#include "core/disk/test_failing_database.h"
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
  TableConfig config;
  config.dim = kDim;
  config.max_rows = 4;
  const auto table =
      Value(storage->OpenTable(config, "", {}, std::nullopt, false, EvictionConfig{"lru"}));
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

}  // namespace
}  // namespace sok
