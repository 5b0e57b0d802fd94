// Tests of AdaptiveTable::Lookup: which keys are counted, which get a row and when, and the output.
#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "core/adaptive/test_adaptive_table.h"
#include "core/base/bfloat16.h"

namespace sok {
namespace {

constexpr uint64_t kBuckets = 6;

std::unique_ptr<AdaptiveTable> MakeTable(uint32_t promote_after) {
  return MakeAdaptive(ExactConfig(kBuckets, promote_after));
}

// Trains the static row of a key, so that it is not what the initializer made.
void TrainStatic(AdaptiveTable& table, Key key) {
  DepositOnes(table, {{key}, {}, {0}});
  CommitOn(table, Options("sgd"));
}

std::vector<float> Repeated(const std::vector<float>& row, size_t times) {
  std::vector<float> rows;
  for (; times > 0; --times) rows.insert(rows.end(), row.begin(), row.end());
  return rows;
}

void CheckRefused(const AdaptiveConfig& config, const std::string& part) {
  const auto table = TryAdaptive(config);
  REQUIRE_FALSE(table.ok());
  CHECK(table.status().code() == Code::kInvalidArgument);
  INFO("message: ", table.status().message());
  CHECK(table.status().message().find(part) != std::string::npos);
}

}  // namespace

TEST_CASE("an adaptive table that cannot be is refused with the reason") {
  AdaptiveConfig config = ExactConfig(kBuckets, 0);
  CheckRefused(config, "promote_after in [1, 255]");
  config.promote_after = 256;
  CheckRefused(config, "got 256");
  config.counter_bits = 16;
  CHECK(TryAdaptive(config).ok());
  config.promote_after = 65536;
  CheckRefused(config, "65535");
  config = ExactConfig(kBuckets, 2);
  config.counter_bits = 4;
  CheckRefused(config, "8 or 16 bits");
  config = ExactConfig(kBuckets, 2);
  for (double blend : {-0.1, 1.1, std::numeric_limits<double>::quiet_NaN()}) {
    config.demote_blend = blend;
    CheckRefused(config, "demote_blend in [0, 1]");
  }
  config = ExactConfig(kBuckets, 2);
  config.owners = 0;
  TableSpec rows;
  rows.dim = 2;
  const auto make = [&](TableSpec other) {
    return AdaptiveTable::Make(Value(Table::Make(rows)), Value(Table::Make(other)), config);
  };
  CHECK(make(rows).status().code() == Code::kInvalidArgument);
  config.owners = 1;
  config.owner = 1;
  CHECK(make(rows).status().code() == Code::kInvalidArgument);
  config.owner = 0;
  config.static_buckets = 0;
  CHECK(make(rows).status().code() == Code::kInvalidArgument);
  config.static_buckets = 4;
  TableSpec wider = rows;
  wider.dim = 3;
  CHECK(make(wider).status().message().find("one dim") != std::string::npos);
}

TEST_CASE("a key gets its row in the lookup in which its count reaches promote_after") {
  for (uint32_t k : {1, 2, 3, 255}) {
    CAPTURE(k);
    const auto table = MakeTable(k);
    for (uint32_t seen = 1; seen <= k; ++seen) {
      CHECK(table->own()->size() == 0);
      Look(*table, Times(9, 1), true);
    }
    CHECK(OwnKeys(*table) == std::vector<Key>{9});
  }
}

TEST_CASE("every occurrence in a batch counts, and counts multiply it") {
  const auto table = MakeTable(6);
  Look(*table, {{1, 2, 1, 1, 2}, {}, {}}, true);
  Look(*table, {{1, 2, 1}, {2, 3, 0}, {}}, true);
  CHECK(table->own()->size() == 0);
  Look(*table, {{1, 2}, {1, 0}, {}}, true);
  CHECK(OwnKeys(*table) == std::vector<Key>{1});
  Look(*table, {{2}, {1}, {}}, true);
  CHECK(OwnKeys(*table) == std::vector<Key>{1, 2});
}

TEST_CASE("a count of any size saturates and does not wrap") {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  for (const auto& counts : std::vector<std::vector<int64_t>>{
           {int64_t{1} << 32}, {int64_t{1} << 40, 1}, {kMost}, {kMost, kMost, 2}}) {
    const auto table = MakeTable(255);
    Look(*table, {std::vector<Key>(counts.size(), 3), counts, {}}, true);
    CHECK(OwnKeys(*table) == std::vector<Key>{3});
  }
}

TEST_CASE("a new row is its static row, bit for bit, and the lookup that makes it reads that") {
  for (const ParallelFor& parallel_for : {ParallelFor(SerialFor), ParallelFor(ThreadedFor)}) {
    const auto table = MakeTable(2);
    for (Key key = 0; key < 50; ++key) TrainStatic(*table, key);
    for (Key key = 0; key < 50; ++key) {
      const auto statics = SeeStatic(*table, key);
      CHECK(Look(*table, Times(key, 2), true, parallel_for) == Repeated(statics, 2));
      CHECK(table->own()->size() == key + 1);
      CHECK(See(*table, key) == statics);
    }
  }
}

TEST_CASE("a large batch of many keys that are new at once gets all its rows") {
  constexpr Key kKeys = 20000;
  AdaptiveConfig config;
  config.static_buckets = 101;
  config.promote_after = 1;
  config.sketch_capacity = 10;  // far too few counters, and yet no count is too low
  const auto table = MakeAdaptive(config);
  AdaptiveBatch batch;
  for (Key i = 0; i < 3 * kKeys; ++i) batch.keys.push_back(i * 7 % kKeys);
  const auto before = Look(*table, batch, false);
  CHECK(Look(*table, batch, true, ThreadedFor) == before);
  CHECK(table->own()->size() == kKeys);
  CHECK(table->statics()->size() == 101);
  CHECK(Look(*table, batch, false, ThreadedFor) == before);
  CHECK(table->Stats().promoted == kKeys);
}

TEST_CASE("a lookup that is not for training changes nothing, whatever its mask and counts") {
  const auto table = MakeTable(1);
  Look(*table, {{1}, {}, {}}, true);
  TrainStatic(*table, 2);
  const AdaptiveState before = ContentsOf(*table);
  const AdaptiveStats stats = table->Stats();
  for (int i = 0; i < 3; ++i) {
    Look(*table, {{1, 2, 3, 3}, {}, {}}, false);
    Look(*table, {{1, 2, 3, 3}, {100, 100, 0, 1}, {1, 1, 1, -1}}, false);
    Look(*table, {{1, 2, 3, 3}, {}, {0, 0, 0, 0}}, false, ThreadedFor);
  }
  CHECK(Same(ContentsOf(*table), before));
  CHECK(table->Stats().lookups == stats.lookups);
  CHECK(table->Stats().statics.rows == stats.statics.rows);
  CHECK(table->Stats().promoted == 1);
}

TEST_CASE("a mask of 1 makes a row at once, one of 0 never, and one of -1 by the count") {
  const auto table = MakeTable(3);
  const AdaptiveBatch batch{{1, 2, 3}, {}, {1, 0, -1}};
  Look(*table, batch, true);
  CHECK(OwnKeys(*table) == std::vector<Key>{1});
  for (int i = 0; i < 9; ++i) Look(*table, {{2}, {}, {0}}, true);
  CHECK(OwnKeys(*table) == std::vector<Key>{1});
  Look(*table, {{2, 3}, {}, {-1, -1}}, true);
  Look(*table, {{2, 3}, {}, {-1, -1}}, true);
  CHECK(OwnKeys(*table) == std::vector<Key>{1, 3});
}

TEST_CASE(
    "a mask of 1 in any of a key's places makes its row, and those of 0 read the static one") {
  const auto table = MakeTable(100);
  const Key key = 4;
  Look(*table, {{key, key, key}, {}, {0, -1, 1}}, true);
  CHECK(OwnKeys(*table) == std::vector<Key>{key});
  DepositOnes(*table, {{key}, {}, {-1}});
  CommitOn(*table, Options("sgd"));
  const auto statics = SeeStatic(*table, key), own = See(*table, key);
  CHECK(own != statics);
  std::vector<float> expected = statics;
  expected.insert(expected.end(), own.begin(), own.end());
  expected.insert(expected.end(), own.begin(), own.end());
  for (const bool training : {false, true}) {
    CHECK(Look(*table, {{key, key, key}, {}, {0, -1, 1}}, training) == expected);
  }
}

TEST_CASE("bfloat16 rows are the float rows, rounded") {
  const auto table = MakeTable(2);
  for (Key key = 0; key < 5; ++key) Look(*table, Times(key, 2), true);
  DepositOnes(*table, {{0, 1, 2}, {}, {}});
  CommitOn(*table, Options("sgd", 0.3));
  const AdaptiveBatch batch{{0, 1, 2, 3, 4, 50, 51, 0, 1}, {}, {-1, 1, 0, -1, 0, -1, 0, 0, -1}};
  const auto floats = Look(*table, batch, false);
  std::vector<BFloat16> halves(floats.size());
  REQUIRE(table->Lookup(batch.View(), false, halves.data(), ThreadedFor).ok());
  for (size_t i = 0; i < floats.size(); ++i) {
    CHECK(halves[i].bits == FromFloat<BFloat16>(floats[i]).bits);
  }
  CHECK(table->own()->size() == 5);
}

TEST_CASE("a wrong mask or count is named with its place, and nothing has changed") {
  const auto table = MakeTable(1);
  Look(*table, Times(7, 1), true);
  const AdaptiveState before = ContentsOf(*table);
  std::vector<float> out;
  for (const int32_t wrong : {2, -2, std::numeric_limits<int32_t>::min()}) {
    for (const bool training : {false, true}) {
      const Status status = TryLook(*table, {{1, 2, 3}, {}, {1, 0, wrong}}, training, &out);
      CHECK(status.code() == Code::kInvalidArgument);
      INFO(status.message());
      CHECK(status.message().find("got " + std::to_string(wrong) + " at position 2") !=
            std::string::npos);
    }
  }
  for (const int64_t wrong : {int64_t{-1}, std::numeric_limits<int64_t>::min()}) {
    const Status status = TryLook(*table, {{1, 2, 3}, {1, wrong, 2}, {}}, true, &out);
    CHECK(status.code() == Code::kInvalidArgument);
    CHECK(status.message().find("got " + std::to_string(wrong) + " at position 1") !=
          std::string::npos);
  }
  CHECK(Same(ContentsOf(*table), before));
}

TEST_CASE("a lookup of no keys is fine") {
  const auto table = MakeTable(1);
  for (const bool training : {false, true}) {
    CHECK(table->Lookup<float>({}, training, nullptr, ThreadedFor).ok());
  }
  CHECK(Value(table->Demote(nullptr, 0, ThreadedFor)) == 0);
  CHECK(table->Stats().lookups == 0);
}

TEST_CASE("a key whose row was taken away gets it again in the next lookup, from its static row") {
  const auto table = MakeTable(2);
  const Key key = 11;
  Look(*table, Times(key, 2), true);
  DepositOnes(*table, {{key}, {}, {}});
  CommitOn(*table, Options("sgd"));
  const std::vector<Key> keys = {key, key, 99};
  CHECK(Value(table->Demote(keys.data(), 3, SerialFor)) == 1);
  CHECK(table->own()->size() == 0);
  CHECK(See(*table, key) == SeeStatic(*table, key));
  Look(*table, Times(key, 1), true);
  CHECK(OwnKeys(*table) == std::vector<Key>{key});
  CHECK(See(*table, key) == SeeStatic(*table, key));
  CHECK(table->Stats().promoted == 2);
  CHECK(table->Stats().demoted == 1);
}

TEST_CASE("stats count keys that lookups for training read, and those of own rows") {
  const auto table = MakeTable(3);
  Look(*table, {{1, 2, 1}, {1, 1, 2}, {}}, true);  // 1 gets its row, after it was read
  CHECK(table->Stats().lookups == 4);
  CHECK(table->Stats().own_lookups == 0);
  Look(*table, {{1, 2, 1, 1}, {5, 1, 1, 1}, {-1, -1, 0, 1}}, true);
  CHECK(table->Stats().lookups == 12);
  CHECK(table->Stats().own_lookups == 6);
  CHECK(table->Stats().own.rows == 1);
  CHECK(table->Stats().sketch_bytes > 0);
  CHECK(table->Stats().sketch_saturation == 0);
  Look(*table, Times(2, 1), true);
  DepositOnes(*table, {{1, 5}, {}, {}});
  CHECK(table->Stats().own.pending_gradients + table->Stats().statics.pending_gradients == 2);
}

}  // namespace sok
