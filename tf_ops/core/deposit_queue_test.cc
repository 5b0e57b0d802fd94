// Deposits come in any order, and are summed in one.
#include "core/deposit_queue.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "core/table.h"
#include "core/test_result.h"
#include "core/test_threads.h"

namespace sok {
namespace {

struct Numbered {
  size_t n = 1;
  DepositOrder order;
};

TEST_CASE("deposits are taken in the order of calls, of lookups and of gradients") {
  DepositQueue<Numbered> queue;
  const std::vector<DepositOrder> orders = {{0, 2, 0}, {0, 1, 7}, {1, 1, 0}, {0, 1, 3}, {1, 0, 9}};
  for (const DepositOrder& order : orders) queue.Add({1, order}, nullptr, nullptr, nullptr);
  queue.RedeemAll(0);
  const auto taken = queue.Take(0);
  REQUIRE(taken.size() == orders.size());
  for (size_t i = 1; i < taken.size(); ++i) CHECK(taken[i - 1].keys.order < taken[i].keys.order);
  CHECK(taken[0].keys.order.gradient == 3);
  CHECK(queue.gradients() == 0);
}

TEST_CASE("deposits of one place stay as they came") {
  DepositQueue<Numbered> queue;
  for (size_t n = 1; n <= 20; ++n) queue.Add({n, {}}, nullptr, nullptr, nullptr);
  queue.RedeemAll(0);
  queue.RedeemAll(0);
  const auto taken = queue.Take(0);
  for (size_t n = 1; n <= 20; ++n) CHECK(taken[n - 1].keys.n == n);
}

TEST_CASE("what one optimizer accumulates, another does not take") {
  DepositQueue<Numbered> queue;
  queue.Add({3, {}}, nullptr, nullptr, nullptr);
  queue.RedeemAll(7);
  queue.Add({4, {}}, nullptr, nullptr, nullptr);
  queue.RedeemAll(8);
  CHECK(queue.gradients() == 7);
  CHECK(queue.Take(8).size() == 1);
  CHECK(!queue.HasFor(8));
  CHECK(queue.HasFor(7));
  CHECK(queue.Take(7).size() == 1);
  CHECK(queue.Drop() == 0);
}

TEST_CASE("what reaches an optimizer names its deposits, each by its factor") {
  const uint32_t seed = 5;
  CAPTURE(seed);
  std::mt19937 random(seed);
  DepositQueue<Numbered> queue;
  std::map<uint64_t, int> waiting;  // tickets, and the commits that have missed them
  for (int step = 0; step < 2000; ++step) {
    for (int i = random() % 4; i > 0; --i) {
      waiting[queue.Add({1, {}}, nullptr, nullptr, nullptr)] = 0;
    }
    // At most one of each place, as none of them is asked for twice.
    std::map<int, uint64_t> chosen;
    for (const auto& [ticket, missed] : waiting) {
      if (random() % 3 == 0) chosen[PlaceOf(ticket)] = ticket;
    }
    std::vector<float> arrived(kAnchorSize);
    std::map<uint64_t, float> factors;
    for (const auto& [place, ticket] : chosen) {
      std::vector<float> gradient(kAnchorSize);
      AddMark(ticket, gradient.data());
      const float factor = factors[ticket] = static_cast<float>(random() % 2000) / 7.0f - 100.0f;
      for (int i = 0; i < kAnchorSize; ++i) arrived[i] += factor * gradient[i];
      if (factor == 0.0f) factors.erase(ticket);
    }
    REQUIRE(queue.Redeem(arrived.data(), 1).ok());
    const auto taken = queue.Take(1);
    REQUIRE(taken.size() == factors.size());
    for (const auto& deposit : taken) {
      CHECK(deposit.factor == doctest::Approx(factors.at(deposit.ticket)).epsilon(1e-6));
      waiting.erase(deposit.ticket);
    }
    for (auto it = waiting.begin(); it != waiting.end();) {
      it = ++it->second < DepositQueue<Numbered>::kMostMissed ? std::next(it) : waiting.erase(it);
    }
    REQUIRE(queue.gradients() == waiting.size());
  }
}

TEST_CASE("deposits that were taken before are told, and nothing is redeemed then") {
  DepositQueue<Numbered> queue;
  std::vector<float> first(kAnchorSize), both(kAnchorSize);
  AddMark(queue.Add({1, {}}, nullptr, nullptr, nullptr), first.data());
  REQUIRE(queue.Redeem(first.data(), 1).ok());
  REQUIRE(queue.Take(1).size() == 1);
  both = first;
  AddMark(queue.Add({1, {}}, nullptr, nullptr, nullptr), both.data());
  CHECK(queue.Redeem(both.data(), 1).code() == Code::kFailedPrecondition);
  CHECK(queue.Take(1).empty());
  CHECK(queue.gradients() == 1);
}

TEST_CASE("equal keys of several lookups are summed in the order of the lookups") {
  // In another order float32 rounds another sum.
  const std::vector<float> gradients = {1e8f, 3.0f, -1e8f, 1.0f};
  float in_order = 0.0f;
  for (float gradient : gradients) in_order += gradient;
  std::vector<size_t> arrival = {0, 1, 2, 3};
  const Key key = 5;
  do {
    TableConfig config;
    config.dim = 1;
    config.initializer = "constant";
    config.initializer_a = config.initializer_b = 0.0;
    const auto table = Value(Table::Make(config));
    for (size_t i : arrival) {
      LookupKeys keys;
      keys.keys = &key;
      keys.n = 1;
      keys.order.lookup = i;
      table->Deposit(keys, nullptr, &gradients[i], nullptr);
    }
    CommitOptions options;
    options.rule = "sgd";
    options.hypers = {{"learning_rate", 1.0}};
    REQUIRE(table->Commit(options, SerialFor).ok());
    float row = 0.0f;
    REQUIRE(table->Lookup(&key, 1, false, &row, SerialFor).ok());
    CHECK(row == -in_order);
  } while (std::next_permutation(arrival.begin(), arrival.end()));
}

}  // namespace
}  // namespace sok
