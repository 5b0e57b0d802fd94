// Tests of an adaptive table that may have few own rows: who goes, who stays, and who is not let
// in.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/adaptive/test_adaptive_table.h"

namespace sok {
namespace {

constexpr uint64_t kBuckets = 4;

AdaptiveConfig Config(uint64_t max_rows, uint32_t promote_after = 1) {
  AdaptiveConfig config = ExactConfig(kBuckets, promote_after);
  config.max_rows = max_rows;
  return config;
}

// Looks each key up so many times, one after the other.
void Use(AdaptiveTable& table, const std::vector<std::pair<Key, size_t>>& uses) {
  for (const auto& [key, times] : uses) Look(table, Times(key, times), true);
}

using Keys = std::vector<Key>;

}  // namespace

TEST_CASE("the least used row makes room, and counts go on while a key has its row") {
  const auto table = MakeAdaptive(Config(3));
  Use(*table, {{1, 1}, {2, 1}, {3, 1}, {1, 5}, {3, 2}});
  Use(*table, {{4, 1}});
  CHECK(OwnKeys(*table) == Keys{1, 3, 4});
  Use(*table, {{4, 9}, {5, 2}});  // 3 was used more
  CHECK(OwnKeys(*table) == Keys{1, 3, 4});
  Use(*table, {{5, 1}});
  CHECK(OwnKeys(*table) == Keys{1, 4, 5});
  CHECK(table->Stats().demoted == 2);
  CHECK(table->Stats().promoted == 5);
  CHECK(table->Stats().own.max_rows == 3);
}

TEST_CASE("of rows that were used as often that of the least key goes, the highest bit counting") {
  const auto table = MakeAdaptive(Config(4));
  const Key negative = ~Key{0}, lowest = Key{1} << 63;
  Use(*table, {{lowest, 1}, {7, 1}, {negative, 1}, {8, 1}});
  Use(*table, {{9, 1}});
  CHECK(OwnKeys(*table) == Keys{8, 9, lowest, negative});
  Use(*table, {{10, 2}, {11, 2}});
  CHECK(OwnKeys(*table) == Keys{10, 11, lowest, negative});
}

TEST_CASE("rows whose counters are full stay, however often another key is used") {
  const auto table = MakeAdaptive(Config(2));
  Use(*table, {{1, 300}, {2, 300}, {3, 1000}, {4, 255}});
  CHECK(OwnKeys(*table) == Keys{1, 2});
  CHECK(table->Stats().promoted == 2);
  Look(*table, {{3}, {}, {1}}, true);  // a mask of 1 is obeyed
  CHECK(OwnKeys(*table) == Keys{2, 3});
}

TEST_CASE("rows that the batch itself uses stay, though they were used least") {
  const auto table = MakeAdaptive(Config(2));
  Use(*table, {{1, 1}, {2, 50}});
  Look(*table, {{1, 3}, {1, 50}, {}}, true);
  CHECK(OwnKeys(*table) == Keys{1, 3});
  // All rows are in use: no new key gets a row, and a mask of 1 does not help.
  Look(*table, {{3, 4, 1}, {}, {-1, 1, -1}}, true);
  CHECK(OwnKeys(*table) == Keys{1, 3});
  // A place that asks for the static row does not give the own row away either.
  Look(*table, {{3, 4, 1}, {}, {-1, 1, 0}}, true);
  CHECK(OwnKeys(*table) == Keys{1, 3});
  Look(*table, {{3, 4}, {}, {-1, 1}}, true);
  CHECK(OwnKeys(*table) == Keys{3, 4});
}

TEST_CASE("of more new keys than there is room for the most used get rows") {
  const auto table = MakeAdaptive(Config(3));
  AdaptiveBatch batch;
  for (Key key = 0; key < 100; ++key) {
    batch.keys.push_back(key);
    batch.counts.push_back(key == 40 ? 9 : key == 90 ? 8 : 1);
  }
  const auto before = Look(*table, batch, false);
  CHECK(Look(*table, batch, true, ThreadedFor) == before);
  CHECK(OwnKeys(*table) == Keys{0, 40, 90});
  CHECK(table->Stats().promoted == 3);
  CHECK(table->Stats().demoted == 0);
  // Each of the other keys has been counted.
  Use(*table, {{55, 20}});
  CHECK(OwnKeys(*table) == Keys{40, 55, 90});
}

TEST_CASE("a batch as large as the table replaces it") {
  const auto table = MakeAdaptive(Config(50));
  AdaptiveBatch first, second;
  for (Key key = 0; key < 50; ++key) first.keys.push_back(key), second.keys.push_back(100 + key);
  Look(*table, first, true);
  CHECK(table->own()->size() == 50);
  Look(*table, second, true, ThreadedFor);
  CHECK(OwnKeys(*table) == second.keys);
}

TEST_CASE("counts that were halved decide who goes") {
  AdaptiveConfig config = Config(2);
  config.decay_every = 1;
  const auto table = MakeAdaptive(config);
  Use(*table, {{1, 12}, {2, 5}});
  Use(*table, {{3, 5}});  // this makes the table know its least used rows: 2 goes
  CHECK(OwnKeys(*table) == Keys{1, 3});
  IdleStep(*table);
  IdleStep(*table);  // 1 stands at 3
  Use(*table, {{3, 5}, {4, 3}});
  CHECK(OwnKeys(*table) == Keys{3, 4});
}

TEST_CASE("decay happens in the steps that are multiples of it, and in no others") {
  AdaptiveConfig config = ExactConfig(kBuckets, 4);
  config.decay_every = 3;
  const auto table = MakeAdaptive(config);
  Look(*table, Times(1, 3), true);
  IdleStep(*table);
  CommitOn(*table, Options("sgd"));  // without gradients: no step
  IdleStep(*table);
  CHECK(table->own()->steps() == 2);
  Look(*table, Times(2, 3), true);
  const auto sketch = ContentsOf(*table).sketch;
  CommitOn(*table, Options("sgd"));
  CHECK(ContentsOf(*table).sketch == sketch);
  IdleStep(*table);  // 3 became 1
  Look(*table, {{1, 1, 2, 2}, {}, {}}, true);
  CHECK(table->own()->size() == 0);
  Look(*table, {{1, 2}, {}, {}}, true);
  CHECK(OwnKeys(*table) == Keys{1, 2});
}

TEST_CASE("a row that is taken away and made again leaves room for as many as before") {
  const auto table = MakeAdaptive(Config(3));
  Use(*table, {{1, 1}, {2, 5}, {3, 6}, {4, 3}});  // 1 has made room for 4
  REQUIRE(OwnKeys(*table) == Keys{2, 3, 4});
  for (int i = 0; i < 3; ++i) {
    const Key key = 4;
    REQUIRE(Value(table->Demote(&key, 1, SerialFor)) == 1);
    Use(*table, {{4, 0}});
    Look(*table, {{4}, {0}, {}}, true);
  }
  REQUIRE(OwnKeys(*table) == Keys{2, 3, 4});
  // Of the rows, the two that were used least go, and each of the two newcomers has its row.
  Look(*table, {{10, 11}, {}, {1, 1}}, true);
  CHECK(OwnKeys(*table) == Keys{3, 10, 11});
}

TEST_CASE("a row taken away is not taken for one that could make room") {
  const auto table = MakeAdaptive(Config(3));
  Use(*table, {{1, 1}, {2, 5}, {3, 6}, {4, 3}});
  const std::vector<Key> keys = {4};
  REQUIRE(Value(table->Demote(keys.data(), 1, SerialFor)) == 1);
  Look(*table, {{10, 11}, {7, 7}, {}}, true);
  CHECK(OwnKeys(*table) == Keys{3, 10, 11});
  CHECK(table->Stats().demoted == 3);
}

TEST_CASE("the static row moves by the blend, of several keys in order of the keys") {
  AdaptiveConfig config = Config(0);
  config.demote_blend = 0.25;
  const auto table = MakeAdaptive(config);
  const std::vector<Key> keys = KeysOfBucket(2, kBuckets, 3);
  Look(*table, {keys, {}, {}}, true);
  std::vector<float> gradients;
  for (float g : {1.0f, -2.0f, 4.0f}) gradients.insert(gradients.end(), kAdaptiveDim, g);
  DepositOn(*table, {keys, {}, {}}, gradients);
  CommitOn(*table, Options("sgd"));
  auto expected = SeeStatic(*table, keys[0]);
  const auto untouched = SeeStatic(*table, KeysOfBucket(1, kBuckets, 1)[0]);
  for (Key key : keys) {
    const auto own = See(*table, key);
    for (int j = 0; j < kAdaptiveDim; ++j) expected[j] += 0.25f * (own[j] - expected[j]);
  }
  const std::vector<Key> backwards = {keys[2], keys[0], keys[1], keys[0]};
  CHECK(Value(table->Demote(backwards.data(), 4, ThreadedFor)) == 3);
  CHECK(SeeStatic(*table, keys[0]) == expected);
  for (Key key : keys) CHECK(See(*table, key) == expected);
  CHECK(SeeStatic(*table, KeysOfBucket(1, kBuckets, 1)[0]) == untouched);
}

TEST_CASE("a blend of 1 makes the static row that of the key, and 0 leaves it") {
  for (const double blend : {0.0, 1.0}) {
    AdaptiveConfig config = Config(0);
    config.demote_blend = blend;
    const auto table = MakeAdaptive(config);
    const Key key = 5;
    Look(*table, Times(key, 1), true);
    DepositOnes(*table, {{key}, {}, {}});
    CommitOn(*table, Options("sgd", 0.125));
    const auto statics = SeeStatic(*table, key), own = See(*table, key);
    REQUIRE(Value(table->Demote(&key, 1, SerialFor)) == 1);
    for (int j = 0; j < kAdaptiveDim; ++j) {
      CHECK(See(*table, key)[j] == doctest::Approx(blend == 0 ? statics[j] : own[j]));
    }
  }
}

}  // namespace sok
