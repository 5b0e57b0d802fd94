// Rows expire while a cache that is too small gives rows away.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/test_folder.h"
#include "core/base/test_result.h"
#include "core/base/test_threads.h"
#include "core/base/thread_pool.h"
#include "core/disk/rocksdb/row_database.h"
#include "core/disk/test_failing_database.h"
#include "core/storage/storage.h"

namespace sok {
namespace {

constexpr int kDim = 64;
constexpr uint32_t kTtl = 100;

// Each update adds 1 to the rows, which start from 0, so a row counts its updates since it began.
class CountingTable {
 public:
  explicit CountingTable(bool write_through) {
    StorageOptions options;
    options.path = folder_ / "storage";
    options.ttl = kTtl;
    options.cache_bytes = uint64_t{1} << 20;
    options.write_through = write_through;
    options.now = [this] { return now; };
    storage_ = Value(Storage::Open(options));
    TableSpec config;
    config.dim = kDim;
    config.initializer = "constant";
    config.initializer_a = 0;
    table_ = Value(storage_->OpenTable(config));
  }

  void Update(const std::vector<Key>& keys, const ParallelFor& parallel_for = ProcessPool()) {
    const std::vector<float> gradients(keys.size() * kDim, -1.0f);
    const auto sgd = Value(MakeRowOptimizer("sgd", {{"learning_rate", 1.0}}));
    REQUIRE(
        table_->Update(keys.data(), keys.size(), gradients.data(), "sgd", *sgd, {}, parallel_for)
            .ok());
  }
  // Returns how often each row was updated; a row whose floats differ from each other fails the
  // test.
  std::vector<float> Look(const std::vector<Key>& keys) {
    std::vector<float> rows(keys.size() * kDim);
    REQUIRE(table_->Lookup(keys.data(), keys.size(), false, rows.data(), ProcessPool()).ok());
    std::vector<float> counts(keys.size());
    for (size_t i = 0; i < keys.size(); ++i) {
      counts[i] = rows[i * kDim];
      const auto end = rows.begin() + static_cast<int64_t>((i + 1) * kDim);
      REQUIRE(std::count(end - kDim, end, counts[i]) == kDim);
    }
    return counts;
  }

  uint64_t size() const { return table_->size(); }
  // Counts the rows that have not expired, and leaves the others out of size().
  uint64_t Count() { return Value(table_->Freeze()).size(); }

  void Compact() { REQUIRE(storage_->Compact().ok()); }
  uint64_t Remove(const std::vector<Key>& keys) {
    return Value(table_->Remove(keys.data(), keys.size(), ProcessPool()));
  }

  uint32_t now = 1'700'000'000;

