// Table: exports and restores.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/base/test_result.h"
#include "core/base/test_threads.h"
#include "core/tables/table.h"
#include "core/tables/test_contents.h"

namespace sok {
namespace {

constexpr int kDim = 3;

std::unique_ptr<Table> MakeTable(uint64_t max_rows = 0, bool direct = false) {
  TableSpec config;
  config.dim = kDim;
  config.max_rows = max_rows;
  config.direct = direct;
  return std::move(Table::Make(config).value());
}

void Train(Table& table, const std::string& rule, const std::vector<Key>& keys) {
  const std::vector<float> gradients(keys.size() * kDim, 0.5f);
  REQUIRE(
      table.Deposit({nullptr, keys.data(), keys.size(), false}, nullptr, gradients.data(), nullptr)
          .ok());
  REQUIRE(table.Commit({rule, {}, 0, 1.0f}, ThreadedFor).ok());
}

// The contents of a checkpoint.
using Export = OwnedContents;

Export ExportOf(Table& table) { return Owned(Value(table.Freeze()), kDim); }

Status Restore(Table& table, const Export& e) { return Restore(table, e, ThreadedFor); }

// By key, since the order of an export is the store's own.
std::map<Key, std::vector<double>> RowsOf(const Export& e) {
  std::map<Key, std::vector<double>> rows;
  for (size_t i = 0; i < e.keys.size(); ++i) {
    std::vector<double>& row = rows[e.keys[i]];
    row.assign(&e.embeddings[i * kDim], &e.embeddings[i * kDim] + kDim);
    for (int j = 0; j < e.slot_floats; ++j) row.push_back(e.slots[i * e.slot_floats + j]);
    row.push_back(static_cast<double>(e.update_nums[i]));
  }
  return rows;
}

// Three rows of a made-up checkpoint: key k has 10 k in its embedding and 10 k + 1, … in its slots.
Export MadeUp(const std::string& rule, int slot_floats) {
  Export e;
  e.state = {rule, {}, 17};
  e.slot_floats = slot_floats;
  e.slot_start.assign(slot_floats, 0.0f);
  e.keys = {4, 0, 2};
  for (Key key : e.keys) {
    e.embeddings.insert(e.embeddings.end(), kDim, 10.0f * static_cast<float>(key));
    for (int j = 1; j <= slot_floats; ++j) {
      e.slots.push_back(10.0f * static_cast<float>(key) + static_cast<float>(j));
    }
    e.update_nums.push_back(static_cast<int64_t>(100 + key));
  }
  return e;
}

TEST_CASE("a restored table has the embeddings, slots and counts that it was given") {
  const Export given = MadeUp("adam", 2 * kDim);
  for (bool direct : {false, true}) {
    const auto table = MakeTable(direct ? 5 : 0, direct);
    Train(*table, "sgd", {1, 2, 3});
    REQUIRE(Restore(*table, given).ok());
    const Export found = ExportOf(*table);
    CHECK(RowsOf(found) == RowsOf(given));
    CHECK(found.state.rule == "adam");
    CHECK(found.state.steps == 17);
    CHECK(table->steps() == 17);
    CHECK(table->size() == 3);
  }
}

TEST_CASE("a restored table trains on as the one that was exported") {
  for (const std::string& rule : RowOptimizerNames()) {
    INFO(rule);
    const auto original = MakeTable(), copy = MakeTable();
    Train(*original, rule, {1, 2, 3, 2});
    Train(*original, rule, {2, ~Key{0}});
    REQUIRE(Restore(*copy, ExportOf(*original)).ok());
    for (const auto& table : {original.get(), copy.get()}) {
      Train(*table, rule, {1, 2, 9});
      Train(*table, rule, {~Key{0}, 2});
    }
    CHECK(RowsOf(ExportOf(*copy)) == RowsOf(ExportOf(*original)));
    CHECK(copy->steps() == 4);
  }
}

TEST_CASE("a snapshot tells the rule, its slots and the steps, and counts each row's updates") {
  const auto table = MakeTable();
  CHECK(ExportOf(*table).state.rule.empty());
  CHECK(ExportOf(*table).slot_floats == 0);
  Train(*table, "rowwise_adagrad", {1, 2, 2});
  Train(*table, "rowwise_adagrad", {2});
  const Export e = ExportOf(*table);
  CHECK(e.state.rule == "rowwise_adagrad");
  CHECK(e.state.steps == 2);
  CHECK(e.slot_floats == 1);
  REQUIRE(e.state.slots.size() == 1);
  CHECK(e.state.slots[0].width == 1);
  const auto rows = RowsOf(e);
  REQUIRE(rows.size() == 2);
  CHECK(rows.at(1).back() == 1);
  CHECK(rows.at(2).back() == 2);
  // From 0, as in FBGEMM: the mean square of each step's summed gradient.
  CHECK(rows.at(2)[kDim] == doctest::Approx(1.0 + 0.25));
}

TEST_CASE("a snapshot can leave slots and update numbers out") {
  const auto table = MakeTable();
  REQUIRE(Restore(*table, MadeUp("adagrad", kDim)).ok());
  const Table::Snapshot snapshot = Value(table->Freeze());
  std::vector<Key> keys(3);
  std::vector<float> embeddings(3 * kDim);
  REQUIRE(snapshot.Write({keys.data(), embeddings.data()}).ok());
  for (size_t i = 0; i < keys.size(); ++i) {
    CHECK(embeddings[i * kDim] == 10.0f * static_cast<float>(keys[i]));
  }
}

TEST_CASE("lookups that make no rows go on while a snapshot lives") {
  const auto table = MakeTable();
  REQUIRE(Restore(*table, MadeUp("sgd", 0)).ok());
  const Table::Snapshot snapshot = Value(table->Freeze());
  const Key keys[] = {4, 1000};
  std::vector<float> out(2 * kDim);
  CHECK(table->Lookup(keys, 2, false, out.data(), ThreadedFor).ok());
  CHECK(out[0] == 40.0f);
  CHECK(snapshot.size() == 3);
}

TEST_CASE("a restore drops the deposits and every row that was there") {
  const auto table = MakeTable();
  Train(*table, "adam", {50, 51});
  const Key key = 60;
  const std::vector<float> gradients(kDim, 1.0f);
  REQUIRE(table->Deposit({nullptr, &key, 1, false}, nullptr, gradients.data(), nullptr).ok());
  Export nothing = MadeUp("", 0);
  nothing.state.steps = 0;
  nothing.keys.clear();
  REQUIRE(Restore(*table, nothing).ok());
  CHECK(table->size() == 0);
  CHECK(table->steps() == 0);
  CHECK(table->Stats().pending_gradients == 0);
  CHECK(ExportOf(*table).state.rule.empty());
}

// Tries the restore on a trained table and finds everything as it was.
void CheckRefused(const std::unique_ptr<Table>& table, const Export& e, Code code,
                  const std::string& part) {
  Train(*table, "momentum", {0, 1});
  const auto before = RowsOf(ExportOf(*table));
  const Key key = 0;
  const std::vector<float> gradients(kDim, 1.0f);
  REQUIRE(table->Deposit({nullptr, &key, 1, false}, nullptr, gradients.data(), nullptr).ok());
  const Status status = Restore(*table, e);
  CHECK(status.code() == code);
  INFO("message: ", status.message());
  CHECK(status.message().find(part) != std::string::npos);
  CHECK(RowsOf(ExportOf(*table)) == before);
  CHECK(ExportOf(*table).state.rule == "momentum");
  CHECK(table->Stats().pending_gradients == 1);
}

TEST_CASE("a restore that cannot be is an error that changes nothing") {
  CheckRefused(MakeTable(), MadeUp("adam", kDim), Code::kInvalidArgument,
               "rule 'adam' keeps 6 slot values a row at dim 3, got 3");
  CheckRefused(MakeTable(), MadeUp("", kDim), Code::kInvalidArgument, "got 3");
  CheckRefused(MakeTable(), MadeUp("adamm", kDim), Code::kInvalidArgument, "\"adamm\"");
  CheckRefused(MakeTable(2), MadeUp("sgd", 0), Code::kResourceExhausted,
               "at most 2 rows cannot take up 3");
  CheckRefused(MakeTable(4, true), MadeUp("sgd", 0), Code::kOutOfRange, "[0, 4), got 4");
  Export twice = MadeUp("adagrad", kDim);
  twice.keys = {4, 0, 4};
  CheckRefused(MakeTable(), twice, Code::kInvalidArgument, "key 4 twice");
}

TEST_CASE("rows that come after a restore start from the slots that the saved run gave new rows") {
  const auto original = MakeTable(0, false);
  const std::vector<Key> first = {1}, second = {2};
  const std::vector<float> gradients(kDim, 0.5f);
  const CommitOptions options{"adagrad", {{"initial_accumulator_value", 3.0}}, 0, 1.0f};
  const auto train = [&](Table& table, const std::vector<Key>& keys) {
    REQUIRE(table
                .Deposit({nullptr, keys.data(), keys.size(), false, 0}, nullptr, gradients.data(),
                         nullptr)
                .ok());
    REQUIRE(table.Commit(options, SerialFor).ok());
  };
  train(*original, first);
  const auto copy = MakeTable(0, false);
  REQUIRE(Restore(*copy, ExportOf(*original)).ok());
  std::vector<float> out(kDim);
  // Before any commit says what the accumulator starts from.
  REQUIRE(copy->Lookup(second.data(), 1, true, out.data(), SerialFor).ok());
  const auto rows = RowsOf(ExportOf(*copy));
  for (int j = 0; j < kDim; ++j) CHECK(rows.at(2)[kDim + j] == 3.0);
}

// The rows [begin, end) of a snapshot, with all else that a restore takes.
Export PieceOf(const Table::Snapshot& snapshot, uint64_t begin, uint64_t end) {
  Export piece;
  piece.state = snapshot.state();
  piece.step_clock = snapshot.step_clock();
  piece.slot_floats = snapshot.slot_floats();
  piece.slot_start = snapshot.slot_start();
  const size_t n = end - begin;
  piece.keys.resize(n);
  piece.embeddings.resize(n * kDim);
  piece.slots.resize(n * piece.slot_floats);
  piece.update_nums.resize(n);
  piece.update_times.resize(n);
  REQUIRE(snapshot
              .Write({piece.keys.data(), piece.embeddings.data(), piece.slots.data(),
                      piece.update_nums.data(), piece.update_times.data()},
                     begin, end)
              .ok());
  return piece;
}

TEST_CASE("pieces of snapshots have every row once, and put a table together again") {
  for (bool direct : {false, true}) {
    const auto table = MakeTable(direct ? 1000 : 0, direct);
    std::vector<Key> keys;
    for (Key key = 0; key < 1000; key += 3) keys.push_back(key);
    Train(*table, "adam", keys);
    Train(*table, "adam", {0, 3, 6});
    const Export whole = ExportOf(*table);
    const auto other = MakeTable(direct ? 1000 : 0, direct);
    Train(*other, "sgd", {1, 3});
    const auto head = Value(table->Freeze());
    REQUIRE(Restore(*other, PieceOf(head, 0, 0)).ok());
    CHECK(other->size() == 0);
    for (uint64_t begin = 0; begin < head.size(); begin += 7) {
      Export piece = PieceOf(head, begin, std::min<uint64_t>(begin + 7, head.size()));
      REQUIRE(other->AddRows(piece.View(), ThreadedFor).ok());
    }
    const Export found = ExportOf(*other);
    CHECK(RowsOf(found) == RowsOf(whole));
    CHECK(found.state.rule == "adam");
    CHECK(found.state.steps == 2);
  }
}

TEST_CASE("a piece with a row that is there already, or of another rule, adds nothing") {
  const auto table = MakeTable();
  REQUIRE(Restore(*table, MadeUp("adam", 2 * kDim)).ok());
  const Export before = ExportOf(*table);
  Export piece = MadeUp("adam", 2 * kDim);
  piece.keys = {7, 0, 8};
  CHECK(table->AddRows(piece.View(), ThreadedFor).code() == Code::kInvalidArgument);
  piece.keys = {7, 8, 7};
  CHECK(table->AddRows(piece.View(), ThreadedFor).code() == Code::kInvalidArgument);
  Export foreign = MadeUp("adagrad", kDim);
  foreign.keys = {7, 8, 9};
  CHECK(table->AddRows(foreign.View(), ThreadedFor).code() == Code::kInvalidArgument);
  CHECK(RowsOf(ExportOf(*table)) == RowsOf(before));
}

TEST_CASE("pieces do not go beyond the most rows that a table takes") {
  const auto table = MakeTable(4);
  REQUIRE(Restore(*table, MadeUp("adam", 2 * kDim)).ok());
  Export piece = MadeUp("adam", 2 * kDim);
  piece.keys = {7, 8, 9};
  CHECK(table->AddRows(piece.View(), ThreadedFor).code() == Code::kResourceExhausted);
  CHECK(table->size() == 3);
}

}  // namespace
}  // namespace sok
