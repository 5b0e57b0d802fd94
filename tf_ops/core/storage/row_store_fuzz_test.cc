// Runs all operations of the stores at random, and compares with maps of the standard library.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/test_batches.h"
#include "core/base/test_result.h"
#include "core/base/test_threads.h"
#include "core/rows/row_store.h"
#include "core/rules/row_optimizer.h"
#include "core/storage/test_row_stores.h"

namespace sok {
namespace {

constexpr float kFill = -77.0f;
constexpr uint32_t kNow = 1234;

// Embeddings and gradients are small integers and the learning rate is 1, so that float32 is exact
// in any order.
struct Reference {
  std::unordered_map<Key, std::vector<float>> rows;
  std::unordered_map<Key, uint32_t> updates;
};

template <typename Kind>
class Fuzz {
 public:
  Fuzz(ParallelFor parallel_for, uint64_t seed)
      : store_(Kind::Make(LayoutWith({}), kKeys)),
        parallel_for_(std::move(parallel_for)),
        rng_(seed),
        sgd_(std::move(MakeRowOptimizer("sgd", {{"learning_rate", 1.0}}).value())) {}

  void Run(int operations) {
    for (int i = 0; i < operations; ++i) {
      switch (rng_() % 9) {
        case 0:
        case 1:
          Upsert();
          break;
        case 2:
        case 3:
          Apply();
          break;
        case 4:
          Erase();
          break;
        case 5:
          if (rng_() % 4 == 0) Relayout();
          break;
        case 6:
          if (rng_() % 16 == 0) Clear();
          break;
        case 7:
          ReadAhead();
          break;
        default:
          Gather();
      }
      REQUIRE(store_->size() == expected_.rows.size());
    }
    CheckContents();
  }

 private:
  static constexpr int kDim = Kind::kDim;
  // Long rows take their time.
  static constexpr uint64_t kKeys = kDim < 100 ? 3000 : 400;
  static constexpr uint64_t kMostKeys = kDim < 100 ? 400 : 100;

  static std::shared_ptr<const RowLayout> LayoutWith(std::vector<Slot> slots) {
    return std::make_shared<const RowLayout>(kDim, std::move(slots), Kind::kForm);
  }

  std::vector<Key> Batch() { return RandomKeys(rng_() % kMostKeys, kKeys, Kind::KeyAt, &rng_); }
  std::vector<float> Integers(size_t n) { return RandomIntegers(n, &rng_); }

  void Upsert() {
    const auto keys = Batch();
    const auto values = Integers(keys.size() * kDim);
    const uint64_t max_rows = rng_() % 3 == 0 ? kKeys / 2 : 0;
    const auto write = [&](size_t i, RowRef row, bool) {
      std::copy_n(&values[i * kDim], kDim, row.embedding);
    };
    const Status status =
        store_->Upsert(keys.data(), keys.size(), max_rows, kNow, write, parallel_for_);
    Reference wanted = expected_;
    for (size_t i = 0; i < keys.size(); ++i) {
      wanted.rows[keys[i]].assign(&values[i * kDim], &values[i * kDim] + kDim);
    }
    const bool brings_some = wanted.rows.size() > expected_.rows.size();
    const bool too_many = max_rows > 0 && brings_some && wanted.rows.size() > max_rows;
    REQUIRE(status.ok() == !too_many);
    if (!too_many) expected_ = std::move(wanted);
  }

  void Apply() {
    const auto first = Batch(), second = Batch();
    const auto gradients = Integers(first.size() * kDim);
    auto floats = Integers(second.size() * kDim);
    std::vector<BFloat16> halves;
    for (float x : floats) halves.push_back(FromFloat<BFloat16>(x));
    CommitStep step;
    step.number = 1;
    step.scale = 2.0f;
    step.now = kNow;
    const uint64_t touched =
        Value(store_->Apply({{first.data(), gradients.data(), nullptr, first.size()},
                             {second.data(), nullptr, halves.data(), second.size()}},
                            *sgd_, step, parallel_for_));
    std::unordered_map<Key, bool> had_gradient;
    const auto subtract = [&](const std::vector<Key>& keys, const std::vector<float>& values) {
      for (size_t i = 0; i < keys.size(); ++i) {
        const auto row = expected_.rows.find(keys[i]);
        if (row == expected_.rows.end()) continue;
        had_gradient[keys[i]] = true;
        for (int j = 0; j < kDim; ++j) row->second[j] -= 2 * values[i * kDim + j];
      }
    };
    subtract(first, gradients);
    subtract(second, floats);
    for (const auto& [key, _] : had_gradient) ++expected_.updates[key];
    REQUIRE(touched == had_gradient.size());
  }

