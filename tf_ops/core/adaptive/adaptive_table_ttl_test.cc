// Tests of an adaptive table whose own rows grow old. Its clock counts the steps of the own table.
#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include "core/adaptive/test_adaptive_table.h"

namespace sok {
namespace {

constexpr uint64_t kBuckets = 4;
using Keys = std::vector<Key>;

std::unique_ptr<AdaptiveTable> MakeTable(uint32_t ttl, double blend = 0, uint64_t max_rows = 0) {
  AdaptiveConfig config = ExactConfig(kBuckets, 1);
  config.ttl = ttl;
  config.demote_blend = blend;
  config.max_rows = max_rows;
  AdaptiveRowsConfig rows;
  rows.step_clock = true;
  return MakeAdaptive(config, rows);
}

void Update(AdaptiveTable& table, Key key) {
  DepositOnes(table, Times(key, 1));
  CommitOn(table, Options("sgd"));
}

}  // namespace

TEST_CASE("a row that was not updated for the ttl goes, and lookups do not keep it") {
  const auto table = MakeTable(4);
  IdleStep(*table);                         // at 1
  Look(*table, {{1, 2, 3}, {}, {}}, true);  // made at 1
  for (int step = 2; step <= 4; ++step) {
    Update(*table, 2);
    Look(*table, {{1, 2, 3}, {}, {}}, true);
    CHECK(OwnKeys(*table) == Keys{1, 2, 3});
  }
  Update(*table, 2);  // at 5: 1 and 3 are four steps old
  CHECK(OwnKeys(*table) == Keys{2});
  CHECK(table->Stats().demoted == 2);
  CHECK(See(*table, 1) == SeeStatic(*table, 1));
  for (int step = 6; step <= 8; ++step) IdleStep(*table);
  CHECK(OwnKeys(*table) == Keys{2});
  IdleStep(*table);
  CHECK(OwnKeys(*table).empty());
}

TEST_CASE("a row stays at most a sixteenth of the ttl longer") {
  constexpr int kTtl = 64;
  const auto table = MakeTable(kTtl);
  for (Key key = 1; key <= 40; ++key) {
    Look(*table, Times(key, 1), true);
    IdleStep(*table);
  }
  for (int now = 41; now < 130; ++now) {
    IdleStep(*table);
    for (Key key : OwnKeys(*table)) CHECK(now <= static_cast<int>(key - 1) + kTtl + kTtl / 16);
    for (Key key = 1; key <= 40; ++key) {
      if (now >= static_cast<int>(key - 1) + kTtl) continue;
      const Keys keys = OwnKeys(*table);
      CHECK(std::count(keys.begin(), keys.end(), key) == 1);
    }
  }
  CHECK(table->own()->size() == 0);
}

TEST_CASE("a row that goes of age moves its static row by the blend") {
  const auto table = MakeTable(2, 0.5);
  Look(*table, Times(7, 1), true);
  Update(*table, 7);  // at 1
  IdleStep(*table, KeysOfBucket((AdaptiveBucket(7, kBuckets) + 1) % kBuckets, kBuckets, 1)[0]);
  const auto own = See(*table, 7), statics = SeeStatic(*table, 7);
  REQUIRE(own != statics);
  IdleStep(*table, KeysOfBucket((AdaptiveBucket(7, kBuckets) + 1) % kBuckets, kBuckets, 1)[0]);
  CHECK(table->own()->size() == 0);
  for (int j = 0; j < kAdaptiveDim; ++j) {
    CHECK(See(*table, 7)[j] == statics[j] + 0.5f * (own[j] - statics[j]));
  }
}

TEST_CASE("a gradient for a row that has gone of age goes to the static row") {
  const auto table = MakeTable(2);
  Look(*table, Times(7, 1), true);
  std::vector<float> given(kAnchorSize);
  DepositOnes(*table, Times(7, 1), given.data());
  for (int step = 0; step < 3; ++step) {
    std::vector<float> idle(kAnchorSize);
    DepositOn(*table, {{0}, {}, {0}}, std::vector<float>(kAdaptiveDim, 0.0f), idle.data());
    CommitOptions other = Options("sgd");
    other.redeemed = idle.data();
    CommitOn(*table, other);
  }
  REQUIRE(table->own()->size() == 0);
  const auto statics = SeeStatic(*table, 7);
  CommitOptions late = Options("sgd");
  late.redeemed = given.data();
  CommitOn(*table, late);
  CHECK(table->own()->size() == 0);
  for (int j = 0; j < kAdaptiveDim; ++j) CHECK(See(*table, 7)[j] == statics[j] - 0.5f);
}

TEST_CASE("rows that went of age leave room for as many newcomers") {
  const auto table = MakeTable(3, 0, 3);
  for (Key key : {1, 2, 3, 4}) Look(*table, Times(key, key), true);  // 1 has made room for 4
  Update(*table, 3);
  for (int step = 0; step < 2; ++step) Update(*table, 3);
  REQUIRE(OwnKeys(*table) == Keys{3});
  Look(*table, {{2, 4}, {0, 0}, {}}, true);  // their counts are high enough
  REQUIRE(OwnKeys(*table) == Keys{2, 3, 4});
  Look(*table, {{10, 11}, {}, {1, 1}}, true);
  CHECK(OwnKeys(*table) == Keys{4, 10, 11});
}

TEST_CASE("without a ttl rows stay") {
  const auto table = MakeTable(0);
  Look(*table, Times(1, 1), true);
  for (int step = 0; step < 100; ++step) IdleStep(*table);
  CHECK(OwnKeys(*table) == Keys{1});
}

}  // namespace sok
