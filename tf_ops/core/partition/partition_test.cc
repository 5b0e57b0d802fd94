#include "core/partition/partition.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "core/base/bfloat16.h"
#include "core/base/test_threads.h"

namespace sok {
namespace {

// Computes floor modulo by its definition: key - owners * floor(key / owners), in 128 bits.
uint32_t FloorModulo(Key key, uint32_t owners) {
  const __int128 dividend = static_cast<int64_t>(key);
  __int128 quotient = dividend / owners;
  if (quotient * owners > dividend) --quotient;
  return static_cast<uint32_t>(dividend - quotient * owners);
}

void CheckPartition(const std::vector<Key>& keys, uint32_t owners,
                    const ParallelFor& parallel_for) {
  std::vector<int32_t> inverse(keys.size(), -1);
  const Partition partition =
      UniqueAndPartition(keys.data(), keys.size(), owners, inverse.data(), parallel_for);

  const std::set<Key> expected(keys.begin(), keys.end());
  REQUIRE(partition.keys.size() == expected.size());
  REQUIRE(std::set<Key>(partition.keys.begin(), partition.keys.end()) == expected);

  REQUIRE(partition.splits.size() == owners);
  size_t next = 0;
  for (uint32_t owner = 0; owner < owners; ++owner) {
    const size_t end = next + partition.splits[owner];
    REQUIRE(end <= partition.keys.size());
    int32_t of_others = 0;
    for (; next < end; ++next) of_others += FloorModulo(partition.keys[next], owners) != owner;
    REQUIRE(of_others == 0);
  }
  REQUIRE(next == partition.keys.size());

  std::vector<Key> restored;
  for (int32_t place : inverse) restored.push_back(partition.keys.at(place));
  REQUIRE(restored == keys);
}

TEST_CASE("the owner of a key is its floor modulo, of negative keys too") {
  CHECK(OwnerOf(static_cast<Key>(-1), 3) == 2);
  CHECK(OwnerOf(static_cast<Key>(-3), 3) == 0);
  CHECK(OwnerOf(static_cast<Key>(-4), 3) == 2);
  CHECK(OwnerOf(7, 3) == 1);
  std::mt19937_64 rng(TestSeed());
  for (uint32_t owners = 1; owners <= 9; ++owners) {
    for (Key key : {Key{0}, ~Key{0}, Key{1} << 63, (Key{1} << 63) - 1}) {
      CHECK(OwnerOf(key, owners) == FloorModulo(key, owners));
    }
    for (int i = 0; i < 1000; ++i) {
      const Key key = rng();
      REQUIRE(OwnerOf(key, owners) == FloorModulo(key, owners));
    }
  }
}

TEST_CASE("distinct keys come grouped by owner, and the inverse leads back to every key") {
  std::mt19937_64 rng(TestSeed());
  for (uint32_t owners = 1; owners <= 4; ++owners) {
    for (size_t n : {1, 2, 33, 1000, 20000}) {
      for (uint64_t range : {uint64_t{1}, uint64_t{10}, uint64_t{5000}, UINT64_MAX}) {
        std::vector<Key> keys(n);
        for (Key& key : keys) key = rng() % range - range / 2;
        INFO(n, " keys of ", range, " for ", owners, " owners");
        CheckPartition(keys, owners, SerialFor);
        CheckPartition(keys, owners, ThreadedFor);
      }
    }
  }
}

TEST_CASE("no keys give no keys and a split of 0 for every owner") {
  for (uint32_t owners = 1; owners <= 4; ++owners) {
    const Partition partition = UniqueAndPartition(nullptr, 0, owners, nullptr, SerialFor);
    CHECK(partition.keys.empty());
    CHECK(partition.splits == std::vector<int32_t>(owners, 0));
  }
}

TEST_CASE("the order of the distinct keys does not depend on the threads") {
  std::mt19937_64 rng(TestSeed());
  std::vector<Key> keys(40000);
  for (Key& key : keys) key = rng() % 20000;
  std::vector<int32_t> serial_inverse(keys.size()), threaded_inverse(keys.size());
  const Partition serial =
      UniqueAndPartition(keys.data(), keys.size(), 3, serial_inverse.data(), SerialFor);
  const Partition threaded =
      UniqueAndPartition(keys.data(), keys.size(), 3, threaded_inverse.data(), ThreadedFor);
  CHECK(serial.keys == threaded.keys);
  CHECK(serial.splits == threaded.splits);
  CHECK(serial_inverse == threaded_inverse);
}

// Returns n positions in [0, distinct), some perhaps many times and some never.
std::vector<int32_t> RandomInverse(size_t n, size_t distinct, std::mt19937_64& rng) {
  std::vector<int32_t> inverse(n);
  for (int32_t& u : inverse) u = static_cast<int32_t>(rng() % distinct * (rng() % 4 != 0));
  return inverse;
}

template <typename T>
std::vector<T> RandomRows(size_t n, int dim, std::mt19937_64& rng) {
  std::normal_distribution<float> normal;
  std::vector<T> rows(n * dim);
  for (T& x : rows) x = FromFloat<T>(normal(rng));
  return rows;
}

TEST_CASE_TEMPLATE("SumByRow sums the gradients of each row", T, float, BFloat16) {
  std::mt19937_64 rng(TestSeed());
  for (int dim : {1, 3, 16, 50}) {
    for (const ParallelFor& parallel_for : {ParallelFor(SerialFor), ParallelFor(ThreadedFor)}) {
      const auto gradients = RandomRows<T>(2000, dim, rng);
      const auto inverse = RandomInverse(2000, 300, rng);
      std::vector<double> expected(300 * dim), magnitudes(300 * dim);
      for (size_t i = 0; i < inverse.size(); ++i) {
        for (int j = 0; j < dim; ++j) {
          const double x = ToFloat(gradients[i * dim + j]);
          expected[inverse[i] * dim + j] += x;
          magnitudes[inverse[i] * dim + j] += std::fabs(x);
        }
      }
      std::vector<float> sums(300 * dim, NAN);  // whatever was there must go
      SumByRow(gradients.data(), inverse.data(), inverse.size(), 300, dim, sums.data(),
               parallel_for);
      for (size_t k = 0; k < sums.size(); ++k) {
        REQUIRE(std::fabs(sums[k] - expected[k]) <= 1e-5 * magnitudes[k]);
      }
    }
  }
}

TEST_CASE("a row that no position asked for has a gradient of zero") {
  const float gradients[] = {1, 2, 3, 4};
  const int32_t inverse[] = {2, 2};
  std::vector<float> sums(6, NAN);
  SumByRow(gradients, inverse, 2, 3, 2, sums.data(), SerialFor);
  CHECK(sums == std::vector<float>{0, 0, 0, 0, 4, 6});
}

TEST_CASE("sums of no gradients are zero") {
  SumByRow<float>(nullptr, nullptr, 0, 0, 4, nullptr, SerialFor);
  std::vector<float> sums(8, NAN);
  SumByRow<float>(nullptr, nullptr, 0, 2, 4, sums.data(), ThreadedFor);
  CHECK(sums == std::vector<float>(8, 0.0f));
}

}  // namespace
}  // namespace sok
