// Compares the fast gradients of bags with those of bag_test_cases.h, which loops over entries and
// elements one by one: "the plain way". The fast gradients use blocks, rounds and many threads.
#include "core/bags/gradient.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "core/bags/bag_test_cases.h"

namespace sok {
namespace {

constexpr BagMode kModes[] = {BagMode::kSum, BagMode::kMean, BagMode::kMax};

// Requires two gradients to be equal but for rounding. They may add the same values, up to 10,000
// of them between -1 and 1, in different orders: partial sums are about 100, each addition rounds
// by about 1e-14, and these errors add up to about 1e-12, well below the limit.
void RequireClose(const std::vector<double>& got, const std::vector<double>& expected) {
  REQUIRE(got.size() == expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::abs(got[i] - expected[i]) < 1e-10) continue;  // an assertion for each takes longer
    FAIL("element ", i, ": expected ", expected[i], ", got ", got[i]);
  }
}

BagGradient<double> GradientOf(const BagCase& c, bool scaled, const std::vector<int64_t>& winners) {
  return {c.positions,   c.bags, c.mode, c.upstream.data(), scaled ? c.scales.data() : nullptr,
          winners.data()};
}

std::vector<double> Dense(const BagGradient<double>& gradient, const ParallelFor& parallel_for) {
  std::vector<double> sums(gradient.positions.size(), 99);
  DenseWeightGradient(gradient, sums.data(), parallel_for);
  return sums;
}

std::vector<double> Sparse(const BagGradient<double>& gradient, const ParallelFor& parallel_for) {
  const SparseWeightGradient<double> sparse(gradient, parallel_for);
  std::vector<int64_t> positions(sparse.size());
  std::vector<double> values(sparse.size()), sums(gradient.positions.size(), 0);
  sparse.Write(positions.data(), values.data(), parallel_for);
  for (size_t i = 0; i < positions.size(); ++i) {
    if (i > 0 && positions[i] <= positions[i - 1]) FAIL("position ", i, " is out of order");
    sums[positions[i]] = values[i];
  }
  return sums;
}

void CheckBoth(const BagCase& c, bool scaled) {
  std::vector<int64_t> winners;
  c.Forward(scaled, &winners);
  const std::vector<double> expected = c.WeightGradient(scaled, winners);
  const BagGradient<double> gradient = GradientOf(c, scaled, winners);
  const std::vector<double> dense = Dense(gradient, SerialFor);
  const std::vector<double> sparse = Sparse(gradient, SerialFor);
  RequireClose(dense, expected);
  RequireClose(sparse, expected);
  // For sums and means, sparse gradients add in the order of the entries, as the plain way does,
  // and are equal to the bit. For maxima they add in the order of the vectors' elements.
  if (c.mode != BagMode::kMax) REQUIRE(sparse == expected);
  REQUIRE(Dense(gradient, ThreadedFor) == dense);
  REQUIRE(Sparse(gradient, ThreadedFor) == sparse);
}

TEST_CASE("gradients equal the plain way, over modes, hashes, blocks, signs, padding and sizes") {
  for (BagMode mode : kModes) {
    for (PositionHash hash :
         {PositionHash::kMixed, PositionHash::kOriginal, PositionHash::kModulo}) {
      for (int64_t block_size : {1, 5, 8, 16}) {
        // The weight is smaller than a block at first. Then it has so few positions that groups of
        // entries are summed separately and then added. Then it has several ranges of positions,
        // the last one short.
        for (int64_t size : {1, 3, 40, 3000, 70001}) {
          for (bool sign : {false, true}) {
            CheckBoth(BagCase(BagOptions(size, 37, block_size, sign, hash), mode, 60, sign), false);
          }
        }
      }
    }
  }
}

TEST_CASE("gradients of scaled entries equal the plain way") {
  for (int64_t block_size : {1, 16}) {
    for (int64_t size : {40, 70001}) {
      for (bool sign : {false, true}) {
        CheckBoth(BagCase(BagOptions(size, 37, block_size, sign), BagMode::kSum, 60, true), true);
      }
    }
  }
}

TEST_CASE("a batch of several chunks and rounds is summed whole") {
  // A round takes 2^19 / 16 entries of vectors with 16 blocks, or 2^21 / 256 entries of vectors
  // with 256 separate elements. Each batch here has more.
  CheckBoth(BagCase(BagOptions(300000, 256, 16, true), BagMode::kSum, 12000), false);
  CheckBoth(BagCase(BagOptions(5000000, 256, 1, false), BagMode::kMean, 4000), false);
  CheckBoth(BagCase(BagOptions(2000, 256, 1, false), BagMode::kMax, 4000), false);
}

TEST_CASE("without entries the gradient is zero, or has no positions") {
  const BagCase c(BagOptions(3000, 4, 1, false), BagMode::kSum, 0);
  const BagGradient<double> gradient = GradientOf(c, false, {});
  CHECK(Dense(gradient, ThreadedFor) == std::vector<double>(3000, 0));
  CHECK(SparseWeightGradient<double>(gradient, ThreadedFor).size() == 0);
  const BagCase blocks(BagOptions(3000, 16, 8, false), BagMode::kSum, 0);
  CHECK(Dense(GradientOf(blocks, false, {}), ThreadedFor) == std::vector<double>(3000, 0));
}

TEST_CASE("positions beyond 2^32 are told apart") {
  const int64_t size = (int64_t{1} << 40) + 3;
  PositionMapOptions options = BagOptions(size, 8, 1, false);
  const PositionMap positions = Value(PositionMap::Make(options));
  const int64_t ids[] = {1, 2, 1}, splits[] = {0, 3};
  const Bags bags{ids, splits, 1, -1};
  const std::vector<double> upstream = {1, 2, 3, 4, 5, 6, 7, 8};
  const SparseWeightGradient<double> sparse(
      BagGradient<double>{positions, bags, BagMode::kSum, upstream.data(), nullptr, nullptr},
      ThreadedFor);
  REQUIRE(sparse.size() == 16);
  std::vector<int64_t> found(16);
  std::vector<double> sums(16);
  sparse.Write(found.data(), sums.data(), ThreadedFor);
  for (int64_t id : {1, 2}) {
    for (int d = 0; d < 8; ++d) {
      const auto position = static_cast<int64_t>(positions.Position(id, d));
      const auto at = std::find(found.begin(), found.end(), position);
      REQUIRE(at != found.end());
      CHECK(sums[at - found.begin()] == upstream[d] * (id == 1 ? 2 : 1));
    }
  }
}

TEST_CASE("the gradient of a factor is that of its bag times the entry's elements") {
  const BagCase c(BagOptions(100, 20, 8, true), BagMode::kSum, 50, true);
  std::vector<double> factors(c.ids.size(), 9);
  ScaleGradient<double>(GradientOf(c, true, {}), c.weight.data(), factors.data(), ThreadedFor);
  for (int64_t bag = 0; bag < c.bags.bags; ++bag) {
    for (int64_t e = c.splits[bag]; e < c.splits[bag + 1]; ++e) {
      double expected = 0;
      for (int d = 0; d < 20 && !c.bags.padded(e); ++d) {
        expected += c.upstream[bag * 20 + d] * c.Element(e, d);
      }
      REQUIRE(std::abs(factors[e] - expected) < 1e-12);
    }
  }
}

}  // namespace
}  // namespace sok
