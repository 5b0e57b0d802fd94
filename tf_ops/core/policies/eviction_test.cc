#include "core/policies/eviction.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "core/base/test_result.h"

namespace sok {

TEST_CASE("the registry makes every kind, and names them where it does not know one") {
  for (const char* kind : {"lru", "lfu", "max_age", "min_norm"}) {
    const EvictionConfig config{kind, 5, 0.5f, 7};
    const auto policy = Value(MakeEviction(config));
    CHECK(policy->config().kind == kind);
    CHECK(SameEviction(policy->config(), config));
    CHECK(policy->needs_full_table() == (kind[0] == 'l'));
  }
  const Status unknown = MakeEviction({"mru"}).status();
  CHECK(unknown.code() == Code::kInvalidArgument);
  CHECK(unknown.message() ==
        "Expected an eviction kind of lru, lfu, max_age, min_norm. Received: \"mru\".");
}

TEST_CASE("a kind refuses numbers out of their range, and does not look at those of others") {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  CHECK(MakeEviction({"lru", 0, -1.0f, 0}).ok());
  CHECK_FALSE(MakeEviction({"max_age", 0, 1.0f, 1}).ok());
  for (const float l2 : {0.0f, -1.0f, kNan}) CHECK_FALSE(MakeEviction({"min_norm", 1, l2, 1}).ok());
  CHECK_FALSE(MakeEviction({"min_norm", 1, 1.0f, 0}).ok());
  CHECK(SameEviction({"lru", 1, 2.0f, 3}, {"lru", 4, 5.0f, 6}));
  CHECK_FALSE(SameEviction({"max_age", 1}, {"max_age", 2}));
  CHECK_FALSE(SameEviction({"min_norm", 0, 1.0f, 3}, {"min_norm", 0, 1.0f, 4}));
}

TEST_CASE("ranks order rows by their counters, and a time ahead of the clock counts as now") {
  const auto lru = Value(MakeEviction({"lru"})), lfu = Value(MakeEviction({"lfu"}));
  const auto rank = [](const Eviction& policy, RowMeta meta) {
    return policy.Rank(meta, nullptr, 0, /*now=*/100);
  };
  CHECK(rank(*lru, {9, 10}) < rank(*lru, {1, 11}));
  CHECK(rank(*lfu, {9, 10}) > rank(*lfu, {1, 11}));
  CHECK(rank(*lfu, {1, 10}) < rank(*lfu, {1, 11}));
  for (Eviction* policy : {lru.get(), lfu.get()}) {
    CHECK(rank(*policy, {1, 101}) == rank(*policy, {1, 100}));
    CHECK(rank(*policy, {1, 1}) < policy->Limit(100));
    CHECK_FALSE(policy->Due(1, 100));
  }
}

TEST_CASE("max_age names rows of that age, and is due at first and a sixteenth of it later") {
  const auto policy = Value(MakeEviction({"max_age", 32}));
  const auto goes = [&](uint32_t time, uint32_t now) {
    return policy->Rank({0, time}, nullptr, 0, now) < policy->Limit(now);
  };
  CHECK(goes(10, 42));
  CHECK_FALSE(goes(10, 41));
  CHECK_FALSE(goes(0, 31));
  CHECK(goes(0, 32));
  CHECK(policy->Due(1, 5));  // the time of the last look of the process before is unknown
  policy->Passed(5);
  CHECK_FALSE(policy->Due(2, 6));
  CHECK(policy->Due(3, 7));
  CHECK(policy->Due(3, 7));  // until it was done
  policy->Passed(7);
  CHECK_FALSE(policy->Due(4, 8));
  CHECK(policy->Due(5, 6));  // the clock was set back
}

TEST_CASE("min_norm names rows of a smaller norm, and none whose norm is not a number") {
  const auto policy = Value(MakeEviction({"min_norm", 0, 5.0f, 3}));
  const auto goes = [&](float a, float b) {
    const float row[] = {a, b};
    return policy->Rank({0, 0}, row, 2, 0) < policy->Limit(0);
  };
  CHECK(goes(0, 0));
  CHECK(goes(3, -3.99f));
  CHECK_FALSE(goes(3, 4));
  CHECK_FALSE(goes(1e30f, 1e30f));
  CHECK_FALSE(goes(-std::numeric_limits<float>::quiet_NaN(), 0));
  CHECK_FALSE(goes(std::numeric_limits<float>::infinity(), 0));
  CHECK((!policy->Due(0, 0) && !policy->Due(2, 0) && policy->Due(3, 0) && !policy->Due(4, 0)));
}

}  // namespace sok
