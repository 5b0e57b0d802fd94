// Table: captures, while rows change, and chains of them.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/base/test_result.h"
#include "core/base/test_threads.h"
#include "core/tables/table.h"
#include "core/tables/test_contents.h"

namespace sok {
namespace {

constexpr int kDim = 3;

std::unique_ptr<Table> MakeTable(bool direct) {
  TableSpec config;
  config.dim = kDim;
  config.direct = direct;
  config.max_rows = direct ? 4096 : 0;
  return std::move(Table::Make(config).value());
}

// A row in full: counts, times, embedding, slots.
using Row = std::vector<float>;
using Rows = std::map<Key, Row>;

Rows RowsOf(Table& table) {
  const OwnedContents all = Owned(Value(table.Freeze()), kDim);
  Rows rows;
  for (size_t i = 0; i < all.keys.size(); ++i) {
    Row& row = rows[all.keys[i]];
    row = {static_cast<float>(all.update_nums[i]), static_cast<float>(all.update_times[i])};
    row.insert(row.end(), &all.embeddings[i * kDim], &all.embeddings[i * kDim] + kDim);
    const auto slots = all.slots.begin() + static_cast<int64_t>(i) * all.slot_floats;
    row.insert(row.end(), slots, slots + all.slot_floats);
  }
  return rows;
}

// Memory for what a capture writes at a time.
struct Block {
  Block(int slot_floats, size_t room)
      : slot_floats(slot_floats),
        keys(room),
        nums(room),
        times(room),
        embeddings(room * kDim),
        slots(room * slot_floats) {}

  CapturedColumns columns() {
    return {keys.data(), nums.data(), times.data(), embeddings.data(), slots.data()};
  }
  // Adds n rows to those of before; none may be there already.
  void AddTo(Rows* rows, size_t n) const {
    for (size_t i = 0; i < n; ++i) {
      Row row = {static_cast<float>(nums[i]), static_cast<float>(times[i])};
      row.insert(row.end(), &embeddings[i * kDim], &embeddings[i * kDim] + kDim);
      row.insert(row.end(), slots.begin() + static_cast<int64_t>(i) * slot_floats,
                 slots.begin() + static_cast<int64_t>(i + 1) * slot_floats);
      CHECK(rows->emplace(keys[i], row).second);
    }
  }

  int slot_floats;
  std::vector<Key> keys;
  std::vector<uint32_t> nums, times;
  std::vector<float> embeddings, slots;
};

// Takes one more step of a capture. Returns whether there may be more.
bool CopySome(TableCapture& capture, size_t room, bool kept, Rows* rows) {
  Block block(capture.slot_floats(), room);
  const size_t n = Value(kept ? capture.rows->NextKept(block.columns(), room)
                              : capture.rows->Next(block.columns(), room));
  block.AddTo(rows, n);
  return kept || n == room;
}

TableCapture Begin(Table& table, uint64_t mark = 0, uint64_t since = 0) {
  return Value(table.BeginCapture({mark, since}));
}

void Train(Table& table, const std::vector<Key>& keys, const std::string& rule, float gradient) {
  const std::vector<float> gradients(keys.size() * kDim, gradient);
  REQUIRE(
      table.Deposit({nullptr, keys.data(), keys.size(), false}, nullptr, gradients.data(), nullptr)
          .ok());
  REQUIRE(table.Commit({rule, {}, 0, 1.0f}, ThreadedFor).ok());
}

// Changes a table at random.
class Changer {
 public:
  explicit Changer(uint32_t seed) : random_(seed) {}

  uint32_t Below(uint32_t n) { return std::uniform_int_distribution<uint32_t>(0, n - 1)(random_); }

  void Change(Table& table) {
    std::vector<Key> keys(1 + Below(80));
    for (Key& key : keys) key = Below(1500);
    const std::vector<float> embeddings(keys.size() * kDim, static_cast<float>(Below(1000)));
    std::vector<float> out(keys.size() * kDim);
    switch (Below(12)) {
      case 0:
      case 1:
        REQUIRE(table.Lookup(keys.data(), keys.size(), true, out.data(), ThreadedFor).ok());
        break;
      case 2:
      case 3:
        REQUIRE(table.Remove(keys.data(), keys.size(), ThreadedFor).ok());
        break;
      case 4:
        REQUIRE(table.Assign(keys.data(), keys.size(), embeddings.data(), ThreadedFor).ok());
        break;
      case 5:
        if (Below(10) == 0) rule_ = rule_ == "adagrad" ? "adam" : "adagrad";
        [[fallthrough]];
      default:
        Train(table, keys, rule_, embeddings[0]);
    }
  }

