// Everything at once on one table. Gradients have one value throughout a row and rows start from
// zero, so the floats of a row are equal at any time: a row of different floats was torn.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "core/base/test_threads.h"
#include "core/tables/table.h"
#include "core/tables/test_contents.h"

namespace sok {
namespace {

constexpr int kDim = 8;
constexpr Key kKeys = 400;
constexpr size_t kBatch = 150;

std::unique_ptr<Table> MakeTable(uint64_t max_rows, bool direct) {
  TableSpec config;
  config.dim = kDim;
  config.initializer = "constant";
  config.initializer_a = 0.0;
  config.max_rows = max_rows;
  config.direct = direct;
  return std::move(Table::Make(config).value());
}

// The faults that the threads of a test have found. doctest's checks are for its own thread.
struct Faults {
  std::atomic<int> torn{0}, refused{0}, export_differs{0}, too_many_rows{0};

  void CheckNone() const {
    CHECK(torn.load() == 0);
    CHECK(refused.load() == 0);
    CHECK(export_differs.load() == 0);
    CHECK(too_many_rows.load() == 0);
  }
};

template <typename T>
bool Uniform(const T* begin, const T* end) {
  return std::all_of(begin, end, [begin](T x) { return ToFloat(x) == ToFloat(*begin); });
}

std::vector<Key> Batch(std::mt19937_64& rng) {
  std::vector<Key> keys(kBatch);
  for (Key& key : keys) key = rng() % kKeys;
  return keys;
}

template <typename T>
void LookUp(Table& table, bool make_rows, std::mt19937_64& rng, Faults& faults) {
  const auto keys = Batch(rng);
  std::vector<T> out(kBatch * kDim);
  faults.refused += !table.Lookup(keys.data(), kBatch, make_rows, out.data(), SerialFor).ok();
  for (size_t i = 0; i < kBatch; ++i) {
    faults.torn += !Uniform(&out[i * kDim], &out[i * kDim] + kDim);
  }
}

void Deposit(Table& table, std::mt19937_64& rng) {
  auto keys = std::make_shared<const std::vector<Key>>(Batch(rng));
  std::vector<float> values(kBatch * kDim);
  for (size_t i = 0; i < kBatch; ++i) {
    std::fill_n(&values[i * kDim], kDim, static_cast<float>(rng() % 9) - 4);
  }
  auto hold = std::make_shared<const std::vector<float>>(std::move(values));
  REQUIRE(table.Deposit({keys, keys->data(), kBatch, false}, hold, hold->data(), nullptr).ok());
}

void Commit(Table& table, const char* rule, Faults& faults) {
  faults.refused += !table.Commit({rule, {{"learning_rate", 0.25}}, 0, 1.0f}, ThreadedFor).ok();
}

void Export(Table& table, Faults& faults) {
  const auto frozen = table.Freeze();
  faults.refused += !frozen.ok();
  if (!frozen.ok()) return;
  const Table::Snapshot& snapshot = frozen.value();
  const auto write = [&](Key* keys, float* embeddings, float* slots, int64_t* update_nums) {
    faults.refused += !snapshot.Write({keys, embeddings, slots, update_nums}).ok();
  };
  const size_t n = snapshot.size();
  const size_t width = snapshot.slot_floats();
  std::vector<Key> keys(n);
  std::vector<float> embeddings(n * kDim), slots(n * width);
  std::vector<int64_t> update_nums(n);
  write(keys.data(), embeddings.data(), slots.data(), update_nums.data());
  const std::vector<float> first = embeddings;
  write(keys.data(), embeddings.data(), slots.data(), update_nums.data());
  faults.export_differs += embeddings != first;
  faults.export_differs += std::set<Key>(keys.begin(), keys.end()).size() != n;
  // Every rule here has slots as wide as the embedding.
  faults.export_differs += width % kDim != 0;
  for (size_t i = 0; i < n * kDim; i += kDim) {
    faults.torn += !Uniform(&embeddings[i], &embeddings[i] + kDim);
  }
  for (size_t i = 0; i < n * width; i += kDim) {
    faults.torn += !Uniform(&slots[i], &slots[i] + kDim);
  }
}

// Runs each function `times` times on a thread of its own, with random numbers of its own.
void RunAtOnce(int times, const std::vector<std::function<void(std::mt19937_64&)>>& work) {
  std::vector<std::thread> threads;
  for (size_t t = 0; t < work.size(); ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 rng(TestSeed() + t);
      for (int i = 0; i < times; ++i) work[t](rng);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_CASE("no row is torn while all that a table can do is done at once") {
  for (bool direct : {false, true}) {
    const auto table = MakeTable(direct ? kKeys : 0, direct);
    Faults faults;
    RunAtOnce(250, {
                       [&](auto& rng) { LookUp<float>(*table, false, rng, faults); },
                       [&](auto& rng) { LookUp<float>(*table, true, rng, faults); },
                       [&](auto& rng) { LookUp<BFloat16>(*table, true, rng, faults); },
                       [&](auto& rng) {
                         Deposit(*table, rng);
                         const char* rules[] = {"sgd", "adagrad", "adam", "momentum"};
                         Commit(*table, rules[rng() % 4], faults);
                       },
                       [&](auto& rng) {
                         Deposit(*table, rng);
                         Commit(*table, "momentum", faults);
                       },
                       [&](auto& rng) {
                         const auto keys = Batch(rng);
                         faults.refused += !table->Remove(keys.data(), 20, ThreadedFor).ok();
                       },
                       [&](auto&) { Export(*table, faults); },
                       [&](auto&) {
                         const TableStats stats = table->Stats();
                         faults.too_many_rows += stats.rows > kKeys;
                       },
                   });
    faults.CheckNone();
  }
}

TEST_CASE("no row is torn while tables are restored, assigned and read") {
  const auto table = MakeTable(0, false);
  std::vector<Key> keys(kKeys);
  std::iota(keys.begin(), keys.end(), Key{0});
  const std::vector<int64_t> update_nums(kKeys, 1);
  Faults faults;
  std::atomic<int> next{0};
  const auto uniform = [&] { return std::vector<float>(kKeys * kDim, static_cast<float>(++next)); };
  RunAtOnce(100, {
                     [&](auto& rng) { LookUp<float>(*table, true, rng, faults); },
                     [&](auto&) { Export(*table, faults); },
                     [&](auto& rng) {
                       Deposit(*table, rng);
                       Commit(*table, "adagrad", faults);
                     },
                     [&](auto&) {
                       const auto values = uniform();
                       faults.refused +=
                           !table->Assign(keys.data(), kKeys, values.data(), ThreadedFor).ok();
                     },
                     [&](auto&) {
                       const auto values = uniform();
                       OwnedContents contents;
                       contents.state = {"momentum", {}, 1};
                       contents.slot_floats = kDim;
                       contents.keys = keys;
                       contents.embeddings = contents.slots = contents.slot_start = values;
                       faults.refused += !Restore(*table, contents, ThreadedFor).ok();
                     },
                 });
  faults.CheckNone();
}

TEST_CASE("every deposit is applied once, whoever commits it") {
  const auto table = MakeTable(0, false);
  constexpr int kTimes = 150, kDepositors = 3;
  std::vector<Key> keys(kKeys);
  std::iota(keys.begin(), keys.end(), Key{0});
  const std::vector<float> ones(kKeys * kDim, 1.0f);
  Faults faults;
  const auto deposit = [&](auto&) {
    REQUIRE(
        table->Deposit({nullptr, keys.data(), kKeys, false}, nullptr, ones.data(), nullptr).ok());
  };
  const auto commit = [&](auto&) { Commit(*table, "sgd", faults); };
  RunAtOnce(kTimes, {deposit, deposit, deposit, commit, commit});
  Commit(*table, "sgd", faults);
  faults.CheckNone();
  std::vector<float> out(kKeys * kDim);
  REQUIRE(table->Lookup(keys.data(), kKeys, false, out.data(), SerialFor).ok());
  // Sums of 1, times the learning rate of a quarter: exact in float32.
  CHECK(out == std::vector<float>(kKeys * kDim, -0.25f * kTimes * kDepositors));
}

// Sleeps before it starts, so that whatever was checked before a call of it has long been checked
// by every thread when the first one acts on it.
void LateFor(int64_t total, int64_t /*unit_cost*/,
             const std::function<void(int64_t, int64_t)>& fn) {
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  if (total > 0) fn(0, total);
}

TEST_CASE("of threads that race for the last rows of a table only one gets them") {
  constexpr int kThreads = 4;
  for (int round = 0; round < 5; ++round) {
    const auto table = MakeTable(60, false);
    std::vector<Key> keys(55 + kThreads * 5);
    std::iota(keys.begin(), keys.end(), Key{0});
    std::vector<float> out(55 * kDim);
    REQUIRE(table->Lookup(keys.data(), 55, true, out.data(), SerialFor).ok());
    std::atomic<int> ready{0}, succeeded{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        std::vector<float> made(5 * kDim);
        ++ready;
        while (ready < kThreads) std::this_thread::yield();
        succeeded += table->Lookup(&keys[55 + t * 5], 5, true, made.data(), LateFor).ok();
      });
    }
    for (std::thread& thread : threads) thread.join();
    REQUIRE(succeeded.load() == 1);
    REQUIRE(table->size() == 60);
  }
}

}  // namespace
}  // namespace sok