  void Erase() {
    const auto keys = Batch();
    uint64_t erased = 0;
    for (Key key : keys) {
      erased += expected_.rows.erase(key);
      expected_.updates.erase(key);
    }
    REQUIRE(Value(store_->Erase(keys.data(), keys.size(), parallel_for_)) == erased);
  }

  void Relayout() {
    std::vector<Slot> slots;
    if (rng_() % 2 == 0) slots.push_back({"slot", 1 + static_cast<int>(rng_() % 9), 0.5f});
    const auto layout = LayoutWith(slots);
    const bool differs = !layout->SameShape(*store_->layout());
    const auto relaid = store_->Relayout(layout, {"", slots, 0}, parallel_for_);
    REQUIRE(relaid.ok());
    REQUIRE(relaid.value() == differs);
  }

  void Clear() {
    REQUIRE(store_->Replace(store_->layout(), {}, nullptr, 0, 0, nullptr, parallel_for_).ok());
    expected_ = Reference();
  }

  void ReadAhead() {
    const auto keys = Batch();
    REQUIRE(store_->ReadAhead(keys.data(), keys.size(), parallel_for_).ok());
  }

  void Gather() {
    const auto keys = Batch();
    std::vector<float> out(keys.size() * kDim);
    const auto fill = [](Key, float* embedding) { std::fill_n(embedding, kDim, kFill); };
    std::vector<uint32_t> missing;
    REQUIRE(store_->Gather(keys.data(), keys.size(), out.data(), {}, fill, &missing, parallel_for_)
                .ok());
    std::vector<uint32_t> expected_missing;
    for (size_t i = 0; i < keys.size(); ++i) {
      const auto row = expected_.rows.find(keys[i]);
      const bool present = row != expected_.rows.end();
      if (!present) expected_missing.push_back(static_cast<uint32_t>(i));
      const std::vector<float> copied(&out[i * kDim], &out[i * kDim] + kDim);
      REQUIRE(copied == (present ? row->second : std::vector<float>(kDim, kFill)));
    }
    std::sort(missing.begin(), missing.end());
    REQUIRE(missing == expected_missing);
    auto absent = Value(store_->Missing(keys.data(), keys.size(), parallel_for_));
    std::sort(absent.begin(), absent.end());
    REQUIRE(absent == expected_missing);
  }

  void CheckContents() const {
    Reference found;
    const Status status = Value(store_->Freeze())->ForEach([&](Key key, RowRef row) {
      found.rows[key].assign(row.embedding, row.embedding + kDim);
      if (row.meta->update_num > 0) found.updates[key] = row.meta->update_num;
      REQUIRE(row.meta->update_time == kNow);
    });
    REQUIRE(status.ok());
    REQUIRE(found.rows == expected_.rows);
    REQUIRE(found.updates == expected_.updates);
  }

  const std::shared_ptr<RowStore> store_;
  const ParallelFor parallel_for_;
  std::mt19937_64 rng_;
  const std::unique_ptr<RowOptimizer> sgd_;
  Reference expected_;
};

template <typename Kind>
void RunFuzz(const ParallelFor& parallel_for) {
  for (uint64_t round = 0; round < (LongTests() ? 4 : 2); ++round) {
    INFO("round ", round);
    Fuzz<Kind>(parallel_for, TestSeed() + round).Run(Kind::kDim < 100 ? 300 : 100);
  }
}

TEST_CASE_TEMPLATE("every store does what maps do, on one thread", Kind, SOK_EVERY_STORE) {
  RunFuzz<Kind>(SerialFor);
}

TEST_CASE_TEMPLATE("every store does what maps do, on several threads", Kind, SOK_EVERY_STORE) {
  RunFuzz<Kind>(ThreadedFor);
}

}  // namespace
}  // namespace sok
