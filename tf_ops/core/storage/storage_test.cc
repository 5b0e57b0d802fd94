// A table over a storage behaves like one in memory, whatever its cache holds.
#include "core/storage/storage.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "core/base/test_folder.h"
#include "core/base/test_result.h"
#include "core/base/test_threads.h"
#include "core/tables/test_contents.h"

namespace sok {
namespace {

constexpr int kDim = 5;

std::shared_ptr<Storage> OpenOrFail(StorageOptions options) {
  auto storage = Storage::Open(options);
  REQUIRE_MESSAGE(storage.ok(), storage.status().message());
  return storage.value();
}

TableSpec Config(int group = 1) {
  TableSpec config;
  config.dim = kDim;
  config.group = group;
  config.seed = 7;
  return config;
}

using Rows = std::map<Key, std::vector<float>>;

Rows RowsOf(Table& table) {
  auto frozen = table.Freeze();
  REQUIRE_MESSAGE(frozen.ok(), frozen.status().message());
  const OwnedContents contents = Owned(frozen.value(), kDim);
  const size_t n = contents.keys.size(), slots = contents.slot_floats;
  Rows rows;
  for (size_t i = 0; i < n; ++i) {
    std::vector<float>& row = rows[contents.keys[i]];
    const auto embedding = contents.embeddings.begin() + i * kDim;
    row.assign(embedding, embedding + kDim);
    const auto slot = contents.slots.begin() + i * slots;
    row.insert(row.end(), slot, slot + slots);
    row.push_back(static_cast<float>(contents.update_nums[i]));
  }
  REQUIRE(rows.size() == n);
  return rows;
}

// Makes the same calls to a table in memory and to one on disk.
class Twins {
 public:
  Twins(const StorageOptions& options, uint32_t seed, size_t keys)
      : options_(options), rng_(seed), keys_(keys) {
    auto memory = Table::Make(Config());
    REQUIRE(memory.ok());
    memory_ = std::move(memory.value());
    Reopen();
  }

  void Reopen() {
    if (storage_ != nullptr) REQUIRE(storage_->Close().ok());
    disk_.reset();
    storage_.reset();
    storage_ = OpenOrFail(options_);
    auto table = storage_->OpenTable(Config());
    REQUIRE_MESSAGE(table.ok(), table.status().message());
    disk_ = table.value();
  }

  std::vector<Key> Batch() {
    std::vector<Key> keys(rng_() % 3000);
    for (Key& key : keys) key = (rng_() % keys_) * 0x9e3779b97f4a7c15ull;
    return keys;
  }

  void Lookup(bool make_rows) {
    const std::vector<Key> keys = Batch();
    std::vector<float> expected(keys.size() * kDim), got(keys.size() * kDim);
    REQUIRE(memory_->Lookup(keys.data(), keys.size(), make_rows, expected.data(), SerialFor).ok());
    Status status = disk_->Lookup(keys.data(), keys.size(), make_rows, got.data(), ThreadedFor);
    REQUIRE_MESSAGE(status.ok(), status.message());
    REQUIRE(got == expected);
  }

  void Commit(const std::string& rule) {
    auto keys = std::make_shared<std::vector<Key>>(Batch());
    auto gradients = std::make_shared<std::vector<float>>(keys->size() * kDim);
    for (float& x : *gradients) x = std::normal_distribution<float>()(rng_);
    for (Table* table : {memory_.get(), disk_.get()}) {
      LookupKeys looked{keys, keys->data(), keys->size(), false, 0};
      REQUIRE(table->Deposit(looked, gradients, gradients->data(), nullptr).ok());
      CommitOptions options;
      options.rule = rule;
      auto outcome = table->Commit(options, ThreadedFor);
      REQUIRE_MESSAGE(outcome.ok(), outcome.status().message());
    }
  }

  void Remove() {
    const std::vector<Key> keys = Batch();
    const auto expected = memory_->Remove(keys.data(), keys.size(), SerialFor);
    const auto got = disk_->Remove(keys.data(), keys.size(), ThreadedFor);
    REQUIRE_MESSAGE(got.ok(), got.status().message());
    REQUIRE(got.value() == expected.value());
  }

