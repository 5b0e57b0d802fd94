// A table that evicts, in memory or in a storage, for tests.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
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

constexpr int kDim = 2;
using Keys = std::vector<Key>;

inline EvictionConfig Kind(const char* kind) { return {kind}; }

inline TableSpec Config(uint64_t max_rows) {
  TableSpec config;
  config.dim = kDim;
  config.initializer = "constant";
  config.initializer_a = 1;
  config.max_rows = max_rows;
  return config;
}

// A table in memory, whose clock is its steps, or in a storage, whose clock a test moves.
class Place {
 public:
  Place(bool on_disk, const EvictionConfig& eviction, uint64_t max_rows,
        std::optional<AdmissionConfig> admission = {}, uint32_t ttl = 0) {
    TableSpec config = Config(max_rows);
    config.eviction = eviction;
    if (!on_disk) {
      config.step_clock = true;
      config.admission = std::move(admission);
      table = Value(Table::Make(config));
      return;
    }
    StorageOptions options;
    options.path = folder_ / "storage";
    options.ttl = ttl;
    storage = Value(Storage::Open(options));
    storage->SetNow(1);
    table = Value(storage->OpenTable(config));
  }
  ~Place() {
    table.reset();
    if (storage != nullptr) CHECK(storage->Close().ok());
  }

  void Tick() {
    if (storage != nullptr) storage->SetNow(++now_);
  }
  // One training step of the keys.
  void Step(const Keys& keys) {
    Tick();
    REQUIRE(Look(keys).ok());
    Deposit(keys);
    Commit();
  }
  Status Look(const Keys& keys) {
    std::vector<float> out(keys.size() * kDim);
    return table->Lookup(keys.data(), keys.size(), true, out.data(), ThreadedFor);
  }
  // Gradients of 1.
  void Deposit(const Keys& keys, std::shared_ptr<RowClaim> claim = nullptr) {
    const auto ones = std::make_shared<const std::vector<float>>(keys.size() * kDim, 1.0f);
    LookupKeys lookup = Held(keys);
    lookup.rows_made = true;
    lookup.removals = table->removals();
    lookup.claim = std::move(claim);
    REQUIRE(table->Deposit(lookup, ones, ones->data(), nullptr).ok());
  }
  CommitOutcome Commit() {
    return Value(table->Commit({"sgd", {{"learning_rate", 1}}, 0, 1.0f}, ThreadedFor));
  }
  static LookupKeys Held(const Keys& keys) {
    const auto copy = std::make_shared<const Keys>(keys);
    LookupKeys lookup;
    lookup.hold = copy;
    lookup.keys = copy->data();
    lookup.n = keys.size();
    return lookup;
  }
  Keys Rows() {
    Keys keys;
    REQUIRE(table->ForEachRow([&](Key key, RowRef) { keys.push_back(key); }).ok());
    std::sort(keys.begin(), keys.end());
    CHECK(keys.size() == table->size());
    return keys;
  }

 private:
  const TestFolder folder_;
  uint32_t now_ = 1;

 public:
  std::shared_ptr<Storage> storage;
  std::shared_ptr<Table> table;
};

}  // namespace sok