 private:
  const TestFolder folder_;
  std::shared_ptr<Storage> storage_;
  std::shared_ptr<Table> table_;
};

std::vector<Key> Range(Key first, size_t n) {
  std::vector<Key> keys(n);
  std::iota(keys.begin(), keys.end(), first);
  return keys;
}

}  // namespace

TEST_CASE("live rows stay when expired ones of the same batch make room for them") {
  for (const bool write_through : {false, true}) {
    CAPTURE(write_through);
    CountingTable table(write_through);
    table.Update(Range(0, 3000));
    table.now += 50;
    table.Update(Range(10000, 3000));
    table.Look(Range(0, 2000));  // they fill the cache, and expire there
    table.now += 60;
    std::vector<Key> both = Range(0, 3000);
    const std::vector<Key> live = Range(10000, 3000);
    both.insert(both.end(), live.begin(), live.end());
    std::mt19937_64 random(7);
    std::shuffle(both.begin(), both.end(), random);
    table.Update(both);
    const std::vector<float> expired = table.Look(Range(0, 3000));
    const std::vector<float> kept = table.Look(live);
    CHECK(std::count(expired.begin(), expired.end(), 1.0f) == 3000);
    CHECK(std::count(kept.begin(), kept.end(), 2.0f) == 3000);
  }
}

TEST_CASE("rows that live on after a count has left them out are counted again") {
  for (const bool write_through : {false, true}) {
    CAPTURE(write_through);
    CountingTable table(write_through);
    const std::vector<Key> keys = Range(0, 500);
    table.Update(keys);
    table.now += kTtl - 1;
    // The rows expire, and are counted, after the update has asked for the time.
    bool counted = false;
    table.Update(keys, [&](int64_t n, int64_t cost, const auto& fn) {
      if (!std::exchange(counted, true)) {
        ++table.now;
        table.Compact();
        CHECK(table.size() == 0);
      }
      ProcessPool()(n, cost, fn);
    });
    REQUIRE(counted);
    CHECK(table.size() == 500);
    table.now += kTtl - 1;
    CHECK(table.Look(keys) == std::vector<float>(keys.size(), 2.0f));
    CHECK(table.Count() == 500);
    ++table.now;
    CHECK(table.Count() == 0);
    table.Update(keys);
    CHECK(table.size() == 500);
    CHECK(table.Look(keys) == std::vector<float>(keys.size(), 1.0f));
  }
}

TEST_CASE("what has expired once stays so when the clock is set back, and size() says so") {
  for (const bool write_through : {false, true}) {
    for (const uint32_t back : {1u, 50u, 4u * 365 * 86400}) {
      for (const bool compacted : {false, true}) {
        CAPTURE(write_through);
        CAPTURE(back);
        CAPTURE(compacted);
        CountingTable table(write_through);
        const std::vector<Key> keys = Range(0, 500), others = Range(500, 100);
        table.Update(keys);
        table.now += kTtl;
        CHECK(table.Count() == 0);
        if (compacted) table.Compact();
        table.now -= back;
        if (compacted) table.Compact();
        CHECK(table.Look(keys) == std::vector<float>(keys.size(), 0.0f));
        SUBCASE("removed") {
          CHECK(table.Remove(keys) == 0);
          CHECK(table.size() == 0);
          table.Update(others);
          CHECK(table.size() == 100);
          CHECK(table.Count() == 100);
        }
        SUBCASE("updated") {
          table.Update(keys);
          CHECK(table.size() == 500);
          CHECK(table.Look(keys) == std::vector<float>(keys.size(), 1.0f));
          CHECK(table.Count() == 500);
          CHECK(table.Remove(keys) == 500);
          CHECK(table.size() == 0);
        }
        // Time goes on once the clock has caught up.
        table.Update(others);
        table.now += back + kTtl - 1;
        CHECK(table.Count() == 100);
        ++table.now;
        CHECK(table.Count() == 0);
      }
    }
  }
}

TEST_CASE("rows that expire, and are removed, while all are read are read, or not counted") {
  const TestFolder folder;
  uint32_t now = 1000;
  const auto faults = std::make_shared<PlantedFaults>();
  Database* database = nullptr;
  StorageOptions options;
  options.path = folder / "storage";
  options.ttl = kTtl;
  options.now = [&now] { return now; };
  options.open_database = [&](const Database::Options& given) {
    auto opened = FailingDatabase::Over(RowDatabase::Open, faults)(given);
    if (opened.ok()) database = opened.value().get();
    return opened;
  };
  const auto storage = Value(Storage::Open(options));
  TableSpec config;
  config.dim = 2;
  const auto table = Value(storage->OpenTable(config));
  const std::vector<Key> keys = Range(0, 1000);
  const std::vector<float> rows(keys.size() * 2, 1.0f);
  REQUIRE(table->Assign(keys.data(), 500, rows.data(), SerialFor).ok());
  now += kTtl / 2;
  REQUIRE(table->Assign(keys.data() + 500, 500, rows.data(), SerialFor).ok());
  REQUIRE(storage->Flush().ok());
  const auto expire_half = [&] {
    now = 1000 + kTtl;
    REQUIRE(database->Compact().ok());
  };
  SUBCASE("after they were counted") {
    const auto snapshot = Value(table->Freeze());
    REQUIRE(snapshot.size() == 1000);
    expire_half();
    std::vector<Key> found(1000);
    std::vector<float> floats(2000);
    REQUIRE(snapshot.Write({found.data(), floats.data()}).ok());
    CHECK(found == keys);
    CHECK(floats == rows);
  }
  SUBCASE("before they are counted") {
    faults->before_look = [&](Database*) {
      faults->before_look = nullptr;
      expire_half();
    };
    CHECK(Value(table->Freeze()).size() == 500);
  }
  CHECK(Value(table->Freeze()).size() == 500);
  CHECK(Value(table->Remove(keys.data(), 1000, SerialFor)) == 500);
  CHECK(table->size() == 0);
}

TEST_CASE("a journal from before a clock was set back is counted when it is taken in") {
  const TestFolder folder;
  uint32_t now = 1000;
  const auto open = [&](const std::string& name, bool read_only) {
    StorageOptions options;
    options.path = folder / name;
    options.ttl = kTtl;
    options.read_only = read_only;
    options.write_through = !read_only;
    options.now = [&now] { return now; };
    return Value(Storage::Open(options));
  };
  TableSpec config;
  config.dim = 2;
  const auto table_in = [&](const std::shared_ptr<Storage>& storage) {
    return Value(storage->OpenTable(config));
  };
  const std::vector<Key> keys = Range(0, 300);
  const std::vector<float> rows(keys.size() * 2, 1.0f);
  {
    const auto storage = open("storage", false);
    REQUIRE(table_in(storage)->Assign(keys.data(), 10, rows.data(), SerialFor).ok());
    now = 1000 + 3 * kTtl;
    REQUIRE(storage->Compact().ok());
    REQUIRE(storage->Close().ok());
  }
  now = 1000 + kTtl;  // the clock of another machine
  const auto storage = open("storage", false);
  const auto table = table_in(storage);
  REQUIRE(table->Assign(keys.data(), 300, rows.data(), SerialFor).ok());
  CHECK(table->size() == 300);
  const auto copy = [&](const std::string& name) {
    // A killed process would leave the same files.
    CopyOfOneMoment(folder / "storage", folder / name);
    return name;
  };
  for (const bool read_only : {true, false}) {
    CAPTURE(read_only);
    now = 1000 + kTtl;
    CHECK(table_in(open(copy(read_only ? "reader" : "writer"), read_only))->size() == 300);
    now = 1000 + 3 * kTtl;
    const auto late = open(copy(read_only ? "late reader" : "late writer"), read_only);
    CHECK(table_in(late)->size() == 0);
    CHECK(Value(late->Survey(0)).rows == 0);
  }
  // The process is killed when it has caught up with the time of that count, and has counted.
  now = 1000 + 3 * kTtl;
  CHECK(Value(table->Freeze()).size() == 0);
  REQUIRE(table->Assign(keys.data(), 20, rows.data(), SerialFor).ok());
  for (const bool read_only : {true, false}) {
    const auto last = open(copy(read_only ? "last reader" : "last writer"), read_only);
    CHECK(table_in(last)->size() == 20);
    CHECK(Value(last->Survey(0)).rows == 20);
  }
}

TEST_CASE("a load takes in no row that has expired, and leaves the live one of its key") {
  const TestFolder folder;
  uint32_t now = 1000;
  const auto open = [&](const std::string& name, uint32_t ttl) {
    StorageOptions options;
    options.path = folder / name;
    options.ttl = ttl;
    options.now = [&now] { return now; };
    return Value(Storage::Open(options));
  };
  TableSpec config;
  config.dim = 1;
  const auto from = open("from", 0);
  const auto source = Value(from->OpenTable(config));
  const std::vector<Key> keys = Range(0, 30);
  const std::vector<float> ones(30, 1.0f), twos(30, 2.0f);
  REQUIRE(source->Assign(keys.data(), 20, ones.data(), SerialFor).ok());
  now += kTtl;
  REQUIRE(source->Assign(keys.data() + 20, 10, ones.data(), SerialFor).ok());
  REQUIRE(Value(from->Dump(folder / "dump", {}, nullptr)) == 30);

  const auto to = open("to", kTtl);
  const auto table = Value(to->OpenTable(config));
  REQUIRE(table->Assign(keys.data() + 10, 15, twos.data(), SerialFor).ok());
  CHECK(Value(to->Load(folder / "dump", nullptr)) == 10);
  CHECK(table->size() == 20);
  std::vector<float> found(30);
  REQUIRE(table->Lookup(keys.data(), 30, false, found.data(), SerialFor).ok());
  for (const Key key : keys) CHECK((found[key] == 2) == (key >= 10 && key < 20));
  for (const Key key : keys) CHECK((found[key] == 1) == (key >= 20));
}

TEST_CASE("an open that fails removes no rows by the TTL that it was to set") {
  const TestFolder folder;
  uint32_t now = 1000;
  StorageOptions options;
  options.path = folder / "storage";
  options.now = [&now] { return now; };
  TableSpec config;
  config.dim = 2;
  const std::vector<Key> keys = Range(0, 300);
  const std::vector<float> rows(keys.size() * 2, 1.0f);
  {
    const auto storage = Value(Storage::Open(options));
    const auto table = Value(storage->OpenTable(config));
    REQUIRE(table->Assign(keys.data(), 300, rows.data(), SerialFor).ok());
    REQUIRE(storage->Close().ok());
  }
  now = 1000 + kTtl;
  {
    const auto faults = std::make_shared<PlantedFaults>();
    StorageOptions failing = options;
    failing.ttl = kTtl;
    const auto compacted = [&](const Database::Options& given) {
      auto opened = RowDatabase::Open(given);
      // RocksDB may do this in the background.
      if (opened.ok()) REQUIRE(opened.value()->Compact().ok());
      faults->first = faults->calls;  // the next one, which sets the TTL
      return opened;
    };
    failing.open_database = FailingDatabase::Over(compacted, faults);
    const auto storage = Storage::Open(failing);
    REQUIRE_FALSE(storage.ok());
    CHECK(Contains(storage.status(), "planted"));
  }
  {
    const auto storage = Value(Storage::Open(options));
    CHECK(storage->ttl() == 0);
    CHECK(Value(storage->Survey(0)).rows == 300);
  }
  options.ttl = kTtl;
  const auto storage = Value(Storage::Open(options));
  REQUIRE(storage->Compact().ok());
  const GroupSurvey survey = Value(storage->Survey(0));
  CHECK(survey.rows == 0);
  CHECK(survey.expired == 0);
}

TEST_CASE("an open with another TTL that fails anywhere leaves counts by the folder's") {
  const TestFolder folder;
  uint32_t now = 1000;
  TableSpec config;
  config.dim = 2;
  const std::vector<Key> keys = Range(0, 300);
  const std::vector<float> rows(keys.size() * 2, 1.0f);
  StorageOptions options;
  options.path = folder / "storage";
  options.ttl = kTtl;
  options.write_through = true;
  options.now = [&now] { return now; };
  {
    const auto storage = Value(Storage::Open(options));
    const auto table = Value(storage->OpenTable(config));
    REQUIRE(table->Assign(keys.data(), 10, rows.data(), SerialFor).ok());
    now = 1000 + 3 * kTtl;
    REQUIRE(storage->Compact().ok());
    REQUIRE(storage->Close().ok());
  }
  // By the clock of another machine the journal has rows that had expired at that count.
  now = 1000 + kTtl;
  const auto storage = Value(Storage::Open(options));
  const auto table = Value(storage->OpenTable(config));
  REQUIRE(table->Assign(keys.data(), 300, rows.data(), SerialFor).ok());
  now = 1000 + 3 * kTtl;
  int failed = 0;
  for (bool opened = false; !opened; ++failed) {
    CAPTURE(failed);
    StorageOptions other = options;
    other.path = folder / ("killed " + std::to_string(failed));
    CopyOfOneMoment(folder / "storage", other.path);
    const auto faults = std::make_shared<PlantedFaults>();
    faults->first = failed;
    other.ttl = 10 * kTtl;
    other.open_database = FailingDatabase::Over(RowDatabase::Open, faults);
    opened = Storage::Open(other).ok();
    StorageOptions mended = options;
    mended.path = other.path;
    mended.ttl = std::nullopt;
    const auto again = Value(Storage::Open(mended));
    CHECK(again->ttl() == (opened ? 10 * kTtl : kTtl));
    CHECK(Value(again->OpenTable(config))->size() == (opened ? 300 : 0));
    CHECK(Value(again->Survey(0)).rows == (opened ? 300 : 0));
  }
  CHECK(failed > 4);
}

TEST_CASE("a description that was counted ahead of the clock, or by another TTL, is counted anew") {
  const TestFolder folder;
  uint32_t now = 1000;
  const auto open = [&](std::optional<uint32_t> ttl, bool read_only) {
    StorageOptions options;
    options.path = folder / "storage";
    options.ttl = ttl;
    options.read_only = read_only;
    options.now = [&now] { return now; };
    return Value(Storage::Open(options));
  };
  TableSpec config;
  config.dim = 2;
  const auto size_in = [&](Storage* storage) {
    const uint64_t described = Value(storage->Groups()).at(0).meta.rows;
    const uint64_t held = Value(storage->OpenTable(config))->size();
    CHECK(described == held);
    return held;
  };
  const std::vector<Key> keys = Range(0, 300);
  const std::vector<float> rows(keys.size() * 2, 1.0f);
  {
    const auto storage = open(kTtl, false);
    const auto table = Value(storage->OpenTable(config));
    REQUIRE(table->Assign(keys.data(), 300, rows.data(), SerialFor).ok());
    now = 1000 + kTtl;
    REQUIRE(table->Assign(keys.data(), 10, rows.data(), SerialFor).ok());
    CHECK(Value(table->Freeze()).size() == 10);
    REQUIRE(storage->Close().ok());
  }
  CHECK(size_in(open(std::nullopt, true).get()) == 10);
  CHECK(size_in(open(0, true).get()) == 300);
  CHECK(size_in(open(5 * kTtl, true).get()) == 300);
  now = 1001;
  CHECK(size_in(open(std::nullopt, true).get()) == 300);
  CHECK(size_in(open(std::nullopt, false).get()) == 300);
}

TEST_CASE("random batches of expired and live keys count as a map does") {
  const uint64_t seed = TestSeed();
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  const auto below = [&](uint64_t n) { return random() % n; };
  for (const bool write_through : {false, true}) {
    CAPTURE(write_through);
    CountingTable table(write_through);
    struct Row {
      float count = 0;
      uint32_t time = 0;
    };
    std::unordered_map<Key, Row> model;
    const auto count = [&](Key key) {
      const auto row = model.find(key);
      return row == model.end() || row->second.time + kTtl <= table.now ? 0.0f : row->second.count;
    };
    for (int batch = 0; batch < 60; ++batch) {
      std::vector<Key> keys(500 + below(4500));
      for (Key& key : keys) key = below(12000);
      const std::vector<Key> third(keys.begin(),
                                   keys.begin() + static_cast<int64_t>(keys.size() / 3));
      const std::vector<float> looked = table.Look(third);
      size_t wrong = 0;
      for (size_t i = 0; i < third.size(); ++i) wrong += looked[i] != count(third[i]);
      REQUIRE(wrong == 0);
      table.Update(keys);
      std::unordered_map<Key, float> added;
      for (Key key : keys) ++added[key];
      for (const auto& [key, times] : added) model[key] = {count(key) + times, table.now};
      if (below(3) == 0) {
        const auto live = std::count_if(model.begin(), model.end(), [&](const auto& each) {
          return each.second.time + kTtl > table.now;
        });
        REQUIRE(table.Count() == static_cast<uint64_t>(live));
        REQUIRE(table.size() == static_cast<uint64_t>(live));
      }
      table.now += static_cast<uint32_t>(below(60));
    }
  }
}

}  // namespace sok
