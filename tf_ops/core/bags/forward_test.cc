#include "core/bags/forward.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "core/bags/bag_test_cases.h"

namespace sok {
namespace {

constexpr BagMode kModes[] = {BagMode::kSum, BagMode::kMean, BagMode::kMax};

TEST_CASE("bags equal the plain way exactly, over modes, hashes, blocks, signs and padding") {
  for (BagMode mode : kModes) {
    for (PositionHash hash :
         {PositionHash::kMixed, PositionHash::kOriginal, PositionHash::kModulo}) {
      for (int64_t block_size : {1, 5, 16}) {
        for (int64_t size : {3, 40, 3000}) {
          for (bool sign : {false, true}) {
            const BagCase c(BagOptions(size, 37, block_size, sign, hash), mode, 50, sign);
            std::vector<int64_t> expected_winners, winners(c.upstream.size());
            const std::vector<double> expected = c.Forward(false, &expected_winners);
            std::vector<double> out(expected.size());
            HashedBagForward<double, double>(c.positions, c.bags, mode, c.weight.data(), nullptr,
                                             out.data(), winners.data(), ThreadedFor);
            REQUIRE(out == expected);
            if (mode == BagMode::kMax) REQUIRE(winners == expected_winners);
          }
        }
      }
    }
  }
}

TEST_CASE("factors multiply the entries of a sum") {
  const BagCase c(BagOptions(100, 20, 8, true), BagMode::kSum, 50);
  std::vector<int64_t> none;
  const std::vector<double> expected = c.Forward(true, &none);
  std::vector<double> out(expected.size());
  HashedBagForward<double, double>(c.positions, c.bags, BagMode::kSum, c.weight.data(),
                                   c.scales.data(), out.data(), nullptr, SerialFor);
  CHECK(out == expected);
}

TEST_CASE("narrow weights and outputs are summed in float32 and rounded once") {
  const BagCase c(BagOptions(100, 20, 1, false), BagMode::kMean, 50);
  std::vector<BFloat16> narrow;
  std::vector<float> wide;
  for (double w : c.weight) {
    narrow.push_back(FromFloat<BFloat16>(static_cast<float>(w)));
    wide.push_back(ToFloat(narrow.back()));
  }
  std::vector<float> reference(c.upstream.size()), from_narrow(c.upstream.size());
  std::vector<BFloat16> to_narrow(c.upstream.size());
  HashedBagForward<float, float>(c.positions, c.bags, c.mode, wide.data(), nullptr,
                                 reference.data(), nullptr, SerialFor);
  HashedBagForward<BFloat16, float>(c.positions, c.bags, c.mode, narrow.data(), nullptr,
                                    from_narrow.data(), nullptr, SerialFor);
  HashedBagForward<BFloat16, BFloat16>(c.positions, c.bags, c.mode, narrow.data(), nullptr,
                                       to_narrow.data(), nullptr, SerialFor);
  CHECK(from_narrow == reference);
  for (size_t i = 0; i < reference.size(); ++i) {
    REQUIRE(to_narrow[i].bits == FromFloat<BFloat16>(reference[i]).bits);
  }
}

TEST_CASE("the greatest of numbers and NaN is NaN, wherever it stands") {
  const PositionMap positions =
      Value(PositionMap::Make(BagOptions(3, 1, 1, false, PositionHash::kModulo)));
  const int64_t ids[] = {0, 1, 2}, splits[] = {0, 3};
  const Bags bags{ids, splits, 1, -1};
  for (int64_t place : {0, 1, 2}) {
    double weight[] = {1, 3, 2}, out;
    int64_t winner;
    weight[place] = std::nan("");
    HashedBagForward<double, double>(positions, bags, BagMode::kMax, weight, nullptr, &out, &winner,
                                     SerialFor);
    CHECK(std::isnan(out));
    CHECK(winner == place);
  }
}

TEST_CASE("no bags and bags of nothing") {
  const BagCase none(BagOptions(10, 4, 1, false), BagMode::kSum, 0);
  HashedBagForward<double, double>(none.positions, none.bags, BagMode::kSum, none.weight.data(),
                                   nullptr, nullptr, nullptr, ThreadedFor);
  const int64_t id = 3, splits[] = {0, 0, 1, 1};
  const Bags bags{&id, splits, 3, 3};
  for (BagMode mode : kModes) {
    std::vector<double> out(12, 9);
    std::vector<int64_t> winners(12, 9);
    HashedBagForward<double, double>(none.positions, bags, mode, none.weight.data(), nullptr,
                                     out.data(), winners.data(), ThreadedFor);
    CHECK(out == std::vector<double>(12, 0));
    if (mode == BagMode::kMax) CHECK(winners == std::vector<int64_t>(12, -1));
  }
}

}  // namespace
}  // namespace sok
