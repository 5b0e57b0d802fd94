// Table: what a restore makes of the times of rows, of a step clock, and of counts of an admission.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/base/test_folder.h"
#include "core/base/test_result.h"
#include "core/base/test_threads.h"
#include "core/policies/admission_counts.h"
#include "core/storage/storage.h"
#include "core/tables/table.h"
#include "core/tables/test_contents.h"

namespace sok {
namespace {

constexpr int kDim = 2;

// A clock in seconds that a test sets.
struct Seconds {
  std::shared_ptr<uint32_t> now = std::make_shared<uint32_t>(1000);
  std::shared_ptr<const Expiry> clock() const {
    return std::make_shared<const Expiry>(0, [now = now] { return *now; });
  }
};

std::unique_ptr<Table> InSeconds(const Seconds& seconds) {
  TableSpec config;
  config.dim = kDim;
  return Value(Table::Make(config, seconds.clock()));
}

std::unique_ptr<Table> InSteps() {
  TableSpec config;
  config.dim = kDim;
  config.step_clock = true;
  return Value(Table::Make(config));
}

std::unique_ptr<Table> Admitting(const AdmissionConfig& config) {
  TableSpec table;
  table.dim = kDim;
  table.admission = config;
  return Value(Table::Make(table));
}

AdmissionConfig SeenTwice() {
  AdmissionConfig config;
  config.min_count = 2;
  return config;
}

void Train(Table& table, const std::vector<Key>& keys) {
  const std::vector<float> gradients(keys.size() * kDim, 0.5f);
  REQUIRE(
      table.Deposit({nullptr, keys.data(), keys.size(), false}, nullptr, gradients.data(), nullptr)
          .ok());
  REQUIRE(table.Commit({"adam", {}, 0, 1.0f}, SerialFor).ok());
}

void See(Table& table, const std::vector<Key>& keys) {
  std::vector<float> out(keys.size() * kDim);
  REQUIRE(table.Lookup(keys.data(), keys.size(), true, out.data(), SerialFor).ok());
}

OwnedContents ContentsOf(Table& table) { return Owned(Value(table.Freeze()), kDim); }

std::map<Key, int64_t> Times(Table& table) {
  const OwnedContents contents = ContentsOf(table);
  std::map<Key, int64_t> times;
  for (size_t i = 0; i < contents.keys.size(); ++i) {
    times[contents.keys[i]] = contents.update_times[i];
  }
  return times;
}

std::vector<Key> EvictOlder(Table& table, uint32_t age) {
  EvictionConfig config;
  config.kind = "max_age";
  config.max_age = age;
  const auto older = Value(MakeEviction(config));
  std::vector<Key> keys = Value(table.Evict({older.get()}, SerialFor)).keys;
  std::sort(keys.begin(), keys.end());
  return keys;
}

TEST_CASE("restored rows have the times that they were saved with") {
  const Seconds seconds;
  const auto table = InSeconds(seconds), copy = InSeconds(seconds);
  Train(*table, {1, 2});
  *seconds.now = 1010;
  Train(*table, {2, 3});
  *seconds.now = 1020;
  REQUIRE(Restore(*copy, ContentsOf(*table), ThreadedFor).ok());
  CHECK(Times(*copy) == std::map<Key, int64_t>{{1, 1000}, {2, 1010}, {3, 1010}});
  CHECK(EvictOlder(*copy, 15) == std::vector<Key>{1});
}

TEST_CASE("a time in the future becomes now, since clocks of machines differ") {
  const Seconds ahead, behind;
  *ahead.now = 5000;
  const auto table = InSeconds(ahead), copy = InSeconds(behind);
  Train(*table, {1});
  OwnedContents contents = ContentsOf(*table);
  contents.keys.push_back(2);
  contents.embeddings.resize(2 * kDim);
  contents.slots.resize(2 * contents.slot_floats);
  contents.update_times.push_back(998);
  REQUIRE(Restore(*copy, contents, SerialFor).ok());
  CHECK(Times(*copy) == std::map<Key, int64_t>{{1, 1000}, {2, 998}});
}

TEST_CASE("a step clock goes on from where it stood, in a new table and in one that is ahead") {
  const auto table = InSteps();
  for (Key key = 1; key <= 5; ++key) Train(*table, {key});
  const OwnedContents saved = ContentsOf(*table);
  CHECK(saved.step_clock == 5);
  for (int earlier_steps : {0, 50}) {
    const auto copy = InSteps();
    for (int step = 0; step < earlier_steps; ++step) Train(*copy, {100});
    REQUIRE(Restore(*copy, saved, SerialFor).ok());
    CHECK(copy->now() == 5);
    CHECK(Times(*copy) == Times(*table));
    Train(*copy, {5});
    CHECK(Times(*copy).at(5) == 6);
    CHECK(EvictOlder(*copy, 4) == std::vector<Key>{1, 2});
  }
}

TEST_CASE("a step clock goes on where another optimizer has had steps count from 1 again") {
  const auto table = InSteps(), copy = InSteps();
  for (int step = 0; step < 3; ++step) Train(*table, {1});
  const std::vector<Key> keys = {2};
  const std::vector<float> gradients(kDim, 1.0f);
  REQUIRE(
      table->Deposit({nullptr, keys.data(), 1, false}, nullptr, gradients.data(), nullptr).ok());
  REQUIRE(table->Commit({"sgd", {}, 0, 1.0f}, SerialFor).ok());
  REQUIRE(table->steps() == 1);
  REQUIRE(Restore(*copy, ContentsOf(*table), SerialFor).ok());
  CHECK(copy->now() == 4);
  CHECK(Times(*copy) == std::map<Key, int64_t>{{1, 3}, {2, 4}});
}

TEST_CASE("times of another kind of clock mean nothing: all rows are as old as now") {
  const Seconds seconds;
  const auto in_seconds = InSeconds(seconds), in_steps = InSteps();
  Train(*in_seconds, {1});
  for (int step = 0; step < 3; ++step) Train(*in_steps, {2});
  OwnedContents of_seconds = ContentsOf(*in_seconds), of_steps = ContentsOf(*in_steps);
  *seconds.now = 1234;
  CHECK(Value(in_seconds->Restore(of_steps.View(), SerialFor)).dropped_times);
  CHECK(Times(*in_seconds) == std::map<Key, int64_t>{{2, 1234}});
  CHECK(Value(in_steps->Restore(of_seconds.View(), SerialFor)).dropped_times);
  CHECK(in_steps->now() == 1);  // it has taken the one step
  CHECK(Times(*in_steps) == std::map<Key, int64_t>{{1, 1}});
  CHECK_FALSE(Value(in_steps->Restore(of_steps.View(), SerialFor)).dropped_times);
}

TEST_CASE("times that no clock has shown are refused") {
  const auto table = InSteps();
  for (int step = 0; step < 3; ++step) Train(*table, {7});
  const auto refused = [&](int64_t time, int64_t clock, const std::string& part) {
    OwnedContents contents = ContentsOf(*table);
    contents.update_times = {time};
    contents.step_clock = clock;
    const Status status = Restore(*table, contents, SerialFor);
    CHECK(status.code() == Code::kInvalidArgument);
    CHECK_MESSAGE(status.message().find(part) != std::string::npos, status.message());
    CHECK(table->now() == 3);
    CHECK(Times(*table) == std::map<Key, int64_t>{{7, 3}});
  };
  refused(-1, 3, "got -1 for key 7");
  refused(4, 3, "[0, 3], where the step clock stands, got 4 for key 7");
  refused(int64_t{1} << 32, TableContents::kSeconds, "got 4294967296 for key 7");
  refused(-5, TableContents::kSeconds, "got -5 for key 7");
  refused(3, -2, "a step clock in [0, 2^32 - 1], or -1");
  refused(3, int64_t{1} << 32, "got 4294967296");
}

TEST_CASE("a key that was seen once before a save gets its row when it is seen once after it") {
  AdmissionConfig bloom = SeenTwice();
  bloom.kind = "counting_bloom";
  bloom.capacity = 1000;
  for (const AdmissionConfig& config : {SeenTwice(), bloom}) {
    const auto table = Admitting(config), copy = Admitting(config);
    See(*table, {1, 2, 2});
    See(*copy, {3});  // which the restore has it forget
    REQUIRE(table->size() == 1);
    REQUIRE(Restore(*copy, ContentsOf(*table), ThreadedFor).ok());
    CHECK(copy->size() == 1);
    See(*copy, {1, 3, 4});
    CHECK(Times(*copy).count(1) == 1);
    CHECK(copy->size() == 2);
  }
}

TEST_CASE("counts of another admission are refused, and nothing changes") {
  const auto table = Admitting(SeenTwice());
  See(*table, {1, 2, 2});
  AdmissionConfig thrice = SeenTwice();
  thrice.min_count = 3;
  const auto other = Admitting(thrice);
  See(*other, {8, 8, 8, 9});
  const Status status = Restore(*other, ContentsOf(*table), SerialFor);
  CHECK(status.code() == Code::kInvalidArgument);
  CHECK(status.message() ==
        "expected counts of the table's admission, frequency with min_count 3, got those of "
        "frequency with min_count 2; give the table that one, or restore without counts");
  CHECK(Times(*other).count(8) == 1);
  See(*other, {9, 9});
  CHECK(other->size() == 2);
  OwnedContents damaged = ContentsOf(*table);
  damaged.admission.back() ^= 1;
  CHECK(Restore(*Admitting(SeenTwice()), damaged, SerialFor).code() == Code::kDataLoss);
}

TEST_CASE("without an admission there is nothing to count; without counts none has counted") {
  const auto table = Admitting(SeenTwice());
  See(*table, {1, 2, 2});
  TableSpec config;
  config.dim = kDim;
  const auto plain = Value(Table::Make(config));
  OwnedContents counted = ContentsOf(*table);
  CHECK(Value(plain->Restore(counted.View(), SerialFor)).dropped_counts);
  CHECK(plain->size() == 1);
  OwnedContents uncounted = ContentsOf(*plain);
  CHECK(uncounted.admission.empty());
  CHECK_FALSE(Value(table->Restore(uncounted.View(), SerialFor)).dropped_counts);
  See(*table, {1});
  CHECK(table->size() == 1);
  See(*table, {1});
  CHECK(table->size() == 2);
}

TEST_CASE("a storage takes up times and counts, leaves out what has expired, and keeps both") {
  const TestFolder folder;
  const auto seconds = std::make_shared<uint32_t>(1000);
  StorageOptions options;
  options.path = folder / "rows";
  options.ttl = 100;
  options.now = [seconds] { return *seconds; };
  TableSpec config;
  config.dim = kDim;
  config.admission = SeenTwice();
  OwnedContents contents;
  const auto counted = Admitting(SeenTwice());
  See(*counted, {5});
  contents.keys = {1, 2, 3};
  contents.embeddings.assign(3 * kDim, 1.0f);
  contents.update_times = {900, 901, 2000};
  contents.admission = ContentsOf(*counted).admission;
  const std::map<Key, int64_t> expected = {{2, 901}, {3, 1000}};
  {
    const auto storage = Value(Storage::Open(options));
    const auto table = Value(storage->OpenTable(config));
    REQUIRE(Restore(*table, contents, ThreadedFor).ok());
    CHECK(table->size() == 2);
    CHECK(Times(*table) == expected);
    REQUIRE(storage->Flush().ok());
  }
  const auto storage = Value(Storage::Open(options));
  const auto table = Value(storage->OpenTable(config));
  CHECK(Times(*table) == expected);
  See(*table, {5});
  CHECK(table->size() == 3);
  *seconds = 1001;
  CHECK(Times(*table).count(2) == 0);
}

}  // namespace
}  // namespace sok
