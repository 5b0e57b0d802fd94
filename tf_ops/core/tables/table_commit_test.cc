// Table: from deposited gradients to trained rows.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/base/test_result.h"
#include "core/base/test_threads.h"
#include "core/tables/table.h"

namespace sok {
namespace {

constexpr int kDim = 3;

using Row64 = std::vector<double>;

std::unique_ptr<Table> MakeTable(uint64_t max_rows = 0) {
  TableSpec config;
  config.dim = kDim;
  config.max_rows = max_rows;
  return std::move(Table::Make(config).value());
}

std::vector<float> Embedding(Table& table, Key key) {
  std::vector<float> out(kDim);
  REQUIRE(table.Lookup(&key, 1, false, out.data(), SerialFor).ok());
  return out;
}

void MakeRows(Table& table, const std::vector<Key>& keys) {
  std::vector<float> out(keys.size() * kDim);
  REQUIRE(table.Lookup(keys.data(), keys.size(), true, out.data(), SerialFor).ok());
}

// One vector of gradients that stays alive until the commit, as a tensor would.
void Deposit(Table& table, std::vector<Key> keys, const std::vector<float>& gradients,
             bool bfloat16 = false, bool rows_made = false) {
  auto held = std::make_shared<const std::vector<Key>>(std::move(keys));
  LookupKeys lookup{held, held->data(), held->size(), rows_made};
  if (bfloat16) {
    std::vector<BFloat16> halves;
    for (float x : gradients) halves.push_back(FromFloat<BFloat16>(x));
    auto hold = std::make_shared<const std::vector<BFloat16>>(std::move(halves));
    REQUIRE(table.Deposit(std::move(lookup), hold, nullptr, hold->data()).ok());
  } else {
    auto hold = std::make_shared<const std::vector<float>>(gradients);
    REQUIRE(table.Deposit(std::move(lookup), hold, hold->data(), nullptr).ok());
  }
}

void DepositOnes(Table& table, const std::vector<Key>& keys, bool rows_made = false) {
  Deposit(table, keys, std::vector<float>(keys.size() * kDim, 1.0f), false, rows_made);
}

CommitOutcome Commit(Table& table, const std::string& rule, int64_t step = 0, float scale = 1.0f) {
  auto outcome = table.Commit({rule, {{"learning_rate", 0.5}}, step, scale}, ThreadedFor);
  REQUIRE_MESSAGE(outcome.ok(), outcome.status().message());
  return outcome.value();
}

std::map<Key, std::vector<float>> Slots(Table& table) {
  const Table::Snapshot snapshot = Value(table.Freeze());
  const int width = snapshot.slot_floats();
  std::vector<Key> keys(snapshot.size());
  std::vector<float> embeddings(keys.size() * kDim), slots(keys.size() * width);
  REQUIRE(snapshot.Write({keys.data(), embeddings.data(), slots.data()}).ok());
  std::map<Key, std::vector<float>> found;
  for (size_t i = 0; i < keys.size(); ++i) {
    found[keys[i]].assign(slots.begin() + i * width, slots.begin() + (i + 1) * width);
  }
  return found;
}

// keras.optimizers.Adam in double, on the rows that have a gradient in the step.
struct Adam64 {
  std::map<Key, Row64> w, m, v;

