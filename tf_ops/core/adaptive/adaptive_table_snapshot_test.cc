// Tests of AdaptiveTable::Freeze and Restore: a snapshot is whole and of one moment, and a bad one
// is refused.
#include <doctest/doctest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/adaptive/test_adaptive_table.h"

namespace sok {
namespace {

constexpr uint64_t kBuckets = 5;

AdaptiveConfig Config() {
  AdaptiveConfig config = ExactConfig(kBuckets, 3);
  config.sketch_capacity = 500;
  config.decay_every = 5;
  config.max_rows = 12;
  config.demote_blend = 0.25;
  return config;
}

void Train(AdaptiveTable& table, const std::string& rule, uint64_t seed, int steps) {
  std::mt19937_64 rng(seed);
  for (int step = 0; step < steps; ++step) {
    AdaptiveBatch batch;
    std::vector<float> gradients;
    for (int i = 0; i < 40; ++i) {
      batch.keys.push_back(rng() % 2 == 0 ? rng() % 8 : rng() % 300);
      for (int j = 0; j < kAdaptiveDim; ++j) gradients.push_back(static_cast<float>(rng() % 9) - 4);
    }
    Look(table, batch, true);
    DepositOn(table, batch, gradients);
    CommitOn(table, Options(rule, 0.01));
  }
}

// One table has everything in it, and another one is to stay as it is.
struct Pair {
  explicit Pair(const AdaptiveConfig& config)
      : table(MakeAdaptive(config)), other(MakeAdaptive(config)) {
    Train(*table, "adagrad", 1, 12);
    Train(*other, "adam", 2, 3);
    DepositOnes(*other, Times(5, 2));
  }
  std::unique_ptr<AdaptiveTable> table, other;
};

void CheckRefused(const std::string& part, Code code,
                  const std::function<void(RestoreParts*)>& damage) {
  const Pair pair(Config());
  const AdaptiveState before = ContentsOf(*pair.other);
  RestoreParts parts(ContentsOf(*pair.table));
  damage(&parts);
  const Status status = parts.Into(*pair.other);
  INFO("part: ", part, ", message: ", status.message());
  CHECK(status.code() == code);
  CHECK(status.message().find(part) != std::string::npos);
  CHECK(Same(ContentsOf(*pair.other), before));
  CHECK(pair.other->Stats().own.pending_gradients == 2);
}

}  // namespace

TEST_CASE("a restored table goes on as the one that was saved, bit for bit") {
  for (const std::string rule : {"sgd", "adagrad", "adam", "ftrl"}) {
    CAPTURE(rule);
    const auto table = MakeAdaptive(Config());
    Train(*table, rule, 1, 13);
    for (const bool trained_before : {false, true}) {
      const auto again = MakeAdaptive(Config());
      if (trained_before) {
        Train(*again, "adam", 7, 4);
        DepositOnes(*again, Times(5, 2));
      }
      const AdaptiveState saved = ContentsOf(*table);
      REQUIRE(RestoreParts(saved).Into(*again, ThreadedFor).ok());
      CHECK(Same(ContentsOf(*again), saved));
      CHECK(again->Stats().own.pending_gradients == 0);
      CHECK(again->Stats().statics.pending_gradients == 0);
      const auto twin = MakeAdaptive(Config());
      REQUIRE(RestoreParts(saved).Into(*twin).ok());
      Train(*again, rule, 3, 13);
      Train(*twin, rule, 3, 13);
      CHECK(Same(ContentsOf(*again), ContentsOf(*twin)));
    }
    // The saved table itself goes on as well; it knows its least used rows already.
    const auto again = MakeAdaptive(Config());
    REQUIRE(RestoreParts(ContentsOf(*table)).Into(*again).ok());
    Train(*table, rule, 4, 13);
    Train(*again, rule, 4, 13);
    CHECK(Same(ContentsOf(*again), ContentsOf(*table)));
  }
}

TEST_CASE("counters and stats are in the snapshot") {
  const Pair pair(Config());
  const std::vector<Key> keys = {0, 1, 2, 3};
  REQUIRE(Value(pair.table->Demote(keys.data(), 4, SerialFor)) > 0);
  const AdaptiveStats stats = pair.table->Stats();
  REQUIRE(RestoreParts(ContentsOf(*pair.table)).Into(*pair.other).ok());
  const AdaptiveStats again = pair.other->Stats();
  CHECK(stats.promoted > 0);
  CHECK(stats.demoted > 0);
  CHECK(again.promoted == stats.promoted);
  CHECK(again.demoted == stats.demoted);
  CHECK(again.lookups == stats.lookups);
  CHECK(again.own_lookups == stats.own_lookups);
  CHECK(again.own.steps == stats.own.steps);
}

TEST_CASE("an empty table can be restored, and empties another") {
  const Pair pair(Config());
  const auto empty = MakeAdaptive(Config());
  REQUIRE(RestoreParts(ContentsOf(*empty)).Into(*pair.table).ok());
  CHECK(Same(ContentsOf(*pair.table), ContentsOf(*empty)));
  CHECK(pair.table->own()->size() == 0);
  Train(*pair.table, "ftrl", 3, 5);
  Train(*empty, "ftrl", 3, 5);
  CHECK(Same(ContentsOf(*pair.table), ContentsOf(*empty)));
}

TEST_CASE("what does not fit is refused, and everything stays as it was, waiting gradients too") {
  const auto invalid = Code::kInvalidArgument;
  CheckRefused("counters", invalid, [](RestoreParts* parts) { parts->counters.clear(); });
  CheckRefused("counters", invalid, [](RestoreParts* parts) { parts->counters.pop_back(); });
  CheckRefused("version", invalid, [](RestoreParts* parts) { parts->counters[0] = 2; });
  CheckRefused("one rule", invalid, [](RestoreParts* parts) { parts->own.state.rule = "adam"; });
  CheckRefused("\"none\"", invalid, [](RestoreParts* parts) {
    parts->own.state.rule = parts->statics.state.rule = "none";
  });
  CheckRefused("slot values", invalid, [](RestoreParts* parts) {
    parts->own.state.rule = parts->statics.state.rule = "adam";
  });
  CheckRefused("header", Code::kDataLoss, [](RestoreParts* parts) { parts->sketch.clear(); });
  CheckRefused("checksum", Code::kDataLoss, [](RestoreParts* parts) { parts->sketch.back() ^= 1; });
  CheckRefused("checksum", Code::kDataLoss, [](RestoreParts* parts) { parts->sketch.pop_back(); });
  CheckRefused("[0, 5)", Code::kOutOfRange,
               [](RestoreParts* parts) { parts->statics.keys.back() = kBuckets; });
}

TEST_CASE("more own rows than max_rows are refused") {
  const Pair pair(Config());
  AdaptiveConfig fewer = Config();
  fewer.max_rows = 2;
  const auto other = MakeAdaptive(fewer);
  Train(*other, "adam", 2, 3);
  const AdaptiveState before = ContentsOf(*other);
  const Status status = RestoreParts(ContentsOf(*pair.table)).Into(*other);
  CHECK(status.code() == Code::kResourceExhausted);
  CHECK(status.message().find("at most 2 own rows") != std::string::npos);
  CHECK(Same(ContentsOf(*other), before));
}

TEST_CASE("a snapshot of other buckets, capacity or counters is refused") {
  const Pair pair(Config());
  const RestoreParts parts(ContentsOf(*pair.table));
  for (int what = 0; what < 3; ++what) {
    AdaptiveConfig config = Config();
    if (what == 0) config.static_buckets = kBuckets + 1;
    if (what == 1) config.sketch_capacity = 5000;
    if (what == 2) config.counter_bits = 16;
    const auto other = MakeAdaptive(config);
    const AdaptiveState before = ContentsOf(*other);
    CHECK(parts.Into(*other).code() == Code::kInvalidArgument);
    CHECK(Same(ContentsOf(*other), before));
  }
}

TEST_CASE("the own rows of another owner are refused, as its static rows are") {
  AdaptiveConfig config = Config();
  config.owners = 2;
  const auto first = MakeAdaptive(config);
  config.owner = 1;
  const auto second = MakeAdaptive(config);
  const Key key = KeysOfBucket(2, kBuckets, 1)[0];
  Look(*first, {{key}, {}, {1}}, true);
  const AdaptiveState before = ContentsOf(*second);
  AdaptiveState saved = ContentsOf(*first);
  CHECK(RestoreParts(saved).Into(*second).code() == Code::kInvalidArgument);
  saved.statics.clear();
  CHECK(RestoreParts(saved).Into(*second).code() == Code::kInvalidArgument);
  CHECK(Same(ContentsOf(*second), before));
}

}  // namespace sok
