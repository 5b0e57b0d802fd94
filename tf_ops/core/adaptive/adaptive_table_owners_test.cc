// Several owners of one adaptive table, each with its buckets, do together what one owner does.
#include <doctest/doctest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "core/adaptive/test_adaptive_table.h"

namespace sok {
namespace {

constexpr uint64_t kBuckets = 11;

std::vector<std::unique_ptr<AdaptiveTable>> MakeOwners(AdaptiveConfig config, uint64_t owners) {
  std::vector<std::unique_ptr<AdaptiveTable>> tables;
  config.owners = owners;
  for (config.owner = 0; config.owner < owners; ++config.owner) {
    tables.push_back(MakeAdaptive(config));
  }
  return tables;
}

struct Part {
  AdaptiveBatch batch;
  std::vector<float> gradients;
  std::vector<size_t> places;
};

std::vector<Part> Split(const AdaptiveBatch& batch, const std::vector<float>& gradients,
                        uint64_t owners) {
  std::vector<Part> parts(owners);
  for (size_t i = 0; i < batch.size(); ++i) {
    Part& part = parts[AdaptiveBucket(batch.keys[i], kBuckets) % owners];
    part.batch.keys.push_back(batch.keys[i]);
    part.batch.counts.push_back(batch.counts[i]);
    part.batch.mask.push_back(batch.mask[i]);
    const float* gradient = &gradients[i * kAdaptiveDim];
    part.gradients.insert(part.gradients.end(), gradient, gradient + kAdaptiveDim);
    part.places.push_back(i);
  }
  return parts;
}

void RunOwners(const AdaptiveConfig& config, uint64_t owners, const std::string& rule) {
  CAPTURE(owners);
  CAPTURE(rule);
  std::mt19937_64 rng(TestSeed());
  const auto one = MakeOwners(config, 1), many = MakeOwners(config, owners);
  for (int step = 0; step < 25; ++step) {
    AdaptiveBatch batch;
    std::vector<float> gradients;
    for (size_t n = 1 + rng() % 80; n > 0; --n) {
      batch.keys.push_back(rng() % 3 == 0 ? rng() % 10 : ~(rng() % 200));
      batch.counts.push_back(static_cast<int64_t>(rng() % 3));
      batch.mask.push_back(static_cast<int32_t>(rng() % 8) % 3 - 1);
      for (int j = 0; j < kAdaptiveDim; ++j) gradients.push_back(static_cast<float>(rng() % 100));
    }
    const bool training = rng() % 4 != 0;
    const auto expected = Look(*one[0], batch, training, ThreadedFor);
    DepositOn(*one[0], batch, gradients);
    CommitOn(*one[0], Options(rule, 0.01), ThreadedFor);
    const auto parts = Split(batch, gradients, owners);
    for (uint64_t owner = 0; owner < owners; ++owner) {
      const Part& part = parts[owner];
      const auto out = Look(*many[owner], part.batch, training);
      for (size_t i = 0; i < part.places.size(); ++i) {
        for (int j = 0; j < kAdaptiveDim; ++j) {
          REQUIRE(out[i * kAdaptiveDim + j] == expected[part.places[i] * kAdaptiveDim + j]);
        }
      }
      DepositOn(*many[owner], part.batch, part.gradients);
      CommitOn(*many[owner], Options(rule, 0.01));
    }
    const std::vector<Key> keys = {rng() % 10, ~(rng() % 200)};
    uint64_t demoted = 0;
    for (const auto& table : many) demoted += Value(table->Demote(keys.data(), 2, SerialFor));
    CHECK(Value(one[0]->Demote(keys.data(), 2, SerialFor)) == demoted);
  }
  // Bit for bit: own rows, static rows, and the totals.
  const AdaptiveState whole = ContentsOf(*one[0]);
  AdaptiveState sum;
  sum.counters.assign(whole.counters.size(), 0);
  for (const auto& table : many) {
    AdaptiveState part = ContentsOf(*table);
    sum.own.merge(part.own);
    sum.statics.merge(part.statics);
    CHECK(part.own.empty());
    CHECK(part.statics.empty());
    for (size_t i = 1; i < sum.counters.size(); ++i) sum.counters[i] += part.counters[i];
  }
  sum.counters[0] = whole.counters[0];
  CHECK(sum.own == whole.own);
  CHECK(sum.statics == whole.statics);
  CHECK(sum.counters == whole.counters);
}

}  // namespace

TEST_CASE("owners of the buckets together are one table, bit for bit, also where counts collide") {
  for (uint64_t owners : {2, 3, 11, 13}) {
    AdaptiveConfig config = ExactConfig(kBuckets, 3);
    config.decay_every = 4;
    config.demote_blend = 0.3;
    RunOwners(config, owners, "adagrad");
    config.sketch_capacity = 20;
    RunOwners(config, owners, "sgd");
    RunOwners(config, owners, "adam");
  }
}

TEST_CASE("the key of another owner is refused with both owners named, and nothing has changed") {
  AdaptiveConfig config = ExactConfig(kBuckets, 1);
  const auto tables = MakeOwners(config, 3);
  const Key mine = KeysOfBucket(4, kBuckets, 1)[0], other = KeysOfBucket(5, kBuckets, 1)[0];
  const AdaptiveState before = ContentsOf(*tables[1]);
  std::vector<float> out;
  for (const bool training : {false, true}) {
    const Status status = TryLook(*tables[1], {{mine, other}, {}, {}}, training, &out);
    CHECK(status.code() == Code::kInvalidArgument);
    CHECK(status.message() ==
          "key " + std::to_string(other) + " belongs to worker 2, and this is worker 1 of 3");
  }
  CHECK(Same(ContentsOf(*tables[1]), before));
  CHECK(Value(tables[1]->Demote(&other, 1, SerialFor)) == 0);
}

TEST_CASE("an owner without buckets can be made and commits nothing") {
  const auto tables = MakeOwners(ExactConfig(kBuckets, 1), 13);
  CHECK(CommitOn(*tables[12], Options("adam")).rows == 0);
  CHECK(ContentsOf(*tables[12]).statics.empty());
}

}  // namespace sok