  void Apply(const std::map<Key, Row64>& gradients, double t, double scale) {
    const double alpha = 0.5 * std::sqrt(1 - std::pow(0.999, t)) / (1 - std::pow(0.9, t));
    for (const auto& [key, gradient] : gradients) {
      m[key].resize(kDim);
      v[key].resize(kDim);
      for (int j = 0; j < kDim; ++j) {
        const double g = gradient[j] * scale;
        m[key][j] += (g - m[key][j]) * (1 - 0.9);
        v[key][j] += (g * g - v[key][j]) * (1 - 0.999);
        w[key][j] -= alpha * m[key][j] / (std::sqrt(v[key][j]) + 1e-7);
      }
    }
  }
};

void CheckAgainst(Table& table, const Adam64& expected) {
  REQUIRE(table.size() == expected.w.size());
  for (const auto& [key, w] : expected.w) {
    const std::vector<float> row = Embedding(table, key);
    for (int j = 0; j < kDim; ++j) REQUIRE(row[j] == doctest::Approx(w[j]).epsilon(1e-3));
  }
}

// Several deposits a step, with equal keys within and between them, of both precisions.
void TrainAdam(int64_t first_step, float scale) {
  std::mt19937_64 rng(TestSeed());
  const auto table = MakeTable();
  Adam64 expected;
  for (int64_t step = 0; step < 8; ++step) {
    std::map<Key, Row64> sums;
    for (uint64_t deposits = 1 + rng() % 4; deposits > 0; --deposits) {
      std::vector<Key> keys(1 + rng() % 300);
      std::vector<float> gradients;
      for (Key& key : keys) {
        key = rng() % 100 - 50;
        if (expected.w.count(key) == 0) {
          const auto start = Embedding(*table, key);
          expected.w[key] = Row64(start.begin(), start.end());
        }
        Row64& sum = sums[key];
        sum.resize(kDim);
        for (int j = 0; j < kDim; ++j) {
          // Eighths, which bfloat16 holds, all of a sign, so that float32 sums lose little.
          gradients.push_back(static_cast<float>(1 + rng() % 16) / 8);
          sum[j] += gradients.back();
        }
      }
      Deposit(*table, keys, gradients, /*bfloat16=*/rng() % 2 == 0);
    }
    const CommitOutcome outcome =
        Commit(*table, "adam", first_step > 0 ? first_step + step : 0, scale);
    CHECK(outcome.rows == sums.size());
    expected.Apply(sums, static_cast<double>((first_step > 0 ? first_step : 1) + step), scale);
    CheckAgainst(*table, expected);
  }
  CHECK(table->steps() == 8);
}

TEST_CASE("a commit sums all deposits by key and steps once, as a reference in double does") {
  TrainAdam(0, 1.0f);
}

TEST_CASE("a commit multiplies gradients by its scale") { TrainAdam(0, 0.25f); }

TEST_CASE("a step number that is given counts instead of the table's own") {
  TrainAdam(1000, 1.0f);
}

TEST_CASE("a commit without deposits does nothing and counts no step") {
  const auto table = MakeTable();
  MakeRows(*table, {1, 2});
  const auto before = Embedding(*table, 1);
  const CommitOutcome outcome = Commit(*table, "adam");
  CHECK(outcome.rows == 0);
  CHECK_FALSE(outcome.restarted);
  CHECK(table->steps() == 0);
  CHECK(Embedding(*table, 1) == before);
  CHECK(Value(table->Freeze()).state().rule.empty());
}

TEST_CASE("a commit lists the distinct keys that had gradients, if it is asked to") {
  const auto table = MakeTable();
  CommitOptions options;
  options.rule = "sgd";
  DepositOnes(*table, {9, 4, 9});
  DepositOnes(*table, {~Key{0}, 4});
  CHECK(Value(table->Commit(options, SerialFor)).keys.empty());
  options.lists_keys = true;
  CHECK(Value(table->Commit(options, SerialFor)).keys == std::vector<std::vector<Key>>{{}});
  DepositOnes(*table, {9, 4, 9});
  DepositOnes(*table, {~Key{0}, 4});
  CHECK(Value(table->Commit(options, SerialFor)).keys ==
        std::vector<std::vector<Key>>{{4, 9, ~Key{0}}});
}

TEST_CASE("a commit makes rows for keys that were looked up without any") {
  const auto table = MakeTable();
  const auto start = Embedding(*table, 7);
  REQUIRE(table->size() == 0);
  DepositOnes(*table, {7});
  CHECK(Commit(*table, "sgd").rows == 1);
  CHECK(table->size() == 1);
  for (int j = 0; j < kDim; ++j) CHECK(Embedding(*table, 7)[j] == start[j] - 0.5f);
}

TEST_CASE("a key that is removed between lookup and commit is trained from its first vector") {
  const auto table = MakeTable();
  const Key key = 7;
  const auto start = Embedding(*table, key);
  MakeRows(*table, {key, 8});
  DepositOnes(*table, {key}, true);
  Commit(*table, "sgd");
  DepositOnes(*table, {key, 8}, true);
  REQUIRE(Value(table->Remove(&key, 1, SerialFor)) == 1);
  CHECK(Commit(*table, "sgd").rows == 2);
  for (int j = 0; j < kDim; ++j) CHECK(Embedding(*table, key)[j] == start[j] - 0.5f);
}

TEST_CASE("another rule starts its slots anew, keeps embeddings and counts steps from 1") {
  const auto table = MakeTable();
  MakeRows(*table, {1, 2});
  DepositOnes(*table, {1});
  CommitOutcome outcome = Commit(*table, "adagrad");
  CHECK_FALSE(outcome.restarted);
  CHECK(outcome.previous.empty());
  DepositOnes(*table, {1});
  outcome = Commit(*table, "adagrad");
  CHECK_FALSE(outcome.restarted);
  CHECK(outcome.previous == "adagrad");
  CHECK(Slots(*table)[1][0] == doctest::Approx(0.1 + 1 + 1));
  const auto trained = Embedding(*table, 1);

  DepositOnes(*table, {2});
  outcome = Commit(*table, "momentum");
  CHECK(outcome.restarted);
  CHECK(outcome.previous == "adagrad");
  CHECK(outcome.rows == 1);
  CHECK(Embedding(*table, 1) == trained);
  CHECK(Slots(*table)[1] == std::vector<float>(kDim, 0.0f));
  CHECK(Slots(*table)[2] == std::vector<float>(kDim, -0.5f));
  CHECK(table->steps() == 1);
}

TEST_CASE("the first step of another optimizer of the same rule starts slots anew") {
  const auto table = MakeTable();
  DepositOnes(*table, {1, 2});
  CHECK_FALSE(Commit(*table, "momentum", 1).restarted);
  DepositOnes(*table, {1, 2});
  CHECK_FALSE(Commit(*table, "momentum", 2).restarted);
  const auto trained = Embedding(*table, 1);
  DepositOnes(*table, {2});
  CHECK(Commit(*table, "momentum", 1).restarted);
  CHECK(Embedding(*table, 1) == trained);
  CHECK(Slots(*table)[1] == std::vector<float>(kDim, 0.0f));
  CHECK(Slots(*table)[2] == std::vector<float>(kDim, -0.5f));
  CHECK(table->steps() == 1);
}

TEST_CASE("a slot of the same name and width does not survive a change of the rule") {
  const auto table = MakeTable();
  DepositOnes(*table, {1});
  Commit(*table, "adam");
  const auto amsgrad = MakeRowOptimizer("amsgrad", {}).value()->slots(kDim);
  const auto adam = MakeRowOptimizer("adam", {}).value()->slots(kDim);
  REQUIRE(adam[0].name == amsgrad[0].name);
  DepositOnes(*table, {2});
  CHECK(Commit(*table, "amsgrad").restarted);
  CHECK(Slots(*table)[1] == std::vector<float>(3 * kDim, 0.0f));
  // Momentum's slot and Lion's are one and the same in shape.
  DepositOnes(*table, {1});
  Commit(*table, "momentum");
  DepositOnes(*table, {2});
  CHECK(Commit(*table, "lion").restarted);
  CHECK(Slots(*table)[1] == std::vector<float>(kDim, 0.0f));
}

TEST_CASE("a commit makes rows as far as there is room, and leaves the other gradients out") {
  const auto table = MakeTable(4);
  MakeRows(*table, {1, 2});
  const auto first = Embedding(*table, 9), left_out = Embedding(*table, 7);
  DepositOnes(*table, {1, 9});
  DepositOnes(*table, {9, 8, 7, 7, 6});
  const CommitOutcome outcome = Commit(*table, "sgd");
  CHECK(outcome.rows == 3);  // 1, 9 and 8
  CHECK(outcome.left_out == 2);
  CHECK(outcome.first_left_out);
  CHECK(table->size() == 4);
  CHECK(table->steps() == 1);
  CHECK(Embedding(*table, 9)[0] != first[0]);
  CHECK(Embedding(*table, 7) == left_out);
  DepositOnes(*table, {7});
  const CommitOutcome again = Commit(*table, "sgd");
  CHECK(again.stepped);
  CHECK(again.rows == 0);
  CHECK(again.left_out == 1);
  CHECK_FALSE(again.first_left_out);
  CHECK(table->Stats().left_out == 3);
  DepositOnes(*table, {1, 8});
  CHECK(Commit(*table, "sgd").left_out == 0);
}

TEST_CASE("a commit counts the keys of lookups that made no rows, once for all their gradients") {
  AdmissionConfig frequency;
  frequency.min_count = 3;
  TableSpec config;
  config.dim = kDim;
  config.admission = frequency;
  const auto table = Value(Table::Make(config));
  const std::vector<Key> keys = {5, 6, 5, 7};
  const std::vector<int64_t> counts = {1, 2, 1, 3};
  const auto ones = std::make_shared<const std::vector<float>>(keys.size() * kDim, 1.0f);
  const auto deposit = [&](const std::shared_ptr<std::atomic<bool>>& counted, bool rows_made) {
    LookupKeys lookup{nullptr, keys.data(), keys.size(), rows_made};
    lookup.counts = counts.data();
    lookup.counted = counted;
    REQUIRE(table->Deposit(std::move(lookup), ones, ones->data(), nullptr).ok());
  };
  const auto rows = [&] {
    std::vector<Key> held;
    REQUIRE(table->ForEachRow([&](Key key, RowRef) { held.push_back(key); }).ok());
    std::sort(held.begin(), held.end());
    return held;
  };
  const auto counted = table->CountOnce();
  deposit(counted, false);
  deposit(counted, false);
  CHECK(Commit(*table, "sgd").rows == 1);
  CHECK(rows() == std::vector<Key>{7});  // 5 and 6 were counted twice
  deposit(counted, false);
  deposit(nullptr, true);  // its lookup has counted them
  Commit(*table, "sgd");
  CHECK(rows() == std::vector<Key>{7});
  deposit(table->CountOnce(), false);
  CHECK(Commit(*table, "sgd").rows == 3);
  CHECK(rows() == std::vector<Key>{5, 6, 7});
}

TEST_CASE("an unknown rule or parameter is an error that drops the deposits") {
  const auto table = MakeTable();
  MakeRows(*table, {1});
  const auto before = Embedding(*table, 1);
  for (const CommitOptions& options :
       {CommitOptions{"sgdd", {}, 0, 1.0f}, CommitOptions{"sgd", {{"momentum", 0.9}}, 0, 1.0f}}) {
    DepositOnes(*table, {1});
    const auto outcome = table->Commit(options, SerialFor);
    REQUIRE_FALSE(outcome.ok());
    CHECK(outcome.status().code() == Code::kInvalidArgument);
    CHECK(table->Stats().pending_gradients == 0);
  }
  CHECK(Embedding(*table, 1) == before);
}

TEST_CASE("dropped deposits are counted, let go of, and train nothing") {
  const auto table = MakeTable();
  auto hold = std::make_shared<const std::vector<float>>(2 * kDim, 1.0f);
  const std::vector<Key> keys = {1, 2};
  REQUIRE(table->Deposit({hold, keys.data(), 2, false}, hold, hold->data(), nullptr).ok());
  DepositOnes(*table, {3, 3, 3});
  CHECK(hold.use_count() == 3);
  CHECK(table->DropDeposits() == 5);
  CHECK(hold.use_count() == 1);
  CHECK(table->DropDeposits() == 0);
  CHECK(Commit(*table, "sgd").rows == 0);
  CHECK(table->size() == 0);
}

TEST_CASE("a commit lets go of what was deposited") {
  const auto table = MakeTable();
  auto hold = std::make_shared<const std::vector<float>>(kDim, 1.0f);
  const Key key = 1;
  REQUIRE(table->Deposit({hold, &key, 1, false}, hold, hold->data(), nullptr).ok());
  Commit(*table, "sgd");
  CHECK(hold.use_count() == 1);
}

TEST_CASE("gradients that an optimizer was not given are left to others") {
  const auto table = MakeTable();
  MakeRows(*table, {1, 2});
  const auto before = Embedding(*table, 1);
  const std::vector<float> ones(kDim, 1.0f);
  CommitOptions first{"sgd", {{"learning_rate", 1.0}}, 0, 1.0f, 7};
  CommitOptions second{"sgd", {{"learning_rate", 1.0}}, 0, 1.0f, 8};
  std::vector<float> given_first(kAnchorSize), given_second(kAnchorSize);
  first.redeemed = given_first.data();
  second.redeemed = given_second.data();
  const auto deposit = [&](const Key& key, std::vector<float>* given) {
    REQUIRE(
        table->Deposit({nullptr, &key, 1, false}, nullptr, ones.data(), nullptr, {given->data()})
            .ok());
  };
  const Key one = 1, two = 2;
  deposit(one, &given_first);
  deposit(two, &given_second);
  auto outcome = table->Commit(second, SerialFor);
  REQUIRE(outcome.ok());
  CHECK(outcome.value().rows == 1);
  CHECK(Embedding(*table, 1) == before);
  deposit(one, &given_first);
  REQUIRE(table->Commit(first, SerialFor).ok());
  for (int j = 0; j < kDim; ++j) CHECK(Embedding(*table, 1)[j] == before[j] - 2.0f);
}

TEST_CASE(
    "gradients under large loss scales are multiplied by their factors before they are summed") {
  for (const int scale : {40, 62, 126, 149}) {
    CAPTURE(scale);
    for (const bool bfloat16 : {false, true}) {
      const auto table = MakeTable();
      MakeRows(*table, {1, 2});
      const auto before = Embedding(*table, 1);
      const float size = std::ldexp(1.0f, std::min(scale, 126));
      const double expected = std::ldexp(1.0, std::min(scale, 126) - scale);
      std::vector<float> arrived(kAnchorSize);
      // The sum of all would be infinite.
      const std::vector<float> gradients(2 * kDim, size);
      std::vector<BFloat16> halves;
      for (float x : gradients) halves.push_back(FromFloat<BFloat16>(x));
      const Key keys[] = {1, 2};
      for (int i = 0; i < 6; ++i) {
        std::vector<float> own(kAnchorSize);
        REQUIRE(table
                    ->Deposit({nullptr, keys, 2, false}, nullptr,
                              bfloat16 ? nullptr : gradients.data(),
                              bfloat16 ? halves.data() : nullptr, {own.data()})
                    .ok());
        for (int j = 0; j < kAnchorSize; ++j) {
          arrived[j] += static_cast<float>(std::ldexp(double{own[j]}, -scale));
        }
      }
      CommitOptions options{"sgd", {{"learning_rate", 1.0 / expected}}, 0, 1.0f, 7};
      options.redeemed = arrived.data();
      REQUIRE(table->Commit(options, SerialFor).ok());
      for (int j = 0; j < kDim; ++j) CHECK(Embedding(*table, 1)[j] == before[j] - 6.0f);
    }
  }
}

TEST_CASE("slots start anew for an optimizer that begins, even if its first step lacks the table") {
  const auto table = MakeTable();
  const auto step = [&](int64_t optimizer, int64_t number, bool with_gradients) {
    if (with_gradients) DepositOnes(*table, {1});
    auto outcome = table->Commit({"adagrad", {}, number, 1.0f, optimizer}, SerialFor);
    REQUIRE(outcome.ok());
    return outcome.value().restarted;
  };
  CHECK_FALSE(step(1, 1, true));
  CHECK_FALSE(step(1, 2, true));
  CHECK_FALSE(step(2, 1, false));
  CHECK(step(2, 2, true));
  CHECK_FALSE(step(2, 3, true));
  CHECK_FALSE(step(1, 3, true));
  // One that goes on from a checkpoint.
  CHECK_FALSE(step(3, 100, true));
}

}  // namespace
}  // namespace sok
