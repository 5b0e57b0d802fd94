#include "core/base/adaptive_bucket.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "core/base/test_threads.h"

namespace sok {

TEST_CASE("adaptive buckets are in range, for any key and any number of buckets") {
  std::mt19937_64 rng(TestSeed());
  std::vector<Key> keys = {0, 1, ~Key{0}, Key{1} << 63, (Key{1} << 63) - 1};
  for (int i = 0; i < 1000; ++i) keys.push_back(rng() >> rng() % 64);
  const std::vector<uint64_t> numbers = {1, 2, 3, 1000, uint64_t{1} << 32, ~uint64_t{0}};
  for (uint64_t buckets : numbers) {
    for (Key key : keys) REQUIRE(AdaptiveBucket(key, buckets) < buckets);
  }
}

TEST_CASE("adaptive buckets are the scaled high half of a product of 128 bits") {
  std::mt19937_64 rng(TestSeed());
  for (int i = 0; i < 1000; ++i) {
    const Key key = rng();
    const uint64_t buckets = 1 + rng() % (uint64_t{1} << 32);
    const uint64_t hash = Mix64(key ^ 0x2545f4914f6cdd1dull);
    // The high half is computed from two products of 64 bits, since there is no carry above them.
    const uint64_t low = (hash & 0xffffffff) * buckets >> 32, high = (hash >> 32) * buckets;
    const uint64_t expected = (high + low) >> 32;
    REQUIRE(AdaptiveBucket(key, buckets) == expected);
  }
}

TEST_CASE("keys that follow each other spread evenly over the buckets, and over owners of them") {
  constexpr uint64_t kBuckets = 100, kKeys = 100000;
  for (const Key stride : {1, 64, 1000}) {
    std::vector<uint64_t> counts(kBuckets, 0);
    for (Key i = 0; i < kKeys; ++i) ++counts[AdaptiveBucket(i * stride, kBuckets)];
    double chi_square = 0;
    for (uint64_t count : counts) {
      const double off = static_cast<double>(count) - kKeys / kBuckets;
      chi_square += off * off / (kKeys / kBuckets);
    }
    // The statistic has 99 degrees of freedom: it is above 180 once in a million.
    CHECK(chi_square < 180);
  }
}

}  // namespace sok
