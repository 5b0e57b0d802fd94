// Deposits come in any order, and are summed in one.
#include "core/tables/deposit_queue.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/test_result.h"
#include "core/base/test_threads.h"
#include "core/tables/table.h"

namespace sok {
namespace {

// A deposit of a few numbers.
struct Numbered {
  size_t n = 1;
  DepositOrder order = {};
  std::vector<double> gradient = {1.0};

  double Dot(const Numbered& other) const {
    return std::inner_product(gradient.begin(), gradient.end(), other.gradient.begin(), 0.0);
  }
  double square() const { return Dot(*this); }
};

double NormOf(const std::vector<float>& gradient) {
  double square = 0.0;
  for (float x : gradient) square += static_cast<float>(x * x);
  return std::sqrt(square);
}

TEST_CASE("deposits are taken in the order of calls, of lookups and of gradients") {
  DepositQueue<Numbered> queue;
  const std::vector<DepositOrder> orders = {{0, 2, 0}, {0, 1, 7}, {1, 1, 0}, {0, 1, 3}, {1, 0, 9}};
  for (const DepositOrder& order : orders) queue.Add({1, order}, nullptr, nullptr, nullptr);
  const auto taken = queue.TakeAll();
  REQUIRE(taken.size() == orders.size());
  for (size_t i = 1; i < taken.size(); ++i) CHECK(taken[i - 1].keys.order < taken[i].keys.order);
  CHECK(taken[0].keys.order.gradient == 3);
  CHECK(queue.gradients() == 0);
}

TEST_CASE("deposits of one place stay as they came") {
  DepositQueue<Numbered> queue;
  for (size_t n = 1; n <= 20; ++n) queue.Add({n, {}}, nullptr, nullptr, nullptr);
  const auto taken = queue.TakeAll();
  for (size_t n = 1; n <= 20; ++n) CHECK(taken[n - 1].keys.n == n);
}

TEST_CASE("what reaches an optimizer names its deposits, each by its factor") {
  const uint32_t seed = 5;
  CAPTURE(seed);
  std::mt19937 random(seed);
  DepositQueue<Numbered> queue;
  std::map<uint64_t, std::vector<float>> gradients;  // of the anchor, by ticket
  std::map<uint64_t, int> waiting;  // tickets, and the commits that have missed them
  for (int step = 0; step < 2000; ++step) {
    for (int i = random() % 4; i > 0; --i) {
      std::vector<float> gradient(kAnchorSize);
      const uint64_t ticket = queue.Add({}, nullptr, nullptr, nullptr, gradient.data());
      gradients[ticket] = gradient;
      waiting[ticket] = 0;
    }
    // At most one of each place, as none of them is asked for twice.
    std::map<int, uint64_t> chosen;
    for (const auto& [ticket, missed] : waiting) {
      const std::vector<float>& gradient = gradients.at(ticket);
      const auto place = std::find_if(gradient.begin(), gradient.end(), [](float x) { return x; });
      if (random() % 3 == 0) chosen[static_cast<int>(place - gradient.begin())] = ticket;
    }
    std::vector<float> arrived(kAnchorSize);
    std::map<uint64_t, float> factors;
    for (const auto& [place, ticket] : chosen) {
      const std::vector<float>& gradient = gradients.at(ticket);
      const float factor = factors[ticket] = static_cast<float>(random() % 2000) / 7.0f - 100.0f;
      for (int i = 0; i < kAnchorSize; ++i) arrived[i] += factor * gradient[i];
      if (factor == 0.0f) factors.erase(ticket);
    }
    const auto taken = Value(queue.Redeem(arrived.data(), true));
    REQUIRE(taken.size() == factors.size());
    for (const auto& deposit : taken) {
      CHECK(deposit.factor == doctest::Approx(factors.at(deposit.ticket.number)).epsilon(1e-6));
      waiting.erase(deposit.ticket.number);
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
  queue.Add({}, nullptr, nullptr, nullptr, first.data());
  REQUIRE(Value(queue.Redeem(first.data(), true)).size() == 1);
  both = first;
  queue.Add({}, nullptr, nullptr, nullptr, both.data());
  const Status status = queue.Redeem(first.data(), true).status();
  CHECK(status.message().find("no optimizer was given before") != std::string::npos);
  CHECK(queue.Redeem(both.data(), true).status().code() == Code::kFailedPrecondition);
  CHECK(queue.gradients() == 1);
}

TEST_CASE("any sum of gradients has the norm that the rows' gradients have") {
  const uint32_t seed = 11;
  CAPTURE(seed);
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  for (int repeat = 0; repeat < 300; ++repeat) {
    DepositQueue<Numbered> queue;
    // Some of what earlier steps left waits as well.
    const size_t count = 1 + random() % kCoordinates, length = 1 + random() % 100;
    const size_t missed = random() % 2 == 0 ? random() % count : 0;
    std::vector<std::vector<float>> anchors;
    std::vector<std::vector<double>> deposited;
    for (size_t i = 0; i < count; ++i) {
      Numbered own{1, {}, std::vector<double>(length)};
      // Some are 0, some a multiple of another, some nearly so.
      const int kind = random() % 6;
      if (kind > 1 || (kind == 1 && i == 0)) {
        for (double& x : own.gradient) x = normal(random);
      } else if (kind == 1) {
        own.gradient = deposited[random() % i];
        for (double& x : own.gradient) x *= -2.0;
        if (random() % 2 == 0)
          own.gradient[random() % length] += std::pow(10.0, -static_cast<double>(random() % 9));
      }
      if (i == missed) {
        const std::vector<float> nothing(kAnchorSize);
        REQUIRE(queue.Redeem(nothing.data(), true).ok());
      }
      deposited.push_back(own.gradient);
      anchors.emplace_back(kAnchorSize);
      queue.Add(own, nullptr, nullptr, nullptr, anchors.back().data());
    }
    for (int sum = 0; sum < 5; ++sum) {
      std::vector<float> arrived(kAnchorSize);
      std::vector<double> expected(length);
      double parts = 0.0;
      for (size_t i = 0; i < count; ++i) {
        const float factor = random() % 3 == 0 ? 0.0f : static_cast<float>(normal(random));
        for (int j = 0; j < kAnchorSize; ++j) arrived[j] += factor * anchors[i][j];
        for (size_t j = 0; j < length; ++j) expected[j] += factor * deposited[i][j];
        parts += std::abs(factor) * NormOf(anchors[i]);
      }
      double square = 0.0;
      for (double x : expected) square += x * x;
      // Each part is rounded to float32. Gradients of 0 have marks of about 2^-54 of a norm here.
      CHECK(std::abs(NormOf(arrived) - std::sqrt(square)) <= 1e-6 * parts + 1e-13);
    }
  }
}

// Deposits of random gradients, and what their anchor's gradients are.
struct Deposited {
  explicit Deposited(uint32_t seed) : random(seed) {}

  void Add(DepositQueue<Numbered>* queue) {
    Numbered own{1, {}, std::vector<double>(200)};
    for (double& x : own.gradient) x = 0.1 + normal(random);
    gradients.push_back(own.gradient);
    anchors.emplace_back(kAnchorSize);
    queue->Add(own, nullptr, nullptr, nullptr, anchors.back().data());
  }

  // The sum of what anchors are given for some deposits, and the norm of those.
  std::pair<std::vector<float>, double> SumOf(const std::map<size_t, float>& factors) const {
    std::vector<float> arrived(kAnchorSize);
    std::vector<double> sum(200);
    for (const auto& [i, factor] : factors) {
      for (int j = 0; j < kAnchorSize; ++j) arrived[j] += factor * anchors[i][j];
      for (size_t j = 0; j < sum.size(); ++j) sum[j] += factor * gradients[i][j];
    }
    return {arrived, std::sqrt(std::inner_product(sum.begin(), sum.end(), sum.begin(), 0.0))};
  }

  std::mt19937 random;
  std::normal_distribution<double> normal;
  std::vector<std::vector<double>> gradients;
  std::vector<std::vector<float>> anchors;
};

TEST_CASE("beyond as many gradients as there are coordinates") {
  DepositQueue<Numbered> queue;
  Deposited deposited(12);
  const size_t count = 3 * kCoordinates;
  std::map<size_t, float> all;
  for (size_t i = 0; i < count; ++i) {
    deposited.Add(&queue);
    all[i] = 1.0f;
    // Each alone, all so far, and the last ones in any sum have their norms.
    std::map<size_t, float> last;
    for (size_t j = 0; j < 20 && j <= i; ++j) last[i - j] = 1.0f - 0.1f * static_cast<float>(j);
    for (const auto& factors : {std::map<size_t, float>{{i, -2.0f}}, all, last}) {
      const auto [arrived, norm] = deposited.SumOf(factors);
      CHECK(NormOf(arrived) == doctest::Approx(norm).epsilon(1e-5));
    }
  }

  SUBCASE("all of them") {
    CHECK(Value(queue.Redeem(deposited.SumOf(all).first.data(), true)).size() == count);
  }
  SUBCASE("the first ones") {
    while (all.size() > kPlaces) all.erase(std::prev(all.end()));
    CHECK(Value(queue.Redeem(deposited.SumOf(all).first.data(), true)).size() == kPlaces);
  }
  SUBCASE("the last ones") {
    while (all.size() > 30) all.erase(all.begin());
    CHECK(Value(queue.Redeem(deposited.SumOf(all).first.data(), true)).size() == 30);
  }
  SUBCASE("a norm that is wrong is told, and nothing is redeemed then") {
    // Two that did not find room beside each other.
    const auto [arrived, norm] = deposited.SumOf({{70, 1.0f}, {180, 1.0f}});
    REQUIRE(NormOf(arrived) != doctest::Approx(norm).epsilon(1e-3));
    CHECK(queue.Redeem(arrived.data(), true).status().code() == Code::kFailedPrecondition);
    CHECK(queue.gradients() == count);
  }
  SUBCASE("skipped ones of earlier steps do not matter") {
    const std::vector<float> nothing(kAnchorSize);
    REQUIRE(queue.Redeem(nothing.data(), true).ok());
    Deposited later(13);
    for (int step = 0; step < 3; ++step) {
      std::map<size_t, float> factors;
      for (int i = 0; i < 40; ++i) {
        factors[later.anchors.size()] = static_cast<float>(i) - 7.5f;
        later.Add(&queue);
      }
      const auto [arrived, norm] = later.SumOf(factors);
      CHECK(NormOf(arrived) == doctest::Approx(norm).epsilon(1e-5));
      CHECK(Value(queue.Redeem(arrived.data(), true)).size() == 40);
    }
  }
}

TEST_CASE("many gradients of few rows have the norm of their sum") {
  for (size_t length : {1, 8, 28, 60, 63, 64, 70}) {
    CAPTURE(length);
    DepositQueue<Numbered> queue;
    std::mt19937 random(14);
    std::normal_distribution<double> normal;
    std::vector<float> arrived(kAnchorSize);
    std::vector<double> sum(length);
    const int count = LongTests() ? 600 : 200;
    for (int i = 0; i < count; ++i) {
      Numbered own{1, {}, std::vector<double>(length)};
      for (size_t j = 0; j < length; ++j) sum[j] += own.gradient[j] = 0.1 + normal(random);
      queue.Add(own, nullptr, nullptr, nullptr, arrived.data());
      const double norm = std::sqrt(std::inner_product(sum.begin(), sum.end(), sum.begin(), 0.0));
      REQUIRE(NormOf(arrived) == doctest::Approx(norm).epsilon(2e-5));
    }
    // Places have several of them, so the factors differ by rounding.
    for (float& x : arrived) x *= 1.0f / static_cast<float>(count);
    CHECK(Value(queue.Redeem(arrived.data(), true)).size() == count);
  }
}

TEST_CASE("an infinite gradient that was divided by its norm is told") {
  DepositQueue<Numbered> queue;
  std::vector<float> arrived(kAnchorSize);
  queue.Add({1, {}, {HUGE_VAL}}, nullptr, nullptr, nullptr, arrived.data());
  for (float& x : arrived) x /= HUGE_VALF;
  CHECK(queue.Redeem(arrived.data(), true).status().code() == Code::kFailedPrecondition);
}

TEST_CASE("tickets of a place are told apart") {
  std::set<float> weights;
  for (uint64_t i = 0; i < kWeights; ++i) weights.insert(WeightOf(7 + i));
  CHECK(weights.size() == kWeights);
  CHECK(*weights.begin() > 1.0f);
  CHECK(*weights.rbegin() < 2.0f);
}

TEST_CASE("a gradient that another queue has named is not taken for one that waits") {
  int refused = 0;
  for (int pair = 0; pair < 8; ++pair) {
    DepositQueue<Numbered> before, queue;
    std::vector<float> arrived(kAnchorSize);
    before.Add({1, {}, {3.0}}, nullptr, nullptr, nullptr, arrived.data());
    // The first ticket of each queue has the same place.
    queue.Add({1, {}, {3.0}}, nullptr, nullptr, nullptr, arrived.data());
    refused += queue.Redeem(arrived.data(), true).status().code() == Code::kFailedPrecondition;
  }
  CHECK(refused >= 7);  // of 65,536 queues two may begin with one weight
}

TEST_CASE("after gradients have moved to other rows, the next sum has the norm of what they are") {
  std::mt19937 random(4);
  std::normal_distribution<double> normal;
  for (int round = 0; round < 200; ++round) {
    CAPTURE(round);
    DepositQueue<Numbered> queue;
    std::vector<float> arrived(kAnchorSize);
    std::vector<double> sum(6, 0.0);
    const int calls = 2 + round % 5;
    for (int call = 0; call < calls; ++call) {
      if (call > 0 && (round + call) % 3 != 0) {
        sum.assign(6, 0.0);
        queue.Restated([&](auto* deposit) {
          const bool moves = (random() & 1) != 0;
          for (double& x : deposit->keys.gradient) x = moves ? normal(random) : x;
          for (size_t i = 0; i < sum.size(); ++i) sum[i] += deposit->keys.gradient[i];
          return moves;
        });
      }
      std::vector<double> gradient(6);
      // Some are 0, and so have no length that could make up for a sum that has grown.
      for (double& x : gradient) x = (round + call) % 4 == 0 ? 0.0 : normal(random);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += gradient[i];
      queue.Add({1, {}, gradient}, nullptr, nullptr, nullptr, arrived.data());
    }
    const double norm = std::sqrt(std::inner_product(sum.begin(), sum.end(), sum.begin(), 0.0));
    CHECK(std::abs(NormOf(arrived) - norm) <= 1e-5 * calls);  // of sums that are rounded to float32
    for (float& x : arrived) x /= static_cast<float>(calls);
    CHECK(Value(queue.Redeem(arrived.data(), true)).size() == static_cast<size_t>(calls));
  }
}

TEST_CASE("a gradient that moves and is not applied leaves the norms of others as they are") {
  DepositQueue<Numbered> queue;
  std::vector<float> unused(kAnchorSize), arrived(kAnchorSize);
  queue.Add({1, {}, {1.0, 2.0, 0.0}}, nullptr, nullptr, nullptr, unused.data());
  queue.Restated([](auto* deposit) {
    deposit->keys.gradient = {0.0, 0.0, 2.0};
    return true;
  });
  queue.Add({1, {}, {1.0, 1.0, 0.0}}, nullptr, nullptr, nullptr, arrived.data());
  queue.Add({1, {}, {1.0, -2.0, 2.0}}, nullptr, nullptr, nullptr, arrived.data());
  CHECK(NormOf(arrived) == doctest::Approx(3.0).epsilon(1e-6));
  CHECK(Value(queue.Redeem(arrived.data(), true)).size() == 2);
}

TEST_CASE("factors of every size are told") {
  DepositQueue<Numbered> queue;
  for (double norm : {1e-6, 1.0, 1e6}) {
    for (int scale = -40; scale <= 126; ++scale) {
      CAPTURE(norm);
      CAPTURE(scale);
      // A loss scale multiplies gradients before they are deposited, and divides them behind it.
      if (norm * std::ldexp(1.0, scale) > FLT_MAX) continue;
      std::vector<float> arrived(kAnchorSize);
      queue.Add({1, {}, {norm * std::ldexp(1.0, scale)}}, nullptr, nullptr, nullptr,
                arrived.data());
      for (float& x : arrived) x = std::ldexp(x, -scale);
      CHECK(NormOf(arrived) == doctest::Approx(norm).epsilon(1e-6));
      for (float x : arrived) REQUIRE((x == 0.0f || std::isnormal(x)));
      const auto taken = Value(queue.Redeem(arrived.data(), true, /*clipped_to=*/1e6f));
      REQUIRE(taken.size() == 1);
      CHECK(taken[0].factor == std::ldexp(1.0, -scale));
    }
  }
}

TEST_CASE("factors are told where nobody reads the norm") {
  DepositQueue<Numbered> queue;
  for (float factor : {1e-37f, 1e-18f, 0.3f, 1e12f}) {
    std::vector<float> arrived(kAnchorSize);
    queue.Add({}, nullptr, nullptr, nullptr, arrived.data(), /*needs_norm=*/false);
    for (float& x : arrived) x *= factor;
    const auto taken = Value(queue.Redeem(arrived.data(), true));
    REQUIRE(taken.size() == 1);
    CHECK(taken[0].factor == doctest::Approx(factor).epsilon(1e-6));
  }
}

TEST_CASE("gradients that are next to nothing redeem nothing") {
  DepositQueue<Numbered> queue;
  std::vector<float> arrived(kAnchorSize);
  queue.Add({}, nullptr, nullptr, nullptr, arrived.data());
  for (float& x : arrived) x *= 0x1p-100f;
  for (float& x : arrived) x = std::isnormal(x) ? x : 0.0f;
  CHECK(Value(queue.Redeem(arrived.data(), true)).empty());
  CHECK(queue.gradients() == 1);
}

TEST_CASE("marks of different size are told apart at places of their own") {
  DepositQueue<Numbered> queue;
  std::vector<std::vector<float>> anchors;
  const auto norm_of = [](int i) { return i % 2 == 0 ? 1.0 : 1e-12; };
  for (int i = 0; i < 3 * kPlaces; ++i) {
    anchors.emplace_back(kAnchorSize);
    queue.Add({1, {}, {norm_of(i)}}, nullptr, nullptr, nullptr, anchors.back().data());
  }
  for (int chosen : {101, 100, 7, 6}) {
    const auto taken = Value(queue.Redeem(anchors[chosen].data(), true));
    REQUIRE(taken.size() == 1);
    CHECK(taken[0].ticket.number == static_cast<uint64_t>(chosen + 1));
    CHECK(taken[0].factor == 1.0);
  }
}

TEST_CASE("any number of gradients is accumulated whose norms lie at the border of two marks") {
  std::mt19937_64 rng(7);
  std::normal_distribution<double> noise;
  for (int window : {kPlaces, kPlaces + 1, 2 * kPlaces, 8 * kPlaces}) {
    CAPTURE(window);
    DepositQueue<Numbered> queue;
    for (int round = 0; round < 20; ++round) {
      std::vector<float> mean(kAnchorSize);
      for (int i = 0; i < window; ++i) {
        const double norm =
            round % 2 == 0 ? 0.9 * std::exp(0.25 * noise(rng)) : (i < window / 2 ? 0.6 : 0.4);
        std::vector<float> anchor(kAnchorSize);
        queue.Add({1, {}, {norm}}, nullptr, nullptr, nullptr, anchor.data());
        for (int j = 0; j < kAnchorSize; ++j) mean[j] += anchor[j];
      }
      for (float& x : mean) x /= static_cast<float>(window);
      const auto taken = queue.Redeem(mean.data(), true);
      REQUIRE(taken.status().message() == "");
      CHECK(taken.value().size() == static_cast<size_t>(window));
    }
  }
}

TEST_CASE("where a mark may be lost beside a larger one, nothing is redeemed") {
  DepositQueue<Numbered> queue;
  std::vector<float> first(kAnchorSize), unused(kAnchorSize);
  for (int i = 0; i < kPlaces; ++i) {
    queue.Add({1, {}, {1.0}}, nullptr, nullptr, nullptr, i == 0 ? first.data() : unused.data());
  }
  queue.Add({1, {}, {1e-15}}, nullptr, nullptr, nullptr, unused.data());
  // The small one may be meant, too.
  const Status status = queue.Redeem(first.data(), true).status();
  CHECK(status.code() == Code::kFailedPrecondition);
  CHECK(status.message().find("share a place") != std::string::npos);
  CHECK(queue.gradients() == kPlaces + 1);
}

TEST_CASE("a gradient that is not finite makes the anchor's not finite") {
  for (double wrong : {std::nan(""), HUGE_VAL}) {
    DepositQueue<Numbered> queue;
    std::vector<float> first(kAnchorSize), second(kAnchorSize);
    queue.Add({1, {}, {wrong}}, nullptr, nullptr, nullptr, first.data());
    CHECK_FALSE(std::isfinite(NormOf(first)));
    queue.Add({1, {}, {2.0}}, nullptr, nullptr, nullptr, second.data());
    CHECK(NormOf(second) == 2.0);
    REQUIRE(Value(queue.Redeem(first.data(), true)).size() == 1);
    REQUIRE(Value(queue.Redeem(second.data(), true)).size() == 1);
  }
}

TEST_CASE("gradients whose elements were changed one by one are refused") {
  DepositQueue<Numbered> queue;
  std::vector<float> arrived(kAnchorSize);
  queue.Add({1, {}, {3.0, 4.0}}, nullptr, nullptr, nullptr, arrived.data());
  std::vector<float> clipped = arrived, without_marks = arrived;
  for (float& x : clipped) x = std::min(x, 1.0f);
  std::fill(without_marks.begin(), without_marks.begin() + 2 * kPlaces, 0.0f);
  for (const auto& changed : {clipped, without_marks}) {
    CHECK(queue.Redeem(changed.data(), true).status().code() == Code::kFailedPrecondition);
    CHECK(queue.gradients() == 1);
  }
  CHECK_FALSE(queue.Redeem(clipped.data(), true, /*clipped_to=*/1.1f).ok());
  std::mt19937 random(15);
  std::normal_distribution<float> normal;
  std::vector<float> noisy = arrived, centered = arrived, signs = arrived;
  const float mean = std::accumulate(arrived.begin(), arrived.end(), 0.0f) / kAnchorSize;
  for (float& x : noisy) x += 1e-3f * normal(random);
  for (float& x : centered) x -= mean;
  for (float& x : signs) x = x == 0.0f ? 0.0f : std::copysign(1.0f, x);
  for (const auto& changed : {clipped, without_marks, noisy, centered, signs}) {
    const Status status = queue.Redeem(changed.data(), true).status();
    CHECK(status.message().find("changed one by one") != std::string::npos);
    CHECK(status.message().find("Change gradients of dense weights alone") != std::string::npos);
    CHECK(queue.gradients() == 1);
  }
  std::vector<float> clipped_by_optimizer = arrived;
  for (float& x : clipped_by_optimizer) x = std::clamp(x, -1.1f, 1.1f);
  SUBCASE("by nobody knows whom") {
    CHECK(Value(queue.Redeem(clipped.data(), /*plain=*/false)).size() == 1);
  }
  SUBCASE("by the optimizer") {
    CHECK(Value(queue.Redeem(clipped_by_optimizer.data(), true, 1.1f)).size() == 1);
  }
}

TEST_CASE("equal keys of several lookups are summed in the order of the lookups") {
  // In another order float32 rounds another sum.
  const std::vector<float> gradients = {1e8f, 3.0f, -1e8f, 1.0f};
  float in_order = 0.0f;
  for (float gradient : gradients) in_order += gradient;
  std::vector<size_t> arrival = {0, 1, 2, 3};
  const Key key = 5;
  do {
    TableSpec config;
    config.dim = 1;
    config.initializer = "constant";
    config.initializer_a = config.initializer_b = 0.0;
    const auto table = Value(Table::Make(config));
    for (size_t i : arrival) {
      LookupKeys keys;
      keys.keys = &key;
      keys.n = 1;
      keys.order.lookup = i;
      REQUIRE(table->Deposit(keys, nullptr, &gradients[i], nullptr).ok());
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
