// Tests commits of few distinct keys, which go by no partition, against those of the same gradients
// that do, bit by bit.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "core/base/test_result.h"
#include "core/base/test_threads.h"
#include "core/rows/index_config.h"
#include "core/rows/row_capture.h"
#include "core/rows/row_store.h"

namespace sok {
namespace {

constexpr Key kKeys = 6000;  // of which the even ones have a row

struct Rule {
  std::string name;
  int dim;
  int64_t number;
  float clip_value;
};

// The rows of a store: their floats, update number and time, by key.
using Rows = std::map<Key, std::vector<float>>;

class Store {
 public:
  Store(const Rule& rule, bool direct)
      : rule_(rule), optimizer_(Value(MakeRowOptimizer(rule.name, {}))) {
    const auto layout = std::make_shared<const RowLayout>(rule.dim, optimizer_->slots(rule.dim));
    floats_ = rule.dim + layout->slot_floats();
    IndexConfig index;
    index.capacity = kKeys;
    store_ = direct ? MakeDirectStore(layout, index) : MakeHashStore(layout);
    std::vector<Key> keys;
    for (Key key = 0; key < kKeys; key += 2) keys.push_back(key);
    const auto start = [&](size_t i, RowRef row, bool) {
      for (int j = 0; j < rule.dim; ++j) row.embedding[j] = static_cast<float>(keys[i] + j) / 512;
    };
    REQUIRE(store_->Upsert(keys.data(), keys.size(), 0, 1, start, SerialFor).ok());
  }

  uint64_t Commit(GradientBatch batch, bool distinct, uint32_t now) {
    batch.distinct = distinct;
    CommitStep step;
    step.number = rule_.number;
    step.scale = 0.5f;
    step.clip_value = rule_.clip_value;
    step.now = now;
    bool applied = false;
    step.applied = &applied;
    const uint64_t touched = Value(store_->Apply({batch}, *optimizer_, step, ThreadedFor));
    CHECK(applied);
    return touched;
  }

  // The numbers of rows as a lookup finds them.
  RowNumbers Numbers(const std::vector<Key>& keys) {
    RowNumbers found{std::vector<uint32_t>(keys.size()), store_->erasures()};
    GatherOptions options;
    options.numbers = found.numbers.data();
    std::vector<float> out(keys.size() * rule_.dim);
    REQUIRE(
        store_->Gather(keys.data(), keys.size(), out.data(), options, nullptr, nullptr, ThreadedFor)
            .ok());
    return found;
  }

  // Erases some rows and makes others, which get their numbers.
  void Replace(const std::vector<Key>& gone, const std::vector<Key>& made) {
    Value(store_->Erase(gone.data(), gone.size(), SerialFor));
    const auto start = [&](size_t, RowRef row, bool is_new) {
      if (is_new) std::fill_n(row.embedding, rule_.dim, 0.125f);
    };
    REQUIRE(store_->Upsert(made.data(), made.size(), 0, 1, start, SerialFor).ok());
  }

  Rows Now() {
    Rows rows;
    const Status status = Value(store_->Freeze())->ForEach([&](Key key, RowRef row) {
      rows[key].assign(row.embedding, row.embedding + floats_);
      rows[key].push_back(static_cast<float>(row.meta->update_num));
      rows[key].push_back(static_cast<float>(row.meta->update_time));
    });
    REQUIRE(status.ok());
    return rows;
  }

  std::unique_ptr<RowCapture> Capture(const CaptureOptions& options) {
    return Value(store_->BeginCapture(options));
  }

  Rows Captured(RowCapture* capture) {
    const size_t n = capture->rows(), dim = rule_.dim, slots = floats_ - dim;
    std::vector<Key> keys(n + 1);
    std::vector<uint32_t> nums(n + 1), times(n + 1);
    std::vector<float> embeddings((n + 1) * dim), slot_values((n + 1) * slots);
    const CapturedColumns to{keys.data(), nums.data(), times.data(), embeddings.data(),
                             slot_values.data()};
    REQUIRE(Value(capture->Next(to, n + 1)) == n);
    Rows rows;
    for (size_t i = 0; i < n; ++i) {
      std::vector<float>& row = rows[keys[i]];
      row.assign(&embeddings[i * dim], &embeddings[i * dim] + dim);
      row.insert(row.end(), slot_values.data() + i * slots, slot_values.data() + (i + 1) * slots);
      row.push_back(static_cast<float>(nums[i]));
      row.push_back(static_cast<float>(times[i]));
    }
    return rows;
  }