 private:
  std::mt19937 random_;
  std::string rule_ = "adagrad";
};

TEST_CASE("a capture has the rows of its moment, whatever happens to them while it is copied") {
  for (bool direct : {false, true}) {
    for (uint32_t seed = 0; seed < (LongTests() ? 12u : 4u); ++seed) {
      INFO("direct ", direct, ", seed ", seed);
      auto table = MakeTable(direct);
      Changer changer(seed);
      for (int i = 0; i < 60; ++i) changer.Change(*table);
      for (int round = 0; round < 4; ++round) {
        const Rows expected = RowsOf(*table);
        TableCapture capture = Begin(*table);
        CHECK(capture.rows->rows() == expected.size());
        CHECK(capture.rows->size() == expected.size());
        Rows found;
        do {
          for (uint32_t i = changer.Below(3); i > 0; --i) changer.Change(*table);
        } while (CopySome(capture, 1 + changer.Below(200), changer.Below(4) == 0, &found));
        CHECK(found == expected);
      }
    }
  }
}

TEST_CASE("chains of captures of changes of two readers make every state again") {
  for (bool direct : {false, true}) {
    for (uint32_t seed = 0; seed < (LongTests() ? 12u : 4u); ++seed) {
      INFO("direct ", direct, ", seed ", seed);
      auto table = MakeTable(direct);
      Changer changer(seed);
      for (int i = 0; i < 60; ++i) changer.Change(*table);
      Rows made_by[2];           // of the last capture of each reader that was kept
      uint64_t last_of[2] = {};  // its number
      for (uint64_t round = 1; round <= 24; ++round) {
        const int reader = static_cast<int>(changer.Below(2));
        Rows& made = made_by[reader];
        uint64_t& last = last_of[reader];
        auto begun = table->BeginCapture({round, last, reader});
        if (!begun.ok()) {
          // Another rule gave all rows other slots.
          CHECK(begun.status().code() == Code::kFailedPrecondition);
          last = 0;
          begun = table->BeginCapture({round, last, reader});
        }
        REQUIRE(begun.ok());
        TableCapture capture = std::move(begun.value());
        const Rows expected = RowsOf(*table);
        Rows state, found;
        if (last != 0) state = made;
        for (Key key : capture.rows->removed()) state.erase(key);
        while (CopySome(capture, 64, false, &found)) changer.Change(*table);
        for (const auto& [key, row] : found) state[key] = row;
        CHECK(state == expected);
        if (last != 0 && expected.size() > 100) CHECK(found.size() < expected.size());
        if (changer.Below(3) > 0) {
          capture.rows->Keep();
          last = round;
          made = expected;
        }
        capture.rows.reset();
        for (int i = 0; i < 3; ++i) changer.Change(*table);
      }
    }
  }
}

TEST_CASE("there is one capture at a time, and it starts from the state that was kept last") {
  auto table = MakeTable(false);
  Train(*table, {1, 2, 3}, "sgd", 1.0f);
  CHECK(table->BeginCapture({2, 1}).status().code() == Code::kFailedPrecondition);
  {
    TableCapture capture = Begin(*table, 1);
    CHECK(table->BeginCapture({2, 0}).status().code() == Code::kFailedPrecondition);
    capture.rows->Keep();
  }
  Train(*table, {2}, "sgd", 1.0f);
  CHECK(Begin(*table, 2, 1).rows->rows() == 1);  // not kept
  CHECK(Begin(*table, 3, 1).rows->rows() == 1);
  CHECK(Begin(*table).rows->rows() == 3);  // of the capture that does not count
  TableCapture kept = Begin(*table, 4, 1);
  CHECK(kept.rows->rows() == 1);
  kept.rows->Keep();
  kept.rows.reset();
  CHECK(table->BeginCapture({5, 1}).status().code() == Code::kFailedPrecondition);
  CHECK(Begin(*table, 5, 4).rows->rows() == 0);

  OwnedContents contents = Owned(Value(table->Freeze()), kDim);
  REQUIRE(table->Restore(contents.View(), ThreadedFor).ok());
  CHECK(table->BeginCapture({6, 4}).status().code() == Code::kFailedPrecondition);
}

TEST_CASE("a capture that was released lets another one begin, and gives its changes back") {
  auto table = MakeTable(false);
  Train(*table, {1, 2, 3}, "sgd", 1.0f);
  TableCapture first = Begin(*table, 1);
  first.rows->Keep();
  first.rows.reset();
  Train(*table, {2}, "sgd", 1.0f);
  TableCapture second = Begin(*table, 2, 1);
  Rows found;
  CHECK_FALSE(CopySome(second, 10, false, &found));
  CHECK(found.size() == 1);
  second.rows->Release();
  Train(*table, {3}, "sgd", 1.0f);
  TableCapture third = Begin(*table);
  CHECK(third.rows->rows() == 3);
  second.rows.reset();  // it has failed
  CHECK(table->BeginCapture({3, 1}).status().code() == Code::kFailedPrecondition);
  third.rows.reset();
  CHECK(Begin(*table, 3, 1).rows->rows() == 2);
}

TEST_CASE("keys that come and go for long are no longer noted one by one") {
  auto table = MakeTable(false);
  Train(*table, {1}, "sgd", 1.0f);
  {
    TableCapture capture = Begin(*table, 1);
    capture.rows->Keep();
  }
  std::vector<Key> keys(200000);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = i + 10;
  Train(*table, keys, "sgd", 1.0f);
  REQUIRE(table->Remove(keys.data(), keys.size(), ThreadedFor).ok());
  CHECK(table->BeginCapture({2, 1}).status().code() == Code::kFailedPrecondition);
  CHECK(Begin(*table, 2).rows->rows() == 1);
}

TEST_CASE("who changes rows waits while copies take more than the budget, and goes on") {
  CaptureBudget& budget = CaptureBudget::OfProcess();
  const uint64_t limit = budget.limit();
  budget.set_limit(1 << 20);
  auto table = MakeTable(false);
  std::vector<Key> keys(100000);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = i;
  Train(*table, keys, "adam", 1.0f);
  const Rows expected = RowsOf(*table);
  for (const bool ended : {false, true}) {
    TableCapture capture = Begin(*table);
    std::atomic<bool> done{false};
    std::thread trainer([&] {
      for (int i = 0; i < 20; ++i) {
        const auto begin = keys.begin() + i * 5000;
        Train(*table, {begin, begin + 5000}, "adam", 0.0f);
      }
      done = true;
    });
    while (budget.used() < budget.limit()) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHECK_FALSE(done);
    Rows found;
    while (!ended && CopySome(capture, 500, budget.used() > budget.limit() / 2, &found)) {
    }
    capture.rows.reset();
    trainer.join();
    if (!ended) CHECK(found.size() == expected.size());
    CHECK(budget.used() == 0);
  }
  CHECK(budget.waited_seconds() > 0);
  // Copies of a shard come in pieces of 256 KiB, and a step may keep a copy of all its rows.
  CHECK(budget.peak() < (1 << 20) + 5000 * 64 + 64 * (256 << 10));
  budget.set_limit(limit);
}

TEST_CASE("captures, lookups, steps and removals run at once") {
  for (bool direct : {false, true}) {
    auto table = MakeTable(direct);
    std::vector<Key> keys(3000);
    for (size_t i = 0; i < keys.size(); ++i) keys[i] = i;
    Train(*table, keys, "adagrad", 1.0f);
    std::atomic<bool> ended{false};
    std::thread reader([&] {
      std::vector<float> out(keys.size() * kDim);
      while (!ended) {
        CHECK(table->Lookup(keys.data(), keys.size(), false, out.data(), SerialFor).ok());
      }
    });
    std::thread changer([&] {
      Changer random(7);
      while (!ended) random.Change(*table);
    });
    uint64_t last = 0;
    for (uint64_t mark = 1; mark <= 20; ++mark) {
      auto begun = table->BeginCapture({mark, last});
      if (!begun.ok()) begun = table->BeginCapture({mark, 0});
      REQUIRE(begun.ok());
      TableCapture capture = std::move(begun.value());
      Rows found;
      while (CopySome(capture, 100, mark % 3 == 0 && capture.rows->kept_bytes() > 0, &found)) {
      }
      CHECK(found.size() == capture.rows->rows());
      capture.rows->Keep();
      last = mark;
    }
    ended = true;
    reader.join();
    changer.join();
  }
}

}  // namespace
}  // namespace sok
