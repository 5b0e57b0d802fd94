// Errors of the disk lose nothing that was written, and the storage goes on once there is room.
#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/test_folder.h"
#include "core/base/test_result.h"
#include "core/base/thread_pool.h"
#include "core/storage/storage.h"

namespace sok {
namespace {

constexpr int kDim = 256;

class Disk {
 public:
  explicit Disk(bool write_through = false) {
    options_.path = folder_ / "storage";
    options_.cache_bytes = uint64_t{1} << 20;
    options_.write_through = write_through;
    Open();
  }
  void Open() {
    table.reset();
    storage.reset();
    storage = Value(Storage::Open(options_));
    TableSpec config;
    config.dim = kDim;
    table = Value(storage->OpenTable(config));
  }
  Status Assign(Key first, size_t n, float value) {
    std::vector<Key> keys(n);
    for (size_t i = 0; i < n; ++i) keys[i] = first + i;
    const std::vector<float> rows(n * kDim, value);
    return table->Assign(keys.data(), n, rows.data(), ProcessPool());
  }
  // Returns how many of the keys below n have the value.
  size_t Count(size_t n, float value) {
    std::vector<Key> keys(n);
    for (size_t i = 0; i < n; ++i) keys[i] = i;
    std::vector<float> out(n * kDim);
    REQUIRE(table->Lookup(keys.data(), n, false, out.data(), ProcessPool()).ok());
    size_t count = 0;
    for (size_t i = 0; i < n; ++i) count += out[i * kDim] == value;
    return count;
  }
  std::string path(const std::string& name) const { return folder_ / name; }

 private:
  const TestFolder folder_;  // goes last
  StorageOptions options_;

 public:
  std::shared_ptr<Storage> storage;
  std::shared_ptr<Table> table;
};

}  // namespace

TEST_CASE("a load that fills the disk changes nothing, and succeeds once there is room") {
  Disk from;
  for (Key first = 0; first < 60000; first += 1000) REQUIRE(from.Assign(first, 1000, 9.0f).ok());
  REQUIRE(Value(from.storage->Dump(from.path("dump"), {}, nullptr)) == 60000);

  Disk to;
  REQUIRE(to.Assign(0, 1000, 1.0f).ok());
  REQUIRE(to.storage->Flush().ok());
  {
    const FileSizeLimit full(8 << 20);
    const auto loaded = to.storage->Load(from.path("dump"), nullptr);
    REQUIRE_FALSE(loaded.ok());
    CHECK(loaded.status().code() == Code::kResourceExhausted);
  }
  CHECK(to.Count(1000, 1.0f) == 1000);
  REQUIRE(Value(to.storage->Load(from.path("dump"), nullptr)) == 60000);
  CHECK(to.Count(60000, 9.0f) == 60000);
  to.Open();
  CHECK(to.Count(60000, 9.0f) == 60000);
}

TEST_CASE("a flush that fills the disk loses nothing, and succeeds once there is room") {
  for (const bool write_through : {false, true}) {
    CAPTURE(write_through);
    Disk disk(write_through);
    REQUIRE(disk.Assign(0, 100, 1.0f).ok());
    REQUIRE(disk.storage->Flush().ok());
    for (Key first = 0; first < 30000; first += 1000) {
      REQUIRE(disk.Assign(first, 1000, 2.0f).ok());
    }
    {
      const FileSizeLimit full(8 << 20);
      if (!write_through) REQUIRE_FALSE(disk.storage->Flush().ok());
      for (Key first = 0; first < 30000; first += 1000) {
        (void)disk.Assign(first, 500, 3.0f);  // fails once the disk is full
      }
    }
    REQUIRE(disk.storage->Flush().ok());
    REQUIRE(disk.Assign(0, 100, 4.0f).ok());
    REQUIRE(disk.storage->Flush().ok());
    const size_t twos = disk.Count(30000, 2.0f), threes = disk.Count(30000, 3.0f);
    CHECK(disk.Count(30000, 4.0f) == 100);
    CHECK(twos >= 15000);
    CHECK(twos + threes == 29900);
    disk.Open();
    CHECK(disk.Count(30000, 4.0f) == 100);
    CHECK(disk.Count(30000, 2.0f) == twos);
    CHECK(disk.Count(30000, 3.0f) == threes);
  }
}

TEST_CASE("a call that has no room on the disk makes no rows, and succeeds once there is room") {
  constexpr size_t kMore = 20000;  // rows of a KiB
  std::vector<Key> keys(kMore);
  for (size_t i = 0; i < kMore; ++i) keys[i] = 500 + i;
  std::vector<float> floats(kMore * kDim, 1.0f);
  const auto sgd = Value(MakeRowOptimizer("sgd", {}));
  const auto update = [&](Disk& disk) {
    return disk.table->Update(keys.data(), kMore, floats.data(), "sgd", *sgd, {}, ProcessPool());
  };
  const auto commit = [&](Disk& disk) {
    LookupKeys looked_up;
    looked_up.keys = keys.data();
    looked_up.n = kMore;
    REQUIRE(disk.table->Deposit(looked_up, nullptr, floats.data(), nullptr).ok());
    return disk.table->Commit({"sgd", {}, 0, 1.0f}, ProcessPool()).status();
  };
  const auto look_up = [&](Disk& disk) {
    std::vector<float> out(kMore * kDim);
    return disk.table->Lookup(keys.data(), kMore, true, out.data(), ProcessPool());
  };
  const auto assign = [&](Disk& disk) { return disk.Assign(500, kMore, 1.0f); };
  const std::vector<std::pair<std::string, std::function<Status(Disk&)>>> calls = {
      {"update", update}, {"commit", commit}, {"lookup", look_up}, {"assign", assign}};
  size_t failed = 0;
  for (const auto& [name, call] : calls) {
    CAPTURE(name);
    for (const bool write_through : {false, true}) {
      CAPTURE(write_through);
      Disk disk(write_through);
      REQUIRE(disk.Assign(0, 1000, 2.0f).ok());
      REQUIRE(disk.storage->Flush().ok());
      Status status;
      {
        const FileSizeLimit full(2 << 20);
        status = call(disk);
      }
      CAPTURE(status.message());
      failed += !status.ok();
      if (status.ok()) continue;  // it needed no room on the disk
      if (Contains(status, "the rows are changed and kept")) {
        CHECK(disk.table->size() == 500 + kMore);
        continue;
      }
      CHECK(status.code() == Code::kResourceExhausted);
      CHECK(disk.table->size() == 1000);
      CHECK(disk.table->Stats().made == 1000);
      CHECK(disk.Count(1000, 2.0f) == 1000);
      REQUIRE(call(disk).ok());
      CHECK(disk.table->size() == 500 + kMore);
      REQUIRE(disk.storage->Flush().ok());
      disk.Open();
      CHECK(disk.table->size() == 500 + kMore);
    }
  }
  CHECK(failed >= 3);
}

}  // namespace sok