 private:
  const Rule rule_;
  const std::unique_ptr<RowOptimizer> optimizer_;
  std::unique_ptr<RowStore> store_;
  int floats_ = 0;
};

// Gradients of distinct keys, of which about half have a row.
struct Gradients {
  Gradients(size_t n, int dim, bool placed, std::mt19937_64* rng) : keys(kKeys) {
    std::iota(keys.begin(), keys.end(), 0);
    std::shuffle(keys.begin(), keys.end(), *rng);
    keys.resize(n);
    std::normal_distribution<float> normal;
    values.resize(2 * n * dim);
    for (float& value : values) value = normal(*rng);
    if (!placed) return;
    positions.resize(2 * n);
    std::iota(positions.begin(), positions.end(), 0);
    std::shuffle(positions.begin(), positions.end(), *rng);
  }
  GradientBatch Batch() const {
    return {keys.data(), values.data(), nullptr, keys.size(),
            positions.empty() ? nullptr : positions.data()};
  }

  std::vector<Key> keys;
  std::vector<float> values;        // (2n, dim)
  std::vector<uint32_t> positions;  // (2n) of which n are used
};

const Rule kRules[] = {{"sgd", 1, 3, 0.0f},      {"adam", 16, 7, 0.0f},
                       {"adam", 5, 2, 0.25f},    {"kv_adam", 8, 0, 0.0f},
                       {"adagrad", 33, 1, 0.0f}, {"rowwise_adagrad", 12, 1, 0.1f}};

TEST_CASE("few distinct keys are committed as many are, bit by bit") {
  std::mt19937_64 rng(TestSeed());
  for (const Rule& rule : kRules) {
    for (bool direct : {false, true}) {
      Store few(rule, direct), partitioned(rule, direct);
      uint32_t now = 2;
      for (size_t n : {0, 1, 31, 256, 257, 1000, 2048, 2049, 300}) {
        const Gradients gradients(n, rule.dim, n % 2 == 1, &rng);
        const uint64_t touched = few.Commit(gradients.Batch(), true, ++now);
        CHECK(touched == partitioned.Commit(gradients.Batch(), false, now));
      }
      REQUIRE(few.Now() == partitioned.Now());
    }
  }
}

TEST_CASE("rows that a lookup has found are committed as others are, whatever went meanwhile") {
  std::mt19937_64 rng(TestSeed());
  for (const Rule& rule : kRules) {
    for (bool direct : {false, true}) {
      Store few(rule, direct), partitioned(rule, direct);
      for (uint32_t step = 2; step < 40; ++step) {
        const Gradients gradients(rng() % 700, rule.dim, false, &rng);
        const RowNumbers found = few.Numbers(gradients.keys);
        const Gradients gone(rng() % 900, rule.dim, false, &rng);
        const Gradients made(rng() % 900, rule.dim, false, &rng);
        const bool erases = rng() % 2 == 0;
        for (Store* store : {&few, &partitioned}) {
          store->Replace(erases ? gone.keys : std::vector<Key>(), made.keys);
        }
        GradientBatch batch = gradients.Batch();
        batch.found = &found;
        const uint64_t touched = few.Commit(batch, true, step);
        CHECK(touched == partitioned.Commit(gradients.Batch(), false, step));
      }
      REQUIRE(few.Now() == partitioned.Now());
    }
  }
}

TEST_CASE("a capture has the rows as they were before a commit of few keys, and their changes") {
  std::mt19937_64 rng(TestSeed());
  for (bool direct : {false, true}) {
    Store store(kRules[1], direct);
    const Rows before = store.Now();
    Rows after;
    {
      CaptureOptions all;
      all.mark = 11;
      const auto capture = store.Capture(all);
      store.Commit(Gradients(700, 16, false, &rng).Batch(), true, 5);
      after = store.Now();
      REQUIRE(store.Captured(capture.get()) == before);
      capture->Keep();
    }
    Rows changed;
    for (const auto& [key, row] : after) {
      if (row != before.at(key)) changed[key] = row;
    }
    CaptureOptions since;
    since.since = 11;
    REQUIRE(store.Captured(store.Capture(since).get()) == changed);
  }
}

}  // namespace
}  // namespace sok
