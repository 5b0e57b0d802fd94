#include "core/bags/position_map.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/test_result.h"
#include "core/base/test_threads.h"

namespace sok {
namespace {

PositionMapOptions Options(PositionHash hash, int64_t size, int64_t dim = 70,
                           int64_t block_size = 1, bool sign = false) {
  PositionMapOptions options;
  options.hash = hash;
  options.seed = 7;
  options.size = size;
  options.num_embeddings = 1000000;
  options.dim = dim;
  options.block_size = block_size;
  options.sign = sign;
  return options;
}

constexpr PositionHash kAll[] = {PositionHash::kMixed, PositionHash::kOriginal,
                                 PositionHash::kModulo};

TEST_CASE("the original hash has the values of the PyTorch project") {
  // If the size is larger than the prime of the hash, the hash is used unchanged.
  const PositionMap map =
      Value(PositionMap::Make(Options(PositionHash::kOriginal, int64_t{1} << 47, 200)));
  CHECK(map.Position(0, 0) == 104729);
  CHECK(map.Position(1, 0) == 9824621266);
  CHECK(map.Position(0, 1) == 57857966404956);
  CHECK(map.Position(7, 3) == 56512472399970);
  CHECK(map.Position(100, 199) == 35958319826100);
  CHECK(map.Position(static_cast<uint64_t>(-1), 0) == 26276226730497);
}

TEST_CASE("a modulo map with room for all is the plain table") {
  const PositionMap map = Value(PositionMap::Make(Options(PositionHash::kModulo, 70000000)));
  CHECK(map.Position(0, 0) == 0);
  CHECK(map.Position(999999, 69) == 69999999);
}

TEST_CASE("the ways to a position agree, for every hash, block and size") {
  std::mt19937_64 random(TestSeed());
  for (PositionHash hash : kAll) {
    for (int64_t block_size : {1, 4, 16, 33, 70, 1000}) {
      for (int64_t size : {int64_t{1}, int64_t{5}, int64_t{1000}, int64_t{1} << 31,
                           (int64_t{1} << 32) - 1, (int64_t{1} << 32) + 1, int64_t{1} << 40}) {
        const PositionMap map = Value(PositionMap::Make(Options(hash, size, 70, block_size)));
        const uint64_t id = random() % 1000000;
        std::vector<uint64_t> positions(map.dim()), bases(map.blocks());
        map.Positions(id, positions.data());
        map.Bases(id, bases.data());
        for (int d = 0; d < map.dim(); ++d) {
          CAPTURE(d);
          const uint64_t base = bases[d / map.block_size()];
          REQUIRE(positions[d] == map.Position(id, d));
          REQUIRE(positions[d] == (base + d % map.block_size()) % size);
          REQUIRE(positions[d] < static_cast<uint64_t>(size));
        }
      }
    }
  }
}

TEST_CASE("mixed positions are spread evenly, over sizes on both sides of 2^32") {
  constexpr int kBins = 64;
  for (int64_t size : {int64_t{1000003}, (int64_t{1} << 33) + 5}) {
    const PositionMap map = Value(PositionMap::Make(Options(PositionHash::kMixed, size, 64)));
    std::vector<double> bins(kBins, 0);
    std::vector<uint64_t> positions(64);
    for (uint64_t id = 0; id < 20000; ++id) {
      map.Positions(id, positions.data());
      for (uint64_t position : positions) {
        ++bins[static_cast<size_t>(static_cast<double>(position) / static_cast<double>(size) *
                                   kBins)];
      }
    }
    const double expected = 20000.0 * 64 / kBins;
    double chi_square = 0;
    for (double bin : bins) chi_square += (bin - expected) * (bin - expected) / expected;
    // The statistic has 63 degrees of freedom: 103.4 is exceeded once in a thousand.
    CHECK(chi_square < 103.4);
  }
}

TEST_CASE("another seed places rows elsewhere") {
  PositionMapOptions options = Options(PositionHash::kMixed, 1000000);
  const PositionMap one = Value(PositionMap::Make(options));
  options.seed = 8;
  const PositionMap other = Value(PositionMap::Make(options));
  int equal = 0;
  for (int d = 0; d < 70; ++d) equal += one.Position(3, d) == other.Position(3, d);
  CHECK(equal <= 1);
}

TEST_CASE("half of the signs are a minus, and none without sign") {
  const PositionMap map =
      Value(PositionMap::Make(Options(PositionHash::kMixed, 1000, 70, 1, true)));
  const PositionMap plain = Value(PositionMap::Make(Options(PositionHash::kMixed, 1000)));
  std::vector<uint64_t> words(map.sign_words());
  std::vector<float> row(70);
  int minus = 0;
  for (uint64_t id = 0; id < 1000; ++id) {
    map.SignWords(id, words.data());
    std::fill(row.begin(), row.end(), 2.0f);
    ApplySigns(words.data(), 0, 70, row.data());
    for (int d = 0; d < 70; ++d) {
      minus += row[d] < 0;
      REQUIRE((row[d] == -2) == map.Minus(id, d));
      REQUIRE(!plain.Minus(id, d));
    }
  }
  // The number of heads in 70,000 coin tosses has a standard deviation of 132.
  CHECK(std::abs(minus - 35000) < 5 * 132);
}

TEST_CASE("signs of a part of a row are those of the row") {
  const PositionMap map =
      Value(PositionMap::Make(Options(PositionHash::kMixed, 1000, 200, 1, true)));
  std::vector<uint64_t> words(map.sign_words());
  map.SignWords(5, words.data());
  for (int first : {0, 31, 33, 60, 64, 100}) {
    std::vector<double> part(100, 1);
    ApplySigns(words.data(), first, 100, part.data());
    for (int i = 0; i < 100; ++i) REQUIRE((part[i] == -1) == map.Minus(5, first + i));
  }
}

TEST_CASE("impossible options are refused with what was expected") {
  const auto message = [](PositionMapOptions options) {
    const Result<PositionMap> map = PositionMap::Make(options);
    REQUIRE(!map.ok());
    REQUIRE(map.status().code() == Code::kInvalidArgument);
    return map.status().message();
  };
  CHECK(message(Options(PositionHash::kMixed, 0)).find("a weight size of at least 1, got 0") !=
        std::string::npos);
  CHECK(message(Options(PositionHash::kMixed, 5, 0)).find("embedding_dim of at least 1") !=
        std::string::npos);
  CHECK(message(Options(PositionHash::kMixed, 5, PositionMap::kMaxDim + 1))
            .find("at most 16777216") != std::string::npos);
  CHECK(message(Options(PositionHash::kMixed, 5, 5, -1)).find("block_size of at least 1, got -1") !=
        std::string::npos);
  PositionMapOptions large = Options(PositionHash::kModulo, 5, 2);
  large.num_embeddings = INT64_MAX / 2 + 1;
  CHECK(message(large).find("fewer than 2^63 elements") != std::string::npos);
  CHECK(!PositionHashNamed("fnv").ok());
}

}  // namespace
}  // namespace sok
