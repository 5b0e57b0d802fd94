// Does everything at once on one adaptive table. Gradients have one value throughout a row, and
// rows start from zero, so the floats of a row are equal at any time: a row of different floats was
// torn.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "core/adaptive/test_adaptive_table.h"
#include "core/base/thread_pool.h"

namespace sok {
namespace {

constexpr uint64_t kBuckets = 16;
constexpr size_t kBatch = 120;
constexpr Key kKeys = 300;

// This pool is shared by all threads of a test, as TensorFlow's is by its ops. Its threads end with
// it.
struct Pool {
  ThreadPool threads{3};
  ParallelFor run = [this](int64_t total, int64_t cost, const auto& fn) {
    threads.Run(total, cost, fn);
  };
};

std::unique_ptr<AdaptiveTable> MakeTable(AdaptiveConfig config) {
  TableSpec of_rows;
  of_rows.dim = kAdaptiveDim;
  of_rows.initializer = "constant";
  of_rows.initializer_a = 0;
  auto own = Table::Make(of_rows);
  of_rows.direct = true;
  of_rows.max_rows = kBuckets;
  auto statics = Table::Make(of_rows);
  return Value(AdaptiveTable::Make(Value(std::move(own)), Value(std::move(statics)), config));
}

AdaptiveBatch Batch(std::mt19937_64& rng) {
  AdaptiveBatch batch;
  for (size_t i = 0; i < kBatch; ++i) {
    batch.keys.push_back(rng() % kKeys);
    batch.counts.push_back(1);
    batch.mask.push_back(static_cast<int32_t>(rng() % 8) % 3 - 1);
  }
  return batch;
}

// Collects what the threads of a test found wrong: doctest's checks are for its own thread.
struct Faults {
  std::atomic<int> torn{0}, refused{0}, too_many{0}, differs{0};
  void CheckNone() const {
    CHECK(torn.load() == 0);
    CHECK(refused.load() == 0);
    CHECK(too_many.load() == 0);
    CHECK(differs.load() == 0);
  }
};

bool Uniform(const float* row) {
  for (int j = 1; j < kAdaptiveDim; ++j) {
    if (row[j] != row[0]) return false;
  }
  return true;
}

void LookUp(AdaptiveTable& table, const AdaptiveBatch& batch, bool training, Faults* faults,
            const ParallelFor& parallel_for) {
  std::vector<float> out(kBatch * kAdaptiveDim, 0.0f);
  faults->refused += !table.Lookup(batch.View(), training, out.data(), parallel_for).ok();
  for (size_t i = 0; i < kBatch; ++i) faults->torn += !Uniform(&out[i * kAdaptiveDim]);
}

void Export(AdaptiveTable& table, uint64_t max_rows, Faults* faults) {
  const auto frozen = table.Freeze();
  if (!frozen.ok()) {
    ++faults->refused;
    return;
  }
  for (const Table::Snapshot* part : {&frozen.value().own, &frozen.value().statics}) {
    std::vector<Key> keys(part->size());
    std::vector<float> rows(keys.size() * kAdaptiveDim);
    faults->refused += !part->Write({keys.data(), rows.data()}).ok();
    for (size_t i = 0; i < keys.size(); ++i) faults->torn += !Uniform(&rows[i * kAdaptiveDim]);
  }
  const auto& own = frozen.value().own;
  const auto& counters = frozen.value().counters;
  faults->too_many += max_rows > 0 && own.size() > max_rows;
  // A snapshot is of one moment: its rows are those that were made and have not gone.
  faults->differs += static_cast<int64_t>(own.size()) != counters[1] - counters[2];
  faults->differs += own.state().steps != frozen.value().statics.state().steps;
}

void InThreads(int threads, const std::function<void(int, std::mt19937_64&)>& work) {
  const uint64_t seed = TestSeed();
  std::vector<std::thread> all;
  for (int t = 0; t < threads; ++t) {
    all.emplace_back([&, t] {
      std::mt19937_64 rng(seed + t);
      work(t, rng);
    });
  }
  for (std::thread& thread : all) thread.join();
}

void Everything(const AdaptiveConfig& config) {
  const auto table = MakeTable(config);
  Faults faults;
  const Pool pool;
  const auto ones = std::make_shared<const std::vector<float>>(kBatch * kAdaptiveDim, 1.0f);
  InThreads(7, [&](int t, std::mt19937_64& rng) {
    const ParallelFor parallel_for = t % 2 == 0 ? ParallelFor(SerialFor) : pool.run;
    for (int turn = 0; turn < 60; ++turn) {
      const AdaptiveBatch batch = Batch(rng);
      if (t < 4) {
        LookUp(*table, batch, t != 3, &faults, parallel_for);
        if (t != 3) {
          std::vector<float> anchor_gradient(kAnchorSize);
          const Status status = table->Deposit(batch.View(), ones, ones->data(), nullptr,
                                               {anchor_gradient.data()}, parallel_for);
          faults.refused += !status.ok();
        }
      }
      if (t == 4 || t == 0) {
        CommitOptions options = Options("adagrad", 0.1);
        options.optimizer = t;
        faults.refused += !table->Commit(options, parallel_for).ok();
      }
      if (t == 5) {
        Export(*table, config.max_rows, &faults);
        table->Stats();
      }
      if (t == 6) faults.refused += !table->Demote(batch.keys.data(), 9, parallel_for).ok();
    }
  });
  Export(*table, config.max_rows, &faults);
  faults.CheckNone();
}

}  // namespace

TEST_CASE("threads that look up, deposit, commit, export and demote at once tear no row") {
  AdaptiveConfig config = ExactConfig(kBuckets, 2);
  Everything(config);
  config.decay_every = 3;
  config.demote_blend = 0.5;
  Everything(config);
  config.max_rows = 40;
  Everything(config);
}

TEST_CASE("no gradient is lost and none counts twice, whoever promotes and commits meanwhile") {
  AdaptiveConfig config = ExactConfig(kBuckets, 5);
  const auto table = MakeTable(config);
  constexpr int kThreads = 4, kTurns = 50;
  const Pool pool;
  const auto ones = std::make_shared<const std::vector<float>>(kBatch * kAdaptiveDim, 1.0f);
  Faults faults;
  InThreads(kThreads, [&](int, std::mt19937_64& rng) {
    for (int turn = 0; turn < kTurns; ++turn) {
      const AdaptiveBatch batch = Batch(rng);
      LookUp(*table, batch, true, &faults, pool.run);
      REQUIRE(table->Deposit(batch.View(), ones, ones->data(), nullptr).ok());
      if (turn % 3 == 0) faults.refused += !table->Commit(Options("sgd", 1.0), pool.run).ok();
    }
  });
  CommitOn(*table, Options("sgd", 1.0));
  faults.CheckNone();
  CHECK(table->Stats().own.pending_gradients == 0);
  // A row starts as a copy of its static row: what it has beyond that is not known here, so rows
  // are made once more, in a table whose keys all have their rows before the first commit.
  const auto settled = MakeTable(ExactConfig(kBuckets, 1));
  AdaptiveBatch all;
  for (Key key = 0; key < kKeys; ++key) all.keys.push_back(key);
  Look(*settled, all, true);
  std::vector<std::atomic<int>> own(kKeys), statics(kBuckets);
  InThreads(kThreads, [&](int, std::mt19937_64& rng) {
    for (int turn = 0; turn < kTurns; ++turn) {
      const AdaptiveBatch batch = Batch(rng);
      for (size_t i = 0; i < kBatch; ++i) {
        const Key key = batch.keys[i];
        ++(batch.mask[i] != 0 ? own[key] : statics[AdaptiveBucket(key, kBuckets)]);
      }
      REQUIRE(settled->Deposit(batch.View(), ones, ones->data(), nullptr).ok());
      faults.refused += !settled->Commit(Options("sgd", 1.0), pool.run).ok();
    }
  });
  faults.CheckNone();
  for (Key key = 0; key < kKeys; ++key) {
    REQUIRE(See(*settled, key)[0] == -static_cast<float>(own[key].load()));
    const uint64_t bucket = AdaptiveBucket(key, kBuckets);
    REQUIRE(SeeStatic(*settled, key)[0] == -static_cast<float>(statics[bucket].load()));
  }
}

TEST_CASE("a key that many threads see is counted each time, and promoted once") {
  constexpr int kThreads = 6, kTurns = 40;
  for (uint32_t beyond : {0, 1}) {
    AdaptiveConfig config = ExactConfig(kBuckets, kThreads * kTurns + beyond);
    const auto table = MakeTable(config);
    std::atomic<int> refused{0};
    InThreads(kThreads, [&](int, std::mt19937_64&) {
      for (int turn = 0; turn < kTurns; ++turn) {
        std::vector<float> out;
        refused += !TryLook(*table, {{7, 8}, {1, 0}, {}}, true, &out).ok();
      }
    });
    CHECK(refused == 0);
    CHECK(OwnKeys(*table) == (beyond == 0 ? std::vector<Key>{7} : std::vector<Key>{}));
    CHECK(table->Stats().lookups == kThreads * kTurns);
  }
}

TEST_CASE("two lookups at once that want the same last rows take nobody else's") {
  AdaptiveConfig config = ExactConfig(kBuckets, 1);
  config.max_rows = 50;
  AdaptiveBatch others, wanted;
  for (Key key = 0; key < 40; ++key) others.keys.push_back(key);
  for (Key key = 100; key < 110; ++key) wanted.keys.push_back(key);
  const auto table = MakeTable(config);
  Look(*table, others, true);
  // The other lookup runs when this one has found out which keys have no row, and has not made rows
  // yet.
  bool first = true;
  const ParallelFor interrupted = [&](int64_t total, int64_t cost, const auto& fn) {
    SerialFor(total, cost, fn);
    if (std::exchange(first, false)) Look(*table, wanted, true);
  };
  Look(*table, wanted, true, interrupted);
  CHECK(table->own()->size() == 50);
  CHECK(table->Stats().promoted == 50);
  CHECK(table->Stats().demoted == 0);
}

}  // namespace sok
