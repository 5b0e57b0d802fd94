// Tests of AdaptiveTable::Commit: which row a gradient goes to, what becomes of slots, and
// optimizers that accumulate.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "core/adaptive/test_adaptive_table.h"
#include "core/base/bfloat16.h"

namespace sok {
namespace {

constexpr uint64_t kBuckets = 6;

std::unique_ptr<AdaptiveTable> MakeTable(uint32_t promote_after = 1, bool copy_slots = true) {
  AdaptiveConfig config = ExactConfig(kBuckets, promote_after);
  config.copy_slots = copy_slots;
  return MakeAdaptive(config);
}

std::vector<float> Moved(std::vector<float> row, float by) {
  for (float& x : row) x += by;
  return row;
}

RowContents OwnRow(AdaptiveTable& table, Key key) {
  return ContentsOf(Value(table.own()->Freeze())).at(key);
}
RowContents StaticRow(AdaptiveTable& table, Key key) {
  return ContentsOf(Value(table.statics()->Freeze())).at(AdaptiveBucket(key, kBuckets));
}

}  // namespace

TEST_CASE("a gradient goes to the own row if there is one, else to the static row") {
  const auto table = MakeTable(2);
  const auto keys = KeysOfBucket(3, kBuckets, 3);
  Look(*table, Times(keys[0], 2), true);
  const auto start = SeeStatic(*table, keys[0]);
  DepositOnes(*table, {{keys[0], keys[1], keys[2], keys[1]}, {}, {}});
  const CommitOutcome outcome = CommitOn(*table, Options("sgd"), ThreadedFor);
  CHECK(outcome.rows == 2);
  CHECK(See(*table, keys[0]) == Moved(start, -0.5f));
  CHECK(SeeStatic(*table, keys[0]) == Moved(start, -1.5f));
  CHECK(See(*table, keys[1]) == Moved(start, -1.5f));
  CHECK(table->own()->steps() == 1);
  CHECK(table->statics()->steps() == 1);
}

TEST_CASE("gradients of a lookup that was not for training are counted, once for the lookup") {
  const auto table = MakeAdaptive(ExactConfig(7, 3));
  const auto deposit = [&](const std::shared_ptr<std::atomic<bool>>& counted) {
    const AdaptiveBatch batch{{5, 6, 5, 8}, {1, 3, 1, 9}, {-1, -1, -1, 0}};
    AdaptiveKeys keys = batch.View();
    keys.counted = counted;
    const auto ones = std::make_shared<const std::vector<float>>(batch.size() * kAdaptiveDim, 1.0f);
    REQUIRE(table->Deposit(keys, ones, ones->data(), nullptr).ok());
  };
  const std::vector<float> start = Look(*table, Times(6, 1), false);
  const auto counted = std::make_shared<std::atomic<bool>>(false);
  deposit(counted);
  deposit(counted);
  CHECK(OwnKeys(*table) == std::vector<Key>{6});
  CommitOn(*table, Options("sgd"));
  // The row that the gradient has made takes it, and the static row does not.
  CHECK(Look(*table, Times(6, 1), false)[0] == doctest::Approx(start[0] - 1.0f));
  deposit(std::make_shared<std::atomic<bool>>(false));
  CHECK(OwnKeys(*table) == std::vector<Key>{5, 6});
}

TEST_CASE("a gradient of a place with a mask of 0 goes to the static row, whoever has a row") {
  const auto table = MakeTable(1);
  const Key key = 8;
  Look(*table, Times(key, 1), true);
  const auto start = See(*table, key);
  DepositOnes(*table, {{key, key, key}, {}, {0, 1, -1}});
  CommitOn(*table, Options("sgd"));
  CHECK(See(*table, key) == Moved(start, -1.0f));
  CHECK(SeeStatic(*table, key) == Moved(start, -0.5f));
}

TEST_CASE("a gradient of a lookup before the row was made or taken away follows the row") {
  const auto table = MakeTable(2);
  const Key key = 8;
  const auto start = See(*table, key);
  DepositOnes(*table, {{key}, {}, {}});
  Look(*table, Times(key, 2), true);
  CommitOn(*table, Options("sgd"));
  CHECK(See(*table, key) == Moved(start, -0.5f));
  CHECK(SeeStatic(*table, key) == start);
  DepositOnes(*table, {{key}, {}, {1}});
  REQUIRE(Value(table->Demote(&key, 1, SerialFor)) == 1);
  CommitOn(*table, Options("sgd"));
  CHECK(SeeStatic(*table, key) == Moved(start, -0.5f));
  CHECK(table->own()->size() == 0);
}

TEST_CASE("bfloat16 gradients are summed in float32") {
  const auto table = MakeTable(1);
  const Key key = 3;
  Look(*table, Times(key, 1), true);
  const auto start = See(*table, key);
  const AdaptiveBatch batch{{key, key, 77}, {}, {}};
  std::vector<BFloat16> halves;
  for (float g : {256.0f, 1.5f, 2.0f}) {
    for (int j = 0; j < kAdaptiveDim; ++j) halves.push_back(FromFloat<BFloat16>(g));
  }
  const auto hold = std::make_shared<const std::vector<BFloat16>>(halves);
  REQUIRE(table->Deposit(batch.View(), hold, nullptr, hold->data()).ok());
  const auto statics = SeeStatic(*table, 77);
  CommitOn(*table, Options("sgd", 1.0));
  for (int j = 0; j < kAdaptiveDim; ++j) {
    CHECK(See(*table, key)[j] == start[j] - 257.5f);
    CHECK(SeeStatic(*table, 77)[j] == statics[j] - 2.0f);
  }
  CHECK(hold.use_count() == 1);
}

TEST_CASE("the scale multiplies the gradients of both kinds of rows") {
  const auto table = MakeTable(1);
  Look(*table, Times(1, 1), true);
  const auto own = See(*table, 1), statics = SeeStatic(*table, 2);
  DepositOnes(*table, {{1, 2}, {}, {-1, 0}});
  CommitOptions options = Options("sgd");
  options.scale = 0.25f;
  CommitOn(*table, options);
  CHECK(See(*table, 1) == Moved(own, -0.125f));
  CHECK(SeeStatic(*table, 2) == Moved(statics, -0.125f));
}

TEST_CASE("a commit lists the keys of own rows, and the buckets of static rows") {
  const auto table = MakeTable(1);
  Look(*table, Times(1, 1), true);
  DepositOnes(*table, {{1, 2}, {}, {-1, 0}});
  CommitOptions options = Options("sgd");
  options.lists_keys = true;
  const auto keys = CommitOn(*table, options).keys;
  REQUIRE(keys.size() == 2);
  CHECK(keys[0] == std::vector<Key>{1});
  CHECK(keys[1] == std::vector<Key>{AdaptiveBucket(2, kBuckets)});
}

TEST_CASE("a commit without deposits does nothing and counts no step") {
  const auto table = MakeTable(1);
  Look(*table, Times(1, 1), true);
  const AdaptiveState before = ContentsOf(*table);
  CHECK(CommitOn(*table, Options("adam")).rows == 0);
  CHECK(Same(ContentsOf(*table), before));
}

TEST_CASE("both kinds of rows count the same steps, though one of them has no gradients") {
  const auto table = MakeTable(1);
  Look(*table, Times(1, 1), true);
  DepositOnes(*table, Times(1, 1));
  CommitOn(*table, Options("adagrad"));
  DepositOnes(*table, {{2}, {}, {0}});
  CommitOn(*table, Options("adagrad"));
  CHECK(table->own()->steps() == 2);
  CHECK(table->statics()->steps() == 2);
  CHECK(OwnRow(*table, 1).slots.size() == kAdaptiveDim);
  CHECK(OwnRow(*table, 1).update_num == 1);
}

TEST_CASE("slots of a new row are those of its static row, or start anew") {
  for (const bool copy : {true, false}) {
    for (const std::string rule : {"adagrad", "adam", "ftrl", "rowwise_adagrad", "momentum"}) {
      CAPTURE(rule);
      const auto table = MakeTable(2, copy);
      const Key key = 9;
      for (int step = 0; step < 3; ++step) {
        DepositOnes(*table, {{key}, {}, {}});
        CommitOn(*table, Options(rule));
      }
      Look(*table, Times(key, 2), true);
      const RowContents statics = StaticRow(*table, key), own = OwnRow(*table, key);
      REQUIRE(!statics.slots.empty());
      CHECK(own.embedding == statics.embedding);
      const auto start = Value(table->own()->Freeze()).slot_start();
      CHECK((own.slots != start) == copy);
      if (copy) CHECK(own.slots == statics.slots);
      // From here on the two are trained on their own, by equal steps.
      DepositOnes(*table, {{key, key}, {}, {0, 1}});
      CommitOn(*table, Options(rule));
      if (copy) {
        CHECK(OwnRow(*table, key).slots == StaticRow(*table, key).slots);
        CHECK(See(*table, key) == SeeStatic(*table, key));
      } else {
        CHECK(OwnRow(*table, key).slots != StaticRow(*table, key).slots);
      }
    }
  }
}

TEST_CASE("the step in which a row is made gives it that step's gradient, as Adagrad has it") {
  const auto table = MakeTable(2);
  const Key key = 9;
  DepositOnes(*table, {{key}, {}, {}});
  CommitOn(*table, Options("adagrad"));
  const auto start = SeeStatic(*table, key);
  Look(*table, Times(key, 2), true);
  DepositOn(*table, Times(key, 2), {1, 2, 3, 1, 2, 3});
  CommitOn(*table, Options("adagrad"));
  CHECK(SeeStatic(*table, key) == start);
  for (int j = 0; j < kAdaptiveDim; ++j) {
    const double g = 2.0 * (j + 1), accumulator = 0.1 + 1 + g * g;
    CHECK(OwnRow(*table, key).slots[j] == doctest::Approx(accumulator));
    CHECK(See(*table, key)[j] == doctest::Approx(start[j] - 0.5 * g / std::sqrt(accumulator)));
  }
}

TEST_CASE("deposits wait for the optimizer that is given them") {
  const auto table = MakeTable(1);
  Look(*table, Times(1, 1), true);
  const auto own = See(*table, 1), statics = SeeStatic(*table, 2);
  std::vector<float> given_first(kAnchorSize), given_second(kAnchorSize);
  CommitOptions first = Options("sgd", 1.0), second = first;
  first.optimizer = 7;
  second.optimizer = 8;
  first.redeemed = given_first.data();
  second.redeemed = given_second.data();
  DepositOnes(*table, {{1, 2}, {}, {-1, 0}}, given_first.data());
  DepositOnes(*table, {{1}, {}, {}}, given_second.data());
  CHECK(table->Stats().own.pending_gradients == 3);
  CHECK(CommitOn(*table, second).rows == 1);
  CHECK(table->Stats().own.pending_gradients == 2);
  CHECK(See(*table, 1) == Moved(own, -1.0f));
  CHECK(SeeStatic(*table, 2) == statics);
  DepositOnes(*table, {{1, 2}, {}, {-1, 0}}, given_first.data());
  CHECK(CommitOn(*table, first).rows == 2);
  CHECK(See(*table, 1) == Moved(Moved(own, -1.0f), -2.0f));
  CHECK(SeeStatic(*table, 2) == Moved(statics, -2.0f));
  CHECK(table->Stats().own.pending_gradients == 0);
  CHECK(table->own()->steps() == 1);
}

TEST_CASE("gradients that were deposited in the static table alone are committed along") {
  const auto table = MakeTable(1);
  const Key bucket = 2;
  const auto start = SeeStatic(*table, KeysOfBucket(bucket, kBuckets, 1)[0]);
  const auto ones = std::make_shared<const std::vector<float>>(kAdaptiveDim, 1.0f);
  LookupKeys keys;
  keys.keys = &bucket;
  keys.n = 1;
  REQUIRE(table->statics()->Deposit(keys, ones, ones->data(), nullptr).ok());
  CHECK(CommitOn(*table, Options("sgd")).rows == 1);
  CHECK(SeeStatic(*table, KeysOfBucket(bucket, kBuckets, 1)[0]) == Moved(start, -0.5f));
  CHECK(table->own()->steps() == 1);
  CHECK(table->statics()->steps() == 1);
}

TEST_CASE("a commit of an optimizer that is given no gradients is not a step, whatever waits") {
  const auto table = MakeTable(1);
  DepositOnes(*table, {{1, 2}, {}, {}});
  CommitOptions options = Options("adagrad");
  const std::vector<float> nothing(kAnchorSize);
  options.redeemed = nothing.data();
  CommitOn(*table, options);
  CHECK(table->own()->steps() == 0);
  CHECK(table->statics()->steps() == 0);
  CHECK(Value(table->statics()->Freeze()).state().rule.empty());
}

TEST_CASE("another rule starts the slots of both kinds of rows anew") {
  const auto table = MakeTable(1);
  Look(*table, Times(1, 1), true);
  DepositOnes(*table, {{1, 2}, {}, {1, 0}});
  CommitOn(*table, Options("adagrad"));
  DepositOnes(*table, {{1}, {}, {1}});
  const CommitOutcome outcome = CommitOn(*table, Options("adam"));
  CHECK(outcome.restarted);
  CHECK(outcome.previous == "adagrad");
  CHECK(StaticRow(*table, 2).slots == std::vector<float>(2 * kAdaptiveDim, 0.0f));
  CHECK(OwnRow(*table, 1).slots.size() == 2 * kAdaptiveDim);
  CHECK(table->own()->steps() == 1);
  Look(*table, Times(2, 1), true);
  CHECK(OwnRow(*table, 2).slots == StaticRow(*table, 2).slots);
}

TEST_CASE("the step that another rule begins with decays counts as any other") {
  AdaptiveConfig config = ExactConfig(kBuckets, 4);
  config.decay_every = 1;
  const auto table = MakeAdaptive(config);
  DepositOnes(*table, {{1}, {}, {0}});
  CommitOn(*table, Options("sgd"));
  Look(*table, Times(5, 3), true);
  DepositOnes(*table, {{1}, {}, {0}});
  REQUIRE(CommitOn(*table, Options("adagrad")).restarted);  // 3 became 1
  Look(*table, Times(5, 2), true);
  CHECK(table->own()->size() == 0);
}

TEST_CASE("an unknown rule or parameter is an error that drops the deposits and changes nothing") {
  const auto table = MakeTable(1);
  Look(*table, Times(1, 1), true);
  const AdaptiveState before = ContentsOf(*table);
  CommitOptions wrong_parameter = Options("sgd");
  wrong_parameter.hypers = {{"momentum", 0.9}};
  for (const CommitOptions& options : {Options("sgdd"), wrong_parameter}) {
    DepositOnes(*table, {{1, 2}, {}, {}});
    const auto outcome = table->Commit(options, SerialFor);
    REQUIRE_FALSE(outcome.ok());
    CHECK(outcome.status().code() == Code::kInvalidArgument);
    CHECK(table->Stats().own.pending_gradients == 0);
    CHECK(table->Stats().statics.pending_gradients == 0);
    CHECK(Same(ContentsOf(*table), before));
  }
}

}  // namespace sok
