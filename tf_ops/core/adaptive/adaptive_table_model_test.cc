// Runs an adaptive table beside its model: random batches, masks, counts, gradients and demotions.
#include <doctest/doctest.h>

#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "core/adaptive/test_adaptive_model.h"
#include "core/adaptive/test_adaptive_table.h"

namespace sok {
namespace {

constexpr uint64_t kBuckets = 5;
constexpr double kRate = 0.125;
// This allows for the float32 sums of a few dozen steps, of rows of the order of 1.
constexpr double kTolerance = 2e-4;

using Rule = AdaptiveModel::Rule;

class Beside {
 public:
  Beside(const AdaptiveConfig& config, Rule rule, const ParallelFor& parallel_for)
      : table_(MakeAdaptive(config)),
        rule_(rule),
        parallel_for_(parallel_for),
        rng_(TestSeed()),
        model_(config, rule, kRate, StaticRows(*table_)) {}

  // Makes a lookup, mostly with what follows it in a step.
  void Turn() {
    const AdaptiveBatch batch = RandomBatch();
    const std::vector<int32_t> mask =
        batch.mask.empty() ? std::vector<int32_t>(batch.size(), -1) : batch.mask;
    const std::vector<int64_t> counts =
        batch.counts.empty() ? std::vector<int64_t>(batch.size(), 1) : batch.counts;
    const bool training = rng_() % 4 != 0;
    const auto ours = Look(*table_, batch, training, parallel_for_);
    CheckNear(ours, model_.Lookup(batch.keys, counts, mask, training));
    CheckKeys();
    for (uint64_t deposits = rng_() % 3; deposits > 0; --deposits) {
      std::vector<float> gradients(batch.size() * kAdaptiveDim);
      for (float& g : gradients) g = static_cast<float>(rng_() % 17) / 16 - 0.5f;
      DepositOn(*table_, batch, gradients);
      model_.Deposit(batch.keys, mask, gradients, kAdaptiveDim);
    }
    if (rng_() % 10 == 0) {
      const std::vector<Key> keys = RandomBatch().keys;
      const uint64_t demoted = Value(table_->Demote(keys.data(), keys.size() / 3, parallel_for_));
      CHECK(demoted == model_.Demote({keys.begin(), keys.begin() + keys.size() / 3}));
    }
    if (rng_() % 3 == 0) return;
    CommitOn(*table_, Options(rule_ == Rule::kSgd ? "sgd" : "adagrad", kRate), parallel_for_);
    model_.Commit();
  }

  void CheckAll() {
    CheckKeys();
    const AdaptiveState contents = ContentsOf(*table_);
    for (const auto& [key, row] : contents.own) CheckRow(row, model_.own().at(key));
    for (const auto& [bucket, row] : contents.statics) CheckRow(row, model_.statics()[bucket]);
    const AdaptiveStats stats = table_->Stats();
    CHECK(stats.promoted == model_.promoted());
    CHECK(stats.demoted == model_.demoted());
    CHECK(stats.lookups == model_.lookups());
    CHECK(stats.own_lookups == model_.own_lookups());
    CHECK(stats.own.steps == model_.steps());
    CHECK(stats.statics.steps == model_.steps());
  }

 private:
  static std::vector<std::vector<double>> StaticRows(AdaptiveTable& table) {
    std::vector<std::vector<double>> rows;
    for (Key bucket = 0; bucket < kBuckets; ++bucket) {
      std::vector<float> row(kAdaptiveDim);
      REQUIRE(table.statics()->Lookup(&bucket, 1, false, row.data(), SerialFor).ok());
      rows.emplace_back(row.begin(), row.end());
    }
    return rows;
  }

  AdaptiveBatch RandomBatch() {
    AdaptiveBatch batch;
    const bool with_mask = rng_() % 2 == 0, with_counts = rng_() % 2 == 0;
    for (size_t n = rng_() % 40; n > 0; --n) {
      // Some keys come often, some with the highest bit set, some only now and then.
      const uint64_t kind = rng_() % 3;
      batch.keys.push_back(kind == 0 ? rng_() % 6 : kind == 1 ? ~(rng_() % 20) : rng_() % 100);
      if (with_mask) batch.mask.push_back(static_cast<int32_t>(rng_() % 8) % 3 - 1);
      if (with_counts) batch.counts.push_back(static_cast<int64_t>(rng_() % 4));
    }
    return batch;
  }

  void CheckNear(const std::vector<float>& ours, const std::vector<double>& expected) {
    REQUIRE(ours.size() == expected.size());
    for (size_t i = 0; i < ours.size(); ++i) {
      if (std::abs(ours[i] - expected[i]) < kTolerance) continue;  // assertions take longer
      FAIL("element ", i, ": expected ", expected[i], ", got ", ours[i]);
    }
  }

  void CheckRow(const RowContents& row, const ModelRow& expected) {
    CheckNear(row.embedding, expected.weights);
    if (row.slots.empty()) return;
    CheckNear(row.slots, expected.slots);
  }

  void CheckKeys() {
    std::set<Key> expected;
    for (const auto& [key, row] : model_.own()) expected.insert(key);
    const std::vector<Key> keys = OwnKeys(*table_);
    REQUIRE(std::set<Key>(keys.begin(), keys.end()) == expected);
  }

  std::unique_ptr<AdaptiveTable> table_;
  const Rule rule_;
  const ParallelFor parallel_for_;
  std::mt19937_64 rng_;
  AdaptiveModel model_;
};

void RunBeside(const AdaptiveConfig& config) {
  for (const Rule rule : {Rule::kSgd, Rule::kAdagrad}) {
    for (const bool threads : {false, true}) {
      CAPTURE(threads);
      Beside beside(config, rule, threads ? ParallelFor(ThreadedFor) : ParallelFor(SerialFor));
      for (int turn = 0; turn < (LongTests() ? 60 : 30); ++turn) beside.Turn();
      beside.CheckAll();
    }
  }
}

}  // namespace

TEST_CASE("an adaptive table does what its model does") {
  for (uint32_t promote_after : {1, 3, 40}) RunBeside(ExactConfig(kBuckets, promote_after));
}

TEST_CASE("an adaptive table of few rows does what its model does") {
  for (uint64_t max_rows : {1, 4, 30}) {
    CAPTURE(max_rows);
    AdaptiveConfig config = ExactConfig(kBuckets, 2);
    config.max_rows = max_rows;
    RunBeside(config);
    config.decay_every = 3;
    RunBeside(config);
  }
}

TEST_CASE("an adaptive table that blends, decays or starts slots anew does what its model does") {
  AdaptiveConfig config = ExactConfig(kBuckets, 3);
  config.demote_blend = 0.375;
  RunBeside(config);
  config.copy_slots = false;
  config.decay_every = 2;
  RunBeside(config);
  config.max_rows = 7;
  config.counter_bits = 16;
  RunBeside(config);
}

TEST_CASE("all keys share the one static row of a table of one bucket") {
  AdaptiveConfig config = ExactConfig(1, 2);
  config.max_rows = 3;
  const auto table = MakeAdaptive(config);
  for (Key key = 0; key < 6; ++key) {
    const auto before = SeeStatic(*table, key);
    CHECK(Look(*table, Times(key, 2), true) ==
          std::vector<float>{before[0], before[1], before[2], before[0], before[1], before[2]});
    CHECK(table->own()->size() == std::min<uint64_t>(key + 1, 3));
  }
  // All keys were counted twice, and of equally used ones the row of the least key went first.
  CHECK(OwnKeys(*table) == std::vector<Key>{3, 4, 5});
}

}  // namespace sok