  void Assign() {
    const std::vector<Key> keys = Batch();
    std::vector<float> embeddings(keys.size() * kDim);
    for (float& x : embeddings) x = std::normal_distribution<float>()(rng_);
    REQUIRE(memory_->Assign(keys.data(), keys.size(), embeddings.data(), SerialFor).ok());
    REQUIRE(disk_->Assign(keys.data(), keys.size(), embeddings.data(), ThreadedFor).ok());
  }

  void Check() {
    REQUIRE(disk_->size() == memory_->size());
    REQUIRE(disk_->steps() == memory_->steps());
    const Rows expected = RowsOf(*memory_), got = RowsOf(*disk_);
    REQUIRE(got == expected);
  }

  // Makes a round trip through an export.
  void Restore() {
    const OwnedContents contents = Owned(Value(disk_->Freeze()), kDim);
    for (Table* table : {memory_.get(), disk_.get()}) {
      const Status status = sok::Restore(*table, contents, ThreadedFor);
      REQUIRE_MESSAGE(status.ok(), status.message());
    }
  }

  void Flush() { REQUIRE(storage_->Flush().ok()); }
  std::mt19937_64& rng() { return rng_; }

 private:
  const StorageOptions options_;
  std::mt19937_64 rng_;
  const size_t keys_;
  std::unique_ptr<Table> memory_;
  std::shared_ptr<Storage> storage_;
  std::shared_ptr<Table> disk_;
};

}  // namespace

TEST_CASE("a table that is opened with a smaller limit than it has rows takes those of its own") {
  const TestFolder folder;
  StorageOptions options;
  options.path = folder / "storage";
  TableSpec config;
  config.dim = 2;
  std::vector<Key> keys(20);
  std::iota(keys.begin(), keys.end(), Key{0});
  const std::vector<float> rows(2 * keys.size(), 1.0f);
  {
    const auto storage = Value(Storage::Open(options));
    const auto table = Value(storage->OpenTable(config));
    REQUIRE(table->Assign(keys.data(), keys.size(), rows.data(), SerialFor).ok());
    REQUIRE(storage->Close().ok());
  }
  const auto storage = Value(Storage::Open(options));
  config.max_rows = 10;
  const auto table = Value(storage->OpenTable(config));
  CHECK(table->Assign(keys.data(), keys.size(), rows.data(), SerialFor).ok());
  const Key another = 20;
  const Status status = table->Assign(&another, 1, rows.data(), SerialFor);
  CHECK(status.message().find("it holds 20 of at most 10 rows") != std::string::npos);
  REQUIRE(storage->Close().ok());
}

TEST_CASE("a table on disk holds the same bits as one in memory, through flushes and reopenings") {
  const uint32_t seed = 20261120;
  for (const bool write_through : {false, true}) {
    for (const bool small_spill : {false, true}) {
      CAPTURE(seed);
      CAPTURE(write_through);
      CAPTURE(small_spill);
      const TestFolder folder;
      StorageOptions options;
      options.path = folder / "storage";
      options.cache_bytes = uint64_t{1} << 20;  // a tenth of the rows
      options.write_through = write_through;
      options.reset_slots = true;  // the rule changes now and then
      // The spill holds less than a segment a shard, so that rows are pushed out to the database
      // all the time.
      if (small_spill) options.spill_rows = 30000;
      Twins twins(options, seed, 200000);
      std::string rule = "adam";
      for (int step = 0; step < (LongTests() ? 300 : 50); ++step) {
        switch (twins.rng()() % 16) {
          case 0:
            twins.Flush();
            break;
          case 1:
            if (step % 4 == 0) twins.Reopen();
            break;
          case 2:
            twins.Remove();
            break;
          case 3:
            twins.Assign();
            break;
          case 4:
            if (step % 8 == 0) rule = rule == "adam" ? "adagrad" : "adam";
            break;
          case 5:
            if (step % 16 == 0) twins.Check();
            break;
          case 6:
            if (step % 32 == 0) twins.Restore();
            break;
          case 7:
          case 8:
            twins.Lookup(false);
            break;
          case 9:
          case 10:
          case 11:
            twins.Lookup(true);
            break;
          default:
            twins.Commit(rule);
        }
      }
      twins.Check();
      twins.Reopen();
      twins.Check();
      twins.Restore();
      twins.Check();
    }
  }
}

}  // namespace sok
