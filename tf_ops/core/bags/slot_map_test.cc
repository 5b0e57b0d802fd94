#include "core/bags/slot_map.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/test_result.h"
#include "core/base/test_threads.h"

namespace sok {
namespace {

SlotMapOptions Options(SlotHash hash, int64_t size, int64_t dim = 70, int64_t block_size = 1,
                       bool sign = false) {
  SlotMapOptions options;
  options.hash = hash;
  options.seed = 7;
  options.size = size;
  options.num_embeddings = 1000000;
  options.dim = dim;
  options.block_size = block_size;
  options.sign = sign;
  return options;
}

constexpr SlotHash kAll[] = {SlotHash::kMixed, SlotHash::kOriginal, SlotHash::kModulo};

TEST_CASE("the original hash has the values of the PyTorch project") {
  // A size beyond the prime of the hash leaves the hash as it is.
  const SlotMap map = Value(SlotMap::Make(Options(SlotHash::kOriginal, int64_t{1} << 47, 200)));
  CHECK(map.Slot(0, 0) == 104729);
  CHECK(map.Slot(1, 0) == 9824621266);
  CHECK(map.Slot(0, 1) == 57857966404956);
  CHECK(map.Slot(7, 3) == 56512472399970);
  CHECK(map.Slot(100, 199) == 35958319826100);
  CHECK(map.Slot(static_cast<uint64_t>(-1), 0) == 26276226730497);
}

TEST_CASE("a modulo map with room for all is the plain table") {
  const SlotMap map = Value(SlotMap::Make(Options(SlotHash::kModulo, 70000000)));
  CHECK(map.Slot(0, 0) == 0);
  CHECK(map.Slot(999999, 69) == 69999999);
}

TEST_CASE("the ways to a slot agree, for every hash, block and size") {
  std::mt19937_64 random(TestSeed());
  for (SlotHash hash : kAll) {
    for (int64_t block_size : {1, 4, 16, 33, 70, 1000}) {
      for (int64_t size : {int64_t{1}, int64_t{5}, int64_t{1000}, int64_t{1} << 31,
                           (int64_t{1} << 32) - 1, (int64_t{1} << 32) + 1, int64_t{1} << 40}) {
        const SlotMap map = Value(SlotMap::Make(Options(hash, size, 70, block_size)));
        const uint64_t id = random() % 1000000;
        std::vector<uint64_t> slots(map.dim()), bases(map.blocks());
        map.Slots(id, slots.data());
        map.Bases(id, bases.data());
        for (int d = 0; d < map.dim(); ++d) {
          CAPTURE(d);
          const uint64_t base = bases[d / map.block_size()];
          REQUIRE(slots[d] == map.Slot(id, d));
          REQUIRE(slots[d] == (base + d % map.block_size()) % size);
          REQUIRE(slots[d] < static_cast<uint64_t>(size));
        }
      }
    }
  }
}

TEST_CASE("mixed slots are spread evenly, over sizes on both sides of 2^32") {
  constexpr int kBins = 64;
  for (int64_t size : {int64_t{1000003}, (int64_t{1} << 33) + 5}) {
    const SlotMap map = Value(SlotMap::Make(Options(SlotHash::kMixed, size, 64)));
    std::vector<double> bins(kBins, 0);
    std::vector<uint64_t> slots(64);
    for (uint64_t id = 0; id < 20000; ++id) {
      map.Slots(id, slots.data());
      for (uint64_t slot : slots) {
        ++bins[static_cast<size_t>(static_cast<double>(slot) / static_cast<double>(size) * kBins)];
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
  SlotMapOptions options = Options(SlotHash::kMixed, 1000000);
  const SlotMap one = Value(SlotMap::Make(options));
  options.seed = 8;
  const SlotMap other = Value(SlotMap::Make(options));
  int equal = 0;
  for (int d = 0; d < 70; ++d) equal += one.Slot(3, d) == other.Slot(3, d);
  CHECK(equal <= 1);
}

TEST_CASE("half of the signs are a minus, and none without sign") {
  const SlotMap map = Value(SlotMap::Make(Options(SlotHash::kMixed, 1000, 70, 1, true)));
  const SlotMap plain = Value(SlotMap::Make(Options(SlotHash::kMixed, 1000)));
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
  // 70,000 throws of a coin have a standard deviation of 132.
  CHECK(std::abs(minus - 35000) < 5 * 132);
}

TEST_CASE("signs of a part of a row are those of the row") {
  const SlotMap map = Value(SlotMap::Make(Options(SlotHash::kMixed, 1000, 200, 1, true)));
  std::vector<uint64_t> words(map.sign_words());
  map.SignWords(5, words.data());
  for (int first : {0, 31, 33, 60, 64, 100}) {
    std::vector<double> part(100, 1);
    ApplySigns(words.data(), first, 100, part.data());
    for (int i = 0; i < 100; ++i) REQUIRE((part[i] == -1) == map.Minus(5, first + i));
  }
}

TEST_CASE("impossible options are refused with what was expected") {
  const auto message = [](SlotMapOptions options) {
    const Result<SlotMap> map = SlotMap::Make(options);
    REQUIRE(!map.ok());
    REQUIRE(map.status().code() == Code::kInvalidArgument);
    return map.status().message();
  };
  CHECK(message(Options(SlotHash::kMixed, 0)).find("a weight size of at least 1, got 0") !=
        std::string::npos);
  CHECK(message(Options(SlotHash::kMixed, 5, 0)).find("embedding_dim of at least 1") !=
        std::string::npos);
  CHECK(message(Options(SlotHash::kMixed, 5, SlotMap::kMaxDim + 1)).find("at most 16777216") !=
        std::string::npos);
  CHECK(message(Options(SlotHash::kMixed, 5, 5, -1)).find("block_size of at least 1, got -1") !=
        std::string::npos);
  SlotMapOptions large = Options(SlotHash::kModulo, 5, 2);
  large.num_embeddings = INT64_MAX / 2 + 1;
  CHECK(message(large).find("fewer than 2^63 elements") != std::string::npos);
  CHECK(!SlotHashNamed("fnv").ok());
}

}  // namespace
}  // namespace sok
