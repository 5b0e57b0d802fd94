// Table, for callers that choose the start of new rows: Find, AdmitMissing, MakeRowsAs, Visit,
// ReadRows, AssignRows, ForEachRow, Missing.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/test_folder.h"
#include "core/base/test_result.h"
#include "core/base/test_threads.h"
#include "core/storage/storage.h"
#include "core/tables/table.h"

namespace sok {
namespace {

constexpr int kDim = 40;  // a long row to the lookup; other tests have short ones
constexpr uint64_t kRange = 1000;

TableSpec Config() {
  TableSpec config;
  config.dim = kDim;
  return config;
}

// Tables of each kind of store, that of the storage over a folder which goes with them.
struct Tables {
  Tables() {
    TableSpec direct = Config(), many_shards = Config();
    direct.direct = true;
    direct.max_rows = kRange;
    many_shards.shards = 20;
    all.push_back(Value(Table::Make(Config())));
    all.push_back(Value(Table::Make(many_shards)));
    all.push_back(Value(Table::Make(direct)));
    StorageOptions options;
    options.path = folder / "storage";
    options.cache_bytes = uint64_t{1} << 20;
    storage = Value(Storage::Open(options));
    all.push_back(Value(storage->OpenTable(Config())));
  }
  ~Tables() {
    all.clear();
    CHECK(storage->Close().ok());
  }
  TestFolder folder;
  std::shared_ptr<Storage> storage;
  std::vector<std::shared_ptr<Table>> all;
};

std::vector<float> Row(float first) {
  std::vector<float> row(kDim);
  for (int j = 0; j < kDim; ++j) row[j] = first + 0.25f * static_cast<float>(j);
  return row;
}

void MakeRows(Table& table, const std::vector<Key>& keys) {
  const auto start = [&](size_t i, float* row, int) {
    const auto floats = Row(static_cast<float>(keys[i]));
    std::copy(floats.begin(), floats.end(), row);
  };
  REQUIRE(table.MakeRowsAs(keys.data(), keys.size(), start, ThreadedFor).ok());
}

std::vector<float> Embedding(Table& table, Key key) {
  std::vector<float> out(kDim);
  REQUIRE(table.Lookup(&key, 1, false, out.data(), SerialFor).ok());
  return out;
}

template <typename T>
std::vector<T> Sorted(std::vector<T> values) {
  std::sort(values.begin(), values.end());
  return values;
}

void Train(Table& table, const std::vector<Key>& keys, const std::string& rule) {
  const auto ones = std::make_shared<const std::vector<float>>(keys.size() * kDim, 1.0f);
  LookupKeys lookup;
  lookup.keys = keys.data();
  lookup.n = keys.size();
  REQUIRE(table.Deposit(lookup, ones, ones->data(), nullptr).ok());
  REQUIRE(table.Commit({rule, {}, 0, 1.0f}, ThreadedFor).ok());
}

}  // namespace

TEST_CASE("Find copies rows into their places, names the others, and touches nothing else") {
  const Tables tables;
  for (const auto& table : tables.all) {
    MakeRows(*table, {1, 2, 3});
    const std::vector<Key> keys = {3, 9, 1, 3, 9, 2};
    const std::vector<uint32_t> places = {7, 0, 5, 2, 1, 4};
    GatherOptions options;
    options.places = places.data();
    std::vector<float> out(8 * kDim, -1.0f);
    std::vector<BFloat16> halves(8 * kDim, FromFloat<BFloat16>(-1.0f));
    for (const ParallelFor& parallel_for : {ParallelFor(SerialFor), ParallelFor(ThreadedFor)}) {
      std::vector<uint32_t> missing = {99}, missing_half;
      REQUIRE(
          table->Find(keys.data(), 6, options, out.data(), &missing, nullptr, parallel_for).ok());
      CHECK(missing[0] == 99);
      CHECK(Sorted(missing) == std::vector<uint32_t>{1, 4, 99});
      REQUIRE(
          table->Find(keys.data(), 6, options, halves.data(), &missing_half, nullptr, parallel_for)
              .ok());
      CHECK(Sorted(missing_half) == std::vector<uint32_t>{1, 4});
    }
    const std::map<int, float> expected = {{7, 3.0f}, {5, 1.0f}, {2, 3.0f}, {4, 2.0f}};
    for (int place = 0; place < 8; ++place) {
      const auto found = expected.find(place);
      for (int j = 0; j < kDim; ++j) {
        const float wanted = found == expected.end() ? -1.0f : Row(found->second)[j];
        CHECK(out[place * kDim + j] == wanted);
        CHECK(halves[place * kDim + j].bits == FromFloat<BFloat16>(wanted).bits);
      }
    }
    CHECK(table->size() == 3);
  }
}

TEST_CASE("Find copies given rows as they are, and does not look their keys up") {
  const Tables tables;
  for (const auto& table : tables.all) {
    MakeRows(*table, {1, 2, 3});
    const std::vector<float> other = Row(50);
    // The key of a given row may have a row, have none, or be one that a direct table refuses.
    const std::vector<Key> keys = {3, 1, 9, kRange + 5, 2, 9};
    const std::vector<const float*> given = {nullptr,      other.data(), other.data(),
                                             other.data(), nullptr,      nullptr};
    const std::vector<uint32_t> places = {5, 4, 3, 2, 1, 0};
    for (const bool in_order : {true, false}) {
      std::vector<float> out(6 * kDim, -1.0f);
      std::vector<BFloat16> halves(6 * kDim, FromFloat<BFloat16>(-1.0f));
      std::vector<uint32_t> missing, missing_half;
      GatherOptions options;
      options.given = given.data();
      if (!in_order) options.places = places.data();
      REQUIRE(
          table->Find(keys.data(), 6, options, out.data(), &missing, nullptr, ThreadedFor).ok());
      REQUIRE(table->Find(keys.data(), 6, options, halves.data(), &missing_half, nullptr, SerialFor)
                  .ok());
      CHECK(missing == std::vector<uint32_t>{5});
      CHECK(missing_half == std::vector<uint32_t>{5});
      const std::vector<float> firsts = {3, 50, 50, 50, 2};
      for (size_t i = 0; i < 6; ++i) {
        for (int j = 0; j < kDim; ++j) {
          const size_t at = (in_order ? i : places[i]) * kDim + j;
          const float wanted = i == 5 ? -1.0f : Row(firsts[i])[j];
          CHECK(out[at] == wanted);
          CHECK(halves[at].bits == FromFloat<BFloat16>(wanted).bits);
        }
      }
    }
    CHECK(table->size() == 3);
  }
}

TEST_CASE("Find without a list of the missing gives them what training would start from") {
  const Tables tables;
  for (const auto& table : tables.all) {
    MakeRows(*table, {1});
    const auto start = Embedding(*table, 5);
    const std::vector<Key> keys = {5, 1};
    std::vector<float> out(2 * kDim);
    REQUIRE(table->Find(keys.data(), 2, {}, out.data(), nullptr, nullptr, SerialFor).ok());
    CHECK(std::vector<float>(out.begin(), out.begin() + kDim) == start);
    CHECK(std::vector<float>(out.begin() + kDim, out.end()) == Row(1));
    CHECK(table->size() == 1);
  }
}

TEST_CASE("Missing tells the positions of keys without a row") {
  const Tables tables;
  for (const auto& table : tables.all) {
    MakeRows(*table, {1, 3});
    const std::vector<Key> keys = {0, 1, 2, 3, 2};
    CHECK(Sorted(Value(table->Missing(keys.data(), 5, ThreadedFor))) ==
          std::vector<uint32_t>{0, 2, 4});
    CHECK(Value(table->Missing(nullptr, 0, ThreadedFor)).empty());
  }
}

TEST_CASE("MakeRowsAs writes new rows only, and of equal keys the first counts") {
  const Tables tables;
  for (const auto& table : tables.all) {
    MakeRows(*table, {1, 2});
    const std::vector<Key> keys = {7, 2, 8, 7, 8};
    std::atomic<int> calls{0};
    const auto start = [&](size_t i, float* row, int slot_floats) {
      CHECK(slot_floats == 0);
      ++calls;
      std::fill_n(row, kDim, static_cast<float>(10 + i));
    };
    REQUIRE(table->MakeRowsAs(keys.data(), 5, start, ThreadedFor).ok());
    CHECK(calls == 2);
    CHECK(Embedding(*table, 7) == std::vector<float>(kDim, 10.0f));
    CHECK(Embedding(*table, 8) == std::vector<float>(kDim, 12.0f));
    CHECK(Embedding(*table, 2) == Row(2));
    CHECK(table->size() == 4);
  }
}

TEST_CASE("MakeRowsAs finds slots at their start, and keeps what is written there") {
  const Tables tables;
  for (const auto& table : tables.all) {
    MakeRows(*table, {1});
    Train(*table, {1}, "adagrad");
    const std::vector<Key> keys = {5, 6};
    const auto start = [](size_t i, float* row, int slot_floats) {
      REQUIRE(slot_floats == kDim);
      std::fill_n(row, kDim, 1.0f);
      for (int j = 0; j < kDim; ++j) CHECK(row[kDim + j] == doctest::Approx(0.1));
      if (i == 1) row[kDim] = 9.0f;
    };
    REQUIRE(table->MakeRowsAs(keys.data(), 2, start, SerialFor).ok());
    std::map<Key, std::vector<float>> slots;
    std::map<Key, uint32_t> updates;
    REQUIRE(table
                ->ForEachRow([&](Key key, RowRef row) {
                  slots[key].assign(row.embedding + kDim, row.embedding + 2 * kDim);
                  updates[key] = row.meta->update_num;
                })
                .ok());
    CHECK(slots.size() == 3);
    CHECK(slots[5][0] == doctest::Approx(0.1));
    CHECK(slots[6][0] == 9.0f);
    CHECK(slots[6][1] == doctest::Approx(0.1));
    CHECK(updates == std::map<Key, uint32_t>{{1, 1}, {5, 0}, {6, 0}});
  }
}

TEST_CASE("MakeRowsAs beyond max_rows makes none of the rows") {
  TableSpec config = Config();
  config.max_rows = 3;
  const auto table = Value(Table::Make(config));
  MakeRows(*table, {1, 2});
  const std::vector<Key> keys = {2, 3, 4};
  const auto start = [](size_t, float* row, int) { std::fill_n(row, kDim, 0.0f); };
  CHECK(table->MakeRowsAs(keys.data(), 3, start, ThreadedFor).code() == Code::kResourceExhausted);
  CHECK(table->size() == 2);
  CHECK(table->MakeRowsAs(keys.data(), 2, start, ThreadedFor).ok());
}

TEST_CASE("keys beyond a direct table are refused by all of them") {
  const Tables tables;
  Table& table = *tables.all[2];
  const Key key = kRange;
  std::vector<float> out(kDim);
  std::vector<uint32_t> missing;
  const auto write = [](size_t, float*, int) { FAIL("no row is written"); };
  CHECK(table.Find(&key, 1, {}, out.data(), &missing, nullptr, SerialFor).code() ==
        Code::kOutOfRange);
  CHECK(table.MakeRowsAs(&key, 1, write, SerialFor).code() == Code::kOutOfRange);
  CHECK(table.Visit(&key, 1, write, SerialFor).code() == Code::kOutOfRange);
  CHECK(table.size() == 0);
}

TEST_CASE("Visit shows rows with their slots in order, makes those that lack, and keeps changes") {
  const Tables tables;
  for (const auto& table : tables.all) {
    MakeRows(*table, {1});
    Train(*table, {1}, "adagrad");
    const auto first = Embedding(*table, 1), second = Embedding(*table, 2);
    const std::vector<Key> keys = {1, 2, 1, 2, 1};
    std::vector<size_t> order;
    REQUIRE(table
                ->Visit(
                    keys.data(), 5,
                    [&](size_t i, float* row, int slot_floats) {
                      REQUIRE(slot_floats == kDim);
                      if (keys[i] == 1) order.push_back(i);
                      row[0] = row[0] * 2 + static_cast<float>(i);
                      row[kDim] += 1;
                    },
                    ThreadedFor)
                .ok());
    CHECK(order == std::vector<size_t>{0, 2, 4});
    CHECK(table->size() == 2);
    CHECK(Embedding(*table, 1)[0] == ((first[0] * 2 + 0) * 2 + 2) * 2 + 4);
    CHECK(Embedding(*table, 2)[0] == (second[0] * 2 + 1) * 2 + 3);
    CHECK(Embedding(*table, 2)[1] == second[1]);
    REQUIRE(table
                ->ForEachRow([&](Key key, RowRef row) {
                  if (key == 2) CHECK(row.embedding[kDim] == doctest::Approx(2.1));
                })
                .ok());
  }
}

TEST_CASE("ReadRows and AssignRows copy rows with their slots; only AssignRows makes rows") {
  const Tables tables;
  for (const auto& table : tables.all) {
    Train(*table, {1, 2}, "adagrad");
    const std::vector<Key> keys = {1, 3, 2};
    std::vector<uint32_t> places;
    std::vector<float> rows;
    REQUIRE(table->ReadRows(keys.data(), 3, kDim, &places, &rows, ThreadedFor).ok());
    CHECK(places == std::vector<uint32_t>{0, 2});
    REQUIRE(rows.size() == 2 * 2 * kDim);
    CHECK(std::equal(rows.begin(), rows.begin() + kDim, Embedding(*table, 1).begin()));
    CHECK(table->size() == 2);
    for (float& each : rows) each += 1;
    const std::vector<Key> others = {2, 3};
    REQUIRE(table->AssignRows(others.data(), 2, kDim, rows.data(), ThreadedFor).ok());
    CHECK(table->size() == 3);
    std::vector<float> again;
    places.clear();
    REQUIRE(table->ReadRows(others.data(), 2, kDim, &places, &again, SerialFor).ok());
    CHECK(again == rows);
  }
}

TEST_CASE("ReadRows and AssignRows refuse rows of other slots, and change nothing") {
  const Tables tables;
  for (const auto& table : tables.all) {
    Train(*table, {1}, "adagrad");
    const Key key = 1;
    const std::vector<float> before = Embedding(*table, 1);
    std::vector<uint32_t> places;
    std::vector<float> rows(2 * kDim + 1);
    const Status read = table->ReadRows(&key, 1, kDim + 1, &places, &rows, SerialFor);
    CHECK(read.code() == Code::kFailedPrecondition);
    CHECK(table->AssignRows(&key, 1, kDim + 1, rows.data(), SerialFor).code() ==
          Code::kFailedPrecondition);
    CHECK(Embedding(*table, 1) == before);
    places.clear();
    const Key absent = 9;
    CHECK(table->ReadRows(&absent, 1, kDim + 1, &places, &rows, SerialFor).ok());
    CHECK((places.empty() && rows.empty()));
    CHECK(table->AssignRows(nullptr, 0, kDim + 1, nullptr, SerialFor).ok());
  }
}

TEST_CASE("AdmitMissing counts every place, and keeps those that may have a row, in order") {
  LookupCounts met;
  AdmissionConfig frequency;
  frequency.min_count = 3;
  TableSpec config = Config();
  config.admission = frequency;
  const auto table = Value(Table::Make(config));
  const std::vector<Key> keys = {7, 8, 7, 7, 8};
  std::vector<uint32_t> positions = {4, 2, 0, 3, 1};
  REQUIRE(table->AdmitMissing(keys.data(), nullptr, &positions, &met).ok());
  CHECK(positions == std::vector<uint32_t>{3});
  positions = {0, 1};
  REQUIRE(table->AdmitMissing(keys.data(), nullptr, &positions, &met).ok());
  CHECK(positions == std::vector<uint32_t>{0, 1});
  MakeRows(*table, {7});  // gives its counter up
  positions = {0, 1};
  REQUIRE(table->AdmitMissing(keys.data(), nullptr, &positions, &met).ok());
  CHECK(positions == std::vector<uint32_t>{1});
  CHECK(table->size() == 1);
}

TEST_CASE("AdmitMissing counts a place as often as it is told") {
  LookupCounts met;
  AdmissionConfig frequency;
  frequency.min_count = 3;
  TableSpec config = Config();
  config.admission = frequency;
  const auto table = Value(Table::Make(config));
  const std::vector<Key> keys = {7, 8, 9};
  const std::vector<int64_t> counts = {2, 3, 9};
  std::vector<uint32_t> positions = {1, 0};
  REQUIRE(table->AdmitMissing(keys.data(), counts.data(), &positions, &met).ok());
  CHECK(positions == std::vector<uint32_t>{1});
}

TEST_CASE("AdmitMissing of a table without admission keeps all positions") {
  LookupCounts met;
  const auto table = Value(Table::Make(Config()));
  const std::vector<Key> keys = {7, 8};
  std::vector<uint32_t> positions = {1, 0};
  REQUIRE(table->AdmitMissing(keys.data(), nullptr, &positions, &met).ok());
  CHECK(Sorted(positions) == std::vector<uint32_t>{0, 1});
}

}  // namespace sok
