// Tables whose rows lie on the stand-in for a GPU do what tables in the host's memory do.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/base/bfloat16.h"
#include "core/base/test_result.h"
#include "core/base/test_threads.h"
#include "core/gpu/device_rows.h"
#include "core/gpu/test_standin.h"
#include "core/tables/table.h"
#include "core/tables/test_contents.h"

namespace sok {
namespace {

constexpr int kDim = 4;

TableSpec ConfigOn(int gpu, uint64_t max_rows = 0) {
  TableSpec config;
  config.dim = kDim;
  config.seed = 5;
  config.gpu = gpu;
  config.max_rows = max_rows;
  config.step_clock = true;
  return config;
}

struct Pair {
  std::unique_ptr<Table> host, gpu;
};

Pair MakePair(uint64_t max_rows = 0, const std::string& eviction = "") {
  gpu::StandIn();
  const auto make_on = [&](int gpu) {
    TableSpec spec = ConfigOn(gpu, max_rows);
    if (!eviction.empty()) {
      EvictionConfig& config = spec.eviction.emplace();
      config.kind = eviction;
      if (eviction == "max_age") config.max_age = 3;
      if (eviction == "min_norm") config.min_l2 = 0.05f;
      config.every = 2;
    }
    return Value(Table::Make(spec));
  };
  return {make_on(-1), make_on(0)};
}

// The rows by key: embedding, slots, counters.
std::map<Key, std::vector<float>> RowsOf(Table& table) {
  const OwnedContents owned = Owned(Value(table.Freeze()), kDim);
  std::map<Key, std::vector<float>> rows;
  for (size_t i = 0; i < owned.keys.size(); ++i) {
    std::vector<float>& row = rows[owned.keys[i]];
    row.assign(owned.embeddings.begin() + i * kDim, owned.embeddings.begin() + (i + 1) * kDim);
    row.insert(row.end(), owned.slots.begin() + i * owned.slot_floats,
               owned.slots.begin() + (i + 1) * owned.slot_floats);
    row.push_back(static_cast<float>(owned.update_nums[i]));
    row.push_back(static_cast<float>(owned.update_times[i]));
  }
  return rows;
}

void CheckSame(const Pair& tables) {
  const auto host = RowsOf(*tables.host), gpu = RowsOf(*tables.gpu);
  REQUIRE(host.size() == gpu.size());
  REQUIRE(tables.gpu->size() == gpu.size());
  for (const auto& [key, row] : host) {
    const auto found = gpu.find(key);
    REQUIRE(found != gpu.end());
    REQUIRE(found->second.size() == row.size());
    for (size_t j = 0; j < row.size(); ++j) {
      REQUIRE(std::abs(found->second[j] - row[j]) <= 1e-6f * std::max(1.0f, std::abs(row[j])));
    }
  }
}

// A step of both tables on some keys with gradients.
void Train(const Pair& tables, const std::vector<Key>& keys, const std::string& rule,
           std::mt19937* random) {
  std::vector<float> gradients(keys.size() * kDim);
  for (float& x : gradients) x = std::normal_distribution<float>()(*random);
  std::vector<std::vector<float>> found;
  for (Table* table : {tables.host.get(), tables.gpu.get()}) {
    found.emplace_back(keys.size() * kDim);
    LookupKeys looked_up;
    looked_up.keys = keys.data();
    looked_up.n = keys.size();
    looked_up.removals = table->removals();
    const Status status =
        table->Lookup(keys.data(), keys.size(), true, found.back().data(), ThreadedFor);
    REQUIRE_MESSAGE(status.ok(), status.message());
    looked_up.rows_made = true;
    REQUIRE(table->Deposit(looked_up, nullptr, gradients.data(), nullptr).ok());
    CommitOptions options;
    options.rule = rule;
    const CommitOutcome outcome = Value(table->Commit(options, ThreadedFor));
    CHECK(outcome.stepped);
  }
  for (size_t i = 0; i < found[0].size(); ++i) {
    REQUIRE(std::abs(found[0][i] - found[1][i]) <= 1e-6f);
  }
}

// Looks keys up in the memory of the stand-in, which is the host's.
Status LookUpOnGpu(Table& table, const std::vector<Key>& keys, bool make_rows, void* out,
                   gpu::Element element = gpu::Element::kFloat32) {
  const auto at = [](const void* memory) { return reinterpret_cast<gpu::DeviceAddress>(memory); };
  return table.device_rows(nullptr)->LookUp(
      make_rows, [&](gpu::GpuTable& rows, gpu::Absent absent) {
        return rows.Lookup(at(keys.data()), keys.size(), absent, table.now(), at(out), element,
                           nullptr);
      });
}

std::vector<Key> RandomKeys(size_t n, Key below, std::mt19937* random) {
  std::vector<Key> keys(n);
  for (Key& key : keys) key = std::uniform_int_distribution<Key>(0, below - 1)(*random) - below / 2;
  return keys;
}

}  // namespace

TEST_CASE("a table on a GPU trains, loses and gets rows as one in the host's memory") {
  for (const std::string rule : {"sgd", "adagrad", "adam", "lion"}) {
    CAPTURE(rule);
    std::mt19937 random(7);
    const Pair tables = MakePair();
    for (int step = 0; step < 8; ++step) {
      Train(tables, RandomKeys(300, 200, &random), rule, &random);
      const auto keys = RandomKeys(20, 300, &random);
      const std::vector<float> ones(keys.size() * kDim, 1.0f);
      uint64_t removed[2];
      int at = 0;
      for (Table* table : {tables.host.get(), tables.gpu.get()}) {
        REQUIRE(table->Assign(keys.data(), 10, ones.data(), SerialFor).ok());
        removed[at++] = Value(table->Remove(keys.data() + 5, 15, SerialFor));
      }
      CHECK(removed[0] == removed[1]);
      CheckSame(tables);
    }
    const TableStats host = tables.host->Stats(), gpu = tables.gpu->Stats();
    CHECK(gpu.made == host.made);
    CHECK(gpu.steps == host.steps);
    CHECK(gpu.row_bytes > 0);
    CHECK(gpu.index_bytes > 0);
  }
}

TEST_CASE(
    "keys of a GPU are copied to the host once for all parts, though rows are made meanwhile") {
  constexpr size_t kKeys = 200000;
  const Pair tables = MakePair();
  Table& table = *tables.gpu;
  std::vector<Key> keys(kKeys);
  for (size_t i = 0; i < kKeys; ++i) keys[i] = static_cast<Key>(i * i);
  std::vector<float> vectors(kKeys * kDim);
  const auto make = [&](const std::vector<Key>& made) {
    const Status status = LookUpOnGpu(table, made, true, vectors.data());
    REQUIRE_MESSAGE(status.ok(), status.message());
  };
  make(keys);
  const uint64_t before = gpu::BytesToHost();
  std::map<Key, int> listed;
  for (uint32_t part = 0; part < table.parts(); ++part) {
    for (Key key : Value(table.ListKeys(part))) ++listed[key];
    make({Key{3} + kKeys * kKeys + part});
  }
  CHECK(gpu::BytesToHost() - before < kKeys * sizeof(Key) * 5 / 4);
  for (Key key : keys) REQUIRE(listed[key] == 1);
  for (const auto& [key, times] : listed) REQUIRE(times == 1);
}

TEST_CASE("keys and gradients that stay on a GPU train the rows that those of the host do") {
  for (const bool halves : {false, true}) {
    CAPTURE(halves);
    std::mt19937 random(23);
    const Pair tables = MakePair();
    REQUIRE(tables.gpu->device_rows(nullptr) != nullptr);
    CHECK(tables.host->device_rows(nullptr) == nullptr);
    for (int step = 0; step < 6; ++step) {
      CAPTURE(step);
      const std::vector<std::vector<Key>> calls{RandomKeys(200, 100, &random),
                                                RandomKeys(50, 300, &random)};
      std::vector<std::vector<float>> gradients;
      for (const auto& keys : calls) {
        gradients.emplace_back(keys.size() * kDim);
        for (float& x : gradients.back()) {
          x = ToFloat(FromFloat<BFloat16>(std::normal_distribution<float>()(random)));
        }
      }
      // The gradients of the second call are in another order, and some are of no key.
      std::vector<uint32_t> positions(calls[1].size());
      for (uint32_t& position : positions) position = random() % calls[1].size();
      std::vector<std::vector<float>> found[2];
      std::vector<std::vector<BFloat16>> rounded;
      for (const auto& each : gradients) {
        rounded.emplace_back();
        for (float x : each) rounded.back().push_back(FromFloat<BFloat16>(x));
      }
      for (const bool on_gpu : {false, true}) {
        Table& table = on_gpu ? *tables.gpu : *tables.host;
        for (size_t call = 0; call < calls.size(); ++call) {
          const std::vector<Key>& keys = calls[call];
          std::vector<float>& out = found[on_gpu].emplace_back(keys.size() * kDim);
          LookupKeys looked_up;
          looked_up.keys = keys.data();
          looked_up.n = keys.size();
          looked_up.removals = table.removals();
          looked_up.rows_made = true;
          if (on_gpu) {
            looked_up.device = DeviceBatch{&table.device_rows(nullptr)->device(), nullptr};
            looked_up.device->gradients = keys.size();
          }
          if (call == 1) {
            looked_up.positions = positions.data();
            looked_up.leave_absent = step % 2 == 0;
          }
          const Status status =
              on_gpu ? LookUpOnGpu(table, keys, true, out.data())
                     : table.Lookup(keys.data(), keys.size(), true, out.data(), SerialFor);
          REQUIRE_MESSAGE(status.ok(), status.message());
          if (halves) {
            REQUIRE(table.Deposit(looked_up, nullptr, nullptr, rounded[call].data()).ok());
          } else {
            REQUIRE(table.Deposit(looked_up, nullptr, gradients[call].data(), nullptr).ok());
          }
        }
        // In some steps rows go between the lookup and the step, which makes them anew.
        if (step % 3 == 1) CHECK(Value(table.Remove(calls[0].data(), 3, SerialFor)) > 0);
        CommitOptions options;
        options.rule = "adam";
        options.lists_keys = step % 3 == 2;
        const CommitOutcome outcome = Value(table.Commit(options, SerialFor));
        if (options.lists_keys) CHECK(outcome.keys[0].size() > 100);
      }
      for (size_t call = 0; call < calls.size(); ++call) {
        for (size_t i = 0; i < found[0][call].size(); ++i) {
          REQUIRE(std::abs(found[0][call][i] - found[1][call][i]) <= 1e-6f);
        }
      }
      CheckSame(tables);
    }
    CHECK(tables.gpu->Stats().made == tables.host->Stats().made);
  }
}

TEST_CASE("lookups on a GPU without new rows show start vectors") {
  const Pair tables = MakePair();
  const std::vector<Key> keys{1, 2, ~Key{0}, 2};
  std::vector<float> shown(keys.size() * kDim), made(keys.size() * kDim), host(made);
  REQUIRE(LookUpOnGpu(*tables.gpu, keys, false, shown.data()).ok());
  CHECK(tables.gpu->size() == 0);
  REQUIRE(LookUpOnGpu(*tables.gpu, keys, true, made.data()).ok());
  CHECK(tables.gpu->size() == 3);
  CHECK(shown == made);
  REQUIRE(tables.host->Lookup(keys.data(), 4, true, host.data(), SerialFor).ok());
  CHECK(host == made);
  std::vector<BFloat16> halves(made.size());
  REQUIRE(LookUpOnGpu(*tables.gpu, keys, false, halves.data(), gpu::Element::kBFloat16).ok());
  for (size_t i = 0; i < made.size(); ++i) {
    CHECK(halves[i].bits == FromFloat<BFloat16>(made[i]).bits);
  }
}

TEST_CASE("a full table on a GPU evicts the rows that the host's would") {
  for (const std::string eviction : {"lru", "lfu", "max_age", "min_norm"}) {
    CAPTURE(eviction);
    std::mt19937 random(11);
    const Pair tables = MakePair(400, eviction);
    // Keys come in the same order, so that ranks have no ties but among rows of one step.
    for (int step = 0; step < 12; ++step) {
      std::vector<Key> keys;
      for (Key key = 0; key < 100; ++key) keys.push_back((100 * (step % 5)) + key);
      Train(tables, keys, "adagrad", &random);
      CHECK(tables.gpu->size() == tables.host->size());
    }
    CHECK(tables.gpu->Stats().evicted == tables.host->Stats().evicted);
  }
}

TEST_CASE("contents go from a GPU to the host and back, bit for bit") {
  std::mt19937 random(3);
  const Pair tables = MakePair();
  for (int step = 0; step < 4; ++step) {
    Train(tables, RandomKeys(500, 400, &random), "adam", &random);
  }
  OwnedContents saved = Owned(Value(tables.gpu->Freeze()), kDim);
  CHECK(std::is_sorted(saved.keys.begin(), saved.keys.end()));
  REQUIRE(tables.host->Restore(saved.View(), SerialFor).ok());
  CHECK(RowsOf(*tables.host) == RowsOf(*tables.gpu));
  const Pair others = MakePair();
  OwnedContents moved = Owned(Value(tables.host->Freeze()), kDim);
  REQUIRE(others.gpu->Restore(moved.View(), SerialFor).ok());
  CHECK(RowsOf(*others.gpu) == RowsOf(*tables.gpu));
  CHECK(others.gpu->steps() == 4);
  std::mt19937 again(9);
  Train({std::move(const_cast<Pair&>(tables).host), std::move(const_cast<Pair&>(others).gpu)},
        RandomKeys(500, 400, &again), "adam", &again);
}

TEST_CASE("a capture of a table on a GPU has its rows as they were, while it changes") {
  std::mt19937 random(3);
  const Pair tables = MakePair();
  for (int step = 0; step < 2; ++step) {
    Train(tables, RandomKeys(500, 400, &random), "adam", &random);
  }
  const auto before = RowsOf(*tables.gpu);
  TableCapture capture = Value(tables.gpu->BeginCapture({}));
  CHECK(tables.gpu->BeginCapture({}).status().code() == Code::kFailedPrecondition);
  Train(tables, RandomKeys(500, 800, &random), "adam", &random);
  std::map<Key, std::vector<float>> captured;
  constexpr size_t kRoom = 64;
  std::vector<Key> keys(kRoom);
  std::vector<uint32_t> nums(kRoom), times(kRoom);
  std::vector<float> embeddings(kRoom * kDim), slots(kRoom * 2 * kDim);
  for (size_t n = kRoom; n == kRoom;) {
    n = Value(capture.rows->Next(
        {keys.data(), nums.data(), times.data(), embeddings.data(), slots.data()}, kRoom));
    for (size_t i = 0; i < n; ++i) {
      std::vector<float>& row = captured[keys[i]];
      row.assign(embeddings.begin() + i * kDim, embeddings.begin() + (i + 1) * kDim);
      row.insert(row.end(), slots.begin() + i * 2 * kDim, slots.begin() + (i + 1) * 2 * kDim);
      row.push_back(static_cast<float>(nums[i]));
      row.push_back(static_cast<float>(times[i]));
    }
  }
  CHECK(captured == before);
  capture.rows->Release();
  CHECK(tables.gpu->BeginCapture({1, 5}).status().code() == Code::kFailedPrecondition);
  CHECK(tables.gpu->BeginCapture({}).ok());
}

TEST_CASE("a direct table on a GPU keeps to its range of keys, which the host checks") {
  gpu::StandIn();
  const auto make = [](int gpu) {
    TableSpec config = ConfigOn(gpu, 10);
    config.direct = true;
    return Value(Table::Make(config));
  };
  const Pair tables{make(-1), make(0)};
  CHECK(tables.gpu->device_rows(nullptr) == nullptr);
  const std::vector<Key> keys{9, 3}, beyond{10};
  std::vector<float> host(2 * kDim), gpu(2 * kDim);
  REQUIRE(tables.host->Lookup(keys.data(), 2, true, host.data(), SerialFor).ok());
  REQUIRE(tables.gpu->Lookup(keys.data(), 2, true, gpu.data(), SerialFor).ok());
  CHECK(host == gpu);
  const Status refused = tables.gpu->Lookup(beyond.data(), 1, true, gpu.data(), SerialFor);
  CHECK(refused.code() == Code::kOutOfRange);
  CHECK(tables.gpu->size() == 2);
}

TEST_CASE("what a GPU cannot hold is refused, and says what can be done") {
  gpu::StandIn();
  TableSpec config = ConfigOn(0);
  config.form.row = RowType::kInt8;
  CHECK(Table::Make(config).status().code() == Code::kInvalidArgument);
  const Status other = Table::Make(ConfigOn(3)).status();
  CHECK(other.message().find("CUDA_VISIBLE_DEVICES") != std::string::npos);
  const gpu::Environment none("SOK_STANDIN_GPUS", "0");
  const Status missing = Table::Make(ConfigOn(0)).status();
  CHECK(missing.code() == Code::kUnavailable);
  CHECK(missing.message().find("Expected a GPU") != std::string::npos);
}

TEST_CASE("a table on a GPU keeps to max_rows and max_bytes") {
  gpu::StandIn();
  const auto table = Value(Table::Make(ConfigOn(0, 10)));
  std::vector<Key> keys(11);
  std::vector<float> out(keys.size() * kDim);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = i;
  const Status full = table->Lookup(keys.data(), 11, true, out.data(), SerialFor);
  CHECK(full.code() == Code::kResourceExhausted);
  CHECK(table->size() == 0);
  CHECK(table->Lookup(keys.data(), 10, true, out.data(), SerialFor).ok());
  TableSpec small = ConfigOn(0);
  small.max_bytes = uint64_t{1} << 20;
  const auto other = Value(Table::Make(small));
  std::vector<Key> many(100000);
  for (size_t i = 0; i < many.size(); ++i) many[i] = i;
  out.resize(many.size() * kDim);
  const Status more = other->Lookup(many.data(), many.size(), true, out.data(), SerialFor);
  CHECK(more.code() == Code::kResourceExhausted);
  CHECK(more.message().find("max_bytes") != std::string::npos);
}

}  // namespace sok
