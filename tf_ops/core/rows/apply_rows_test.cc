// Tests what a commit does to rows beyond the arithmetic of its rule: which step number a row gets,
// and whether equal keys are summed or follow one another. The reference is Adam in float64.
#include "core/rows/apply_rows.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "core/base/test_result.h"
#include "core/base/test_threads.h"

namespace sok {
namespace {

constexpr int kDim = 3;
constexpr Key kKeys = 40;
constexpr uint32_t kNow = 1234;
constexpr double kGamma = 0.1, kBeta1 = 0.8, kBeta2 = 0.9, kEpsilon = 1e-8, kScale = 0.5;

// Is torch.optim.Adam on one row.
struct Row64 {
  double w[kDim] = {}, m[kDim] = {}, v[kDim] = {};
  uint32_t updates = 0;

  // `number` is t of the bias correction; with 0, each row's own.
  void Update(const double* gradient, int64_t number) {
    ++updates;
    const double t = static_cast<double>(number > 0 ? number : updates);
    for (int j = 0; j < kDim; ++j) {
      const double g = gradient[j] * kScale;
      m[j] += (g - m[j]) * (1 - kBeta1);
      v[j] += (g * g - v[j]) * (1 - kBeta2);
      const double m_hat = m[j] / (1 - std::pow(kBeta1, t));
      const double v_hat = v[j] / (1 - std::pow(kBeta2, t));
      w[j] -= kGamma * m_hat / (std::sqrt(v_hat) + kEpsilon);
    }
  }
};

struct Gradients {
  std::vector<Key> keys;
  std::vector<float> values;  // (keys, kDim)
};

// Some of the keys have no row. Values keep away from 0, where Adam turns rounding into steps.
Gradients RandomGradients(std::mt19937_64& rng) {
  Gradients made;
  std::uniform_real_distribution<float> uniform(0.25f, 1.0f);
  for (int i = 0; i < 150; ++i) {
    made.keys.push_back(rng() % (2 * kKeys));
    for (int j = 0; j < kDim; ++j) made.values.push_back(uniform(rng));
  }
  return made;
}

class Commits {
 public:
  Commits(bool sequential, int64_t number) : sequential_(sequential), number_(number) {
    const auto layout = std::make_shared<const RowLayout>(kDim, optimizer_->slots(kDim));
    store_ = MakeHashStore(layout);
    for (Key key = 0; key < kKeys; ++key) expected_[key] = Row64();
    std::vector<Key> keys;
    for (const auto& [key, row] : expected_) keys.push_back(key);
    const auto zero = [](size_t, RowRef row, bool) { std::fill_n(row.embedding, kDim, 0.0f); };
    REQUIRE(store_->Upsert(keys.data(), keys.size(), 0, kNow - 1, zero, SerialFor).ok());
  }

  void Commit(const std::vector<Gradients>& deposits, const ParallelFor& parallel_for) {
    CommitStep step;
    step.number = number_;
    step.scale = static_cast<float>(kScale);
    step.now = kNow;
    step.sequential = sequential_;
    std::vector<GradientBatch> batches;
    for (const Gradients& deposit : deposits) {
      batches.push_back({deposit.keys.data(), deposit.values.data(), nullptr, deposit.keys.size()});
    }
    const uint64_t touched = Value(store_->Apply(batches, *optimizer_, step, parallel_for));
    CHECK(touched == Expect(deposits));
  }

  void Check() {
    const Status status = Value(store_->Freeze())->ForEach([&](Key key, RowRef row) {
      const Row64& expected = expected_.at(key);
      for (int j = 0; j < kDim; ++j) {
        REQUIRE(row.embedding[j] == doctest::Approx(expected.w[j]).epsilon(1e-4));
        REQUIRE(row.embedding[kDim + j] == doctest::Approx(expected.m[j]).epsilon(1e-4));
        REQUIRE(row.embedding[2 * kDim + j] == doctest::Approx(expected.v[j]).epsilon(1e-4));
      }
      REQUIRE(row.meta->update_num == expected.updates);
      REQUIRE(row.meta->update_time == (expected.updates > 0 ? kNow : kNow - 1));
    });
    REQUIRE(status.ok());
  }

 private:
  // Returns how many rows the commit touches.
  uint64_t Expect(const std::vector<Gradients>& deposits) {
    std::map<Key, std::vector<double>> sums;
    std::set<Key> touched;
    for (const Gradients& deposit : deposits) {
      for (size_t i = 0; i < deposit.keys.size(); ++i) {
        const Key key = deposit.keys[i];
        if (expected_.count(key) == 0) continue;
        touched.insert(key);
        const std::vector<double> gradient(&deposit.values[i * kDim],
                                           &deposit.values[i * kDim] + kDim);
        if (sequential_) {
          expected_[key].Update(gradient.data(), number_);
          continue;
        }
        sums[key].resize(kDim);
        for (int j = 0; j < kDim; ++j) sums[key][j] += gradient[j];
      }
    }
    for (const auto& [key, sum] : sums) expected_[key].Update(sum.data(), number_);
    return touched.size();
  }

  const bool sequential_;
  const int64_t number_;
  const std::unique_ptr<RowOptimizer> optimizer_ = Value(MakeRowOptimizer(
      "kv_adam", {{"gamma", kGamma}, {"beta1", kBeta1}, {"beta2", kBeta2}, {"epsilon", kEpsilon}}));
  std::unique_ptr<RowStore> store_;
  std::map<Key, Row64> expected_;
};

void RunCommits(bool sequential, int64_t number) {
  for (const ParallelFor& parallel_for : {ParallelFor(SerialFor), ParallelFor(ThreadedFor)}) {
    std::mt19937_64 rng(TestSeed());
    Commits commits(sequential, number);
    for (int i = 0; i < 6; ++i) {
      commits.Commit({RandomGradients(rng), RandomGradients(rng)}, parallel_for);
    }
    commits.Check();
  }
}

TEST_CASE("a commit sums the gradients of equal keys into one step") { RunCommits(false, 4); }

TEST_CASE("a commit without a number takes each row's own") { RunCommits(false, 0); }

TEST_CASE("a sequential commit takes a step for each gradient of a key, in order") {
  RunCommits(true, 4);
}

TEST_CASE("a sequential commit without a number counts each row's steps on its way") {
  RunCommits(true, 0);
}

TEST_CASE("a row's count of updates stays at the most that there is") {
  const std::unique_ptr<RowOptimizer> optimizer = Value(MakeRowOptimizer("sgd", {}));
  for (bool sequential : {false, true}) {
    const auto store = MakeHashStore(std::make_shared<const RowLayout>(1, std::vector<Slot>()));
    const Key key = 7;
    const auto write = [](size_t, RowRef row, bool) {
      *row.embedding = 0.0f;
      row.meta->update_num = UINT32_MAX - 1;
    };
    REQUIRE(store->Upsert(&key, 1, 0, kNow, write, SerialFor).ok());
    CommitStep step;
    step.sequential = sequential;
    const float gradient = 1.0f;
    for (int i = 0; i < 3; ++i) {
      Value(store->Apply({{&key, &gradient, nullptr, 1}}, *optimizer, step, SerialFor));
    }
    RowMeta meta;
    uint8_t exists;
    REQUIRE(store->ReadMeta(&key, 1, &meta, &exists, SerialFor).ok());
    CHECK(meta.update_num == UINT32_MAX);
  }
}

}  // namespace
}  // namespace sok
