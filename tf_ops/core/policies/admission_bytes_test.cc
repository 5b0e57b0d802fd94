// Stored filters are read by later releases: where the counters of a key are, and what they come
// to, must not change. These are independent implementations of format version 1.
#include <algorithm>
#include <random>
#include <string>

#include "core/base/hash.h"
#include "core/base/test_threads.h"
#include "core/policies/test_admission.h"

namespace sok {
namespace {

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15ull;
constexpr size_t kHeaderBytes = 36;

TEST_CASE("a saved frequency counter is its key and its count") {
  const auto admission = Make(FrequencyConfig(3));
  const Key key = 0xfedcba9876543210ull;
  Observe(*admission, {key, key});
  const auto chunk = static_cast<uint32_t>(Mix64(key + kGolden) >> 54);
  REQUIRE(admission->ChangedChunks() == std::vector<uint32_t>{chunk});
  CHECK(admission->Dump(chunk).value().substr(kHeaderBytes) ==
        std::string("\x10\x32\x54\x76\x98\xba\xdc\xfe\2\0\0\0", 12));
}

// A filter of one chunk and 7 hash functions, with a number for each counter.
class PlainFilter {
 public:
  PlainFilter(uint32_t min_count, size_t counters) : min_count_(min_count), counts_(counters) {}

  uint8_t Observe(Key key) {
    std::vector<size_t> places;
    for (uint64_t i = 0; i < 7; ++i) {
      const uint64_t draw = Mix64(Mix64(key + kGolden) + (i / 2 + 1) * kGolden);
      const uint64_t half = i % 2 == 0 ? draw & 0xffffffff : draw >> 32;
      places.push_back(half * counts_.size() >> 32);
    }
    uint32_t smallest = counts_[places[0]];
    for (size_t place : places) smallest = std::min(smallest, counts_[place]);
    // Conservative update.
    const uint32_t raised = std::min(smallest + 1, min_count_);
    for (size_t place : places) counts_[place] = std::max(counts_[place], raised);
    return raised == min_count_;
  }

  std::string Bytes(size_t bits) const {
    std::string bytes(counts_.size() * bits / 8, '\0');
    for (size_t i = 0; i < counts_.size() * bits; ++i) {
      const uint32_t bit = counts_[i / bits] >> i % bits & 1;
      bytes[i / 8] = static_cast<char>(bytes[i / 8] | bit << i % 8);
    }
    return bytes;
  }

 private:
  uint32_t min_count_;
  std::vector<uint32_t> counts_;
};

TEST_CASE("the counters of a Bloom filter, and its answers, are those of a plain one") {
  CAPTURE(TestSeed());
  for (uint32_t bits : {2u, 4u, 8u, 16u}) {
    for (uint32_t min_count : {1u, 3u, (1u << bits) - 1}) {
      CAPTURE(bits);
      CAPTURE(min_count);
      std::mt19937_64 rng(TestSeed());
      const auto admission = Make(BloomConfig(min_count, 50, 0.01, static_cast<int>(bits)));
      const size_t counter_bytes = admission->Dump(0).value().size() - kHeaderBytes;
      PlainFilter plain(min_count, counter_bytes * 8 / bits);
      for (int batch = 0; batch < 50; ++batch) {
        std::vector<Key> keys(30);
        Answers expected;
        for (Key& key : keys) {
          key = rng() % 100;  // twice the capacity, so that many keys share counters
          expected.push_back(plain.Observe(key));
        }
        REQUIRE(Observe(*admission, keys) == expected);
        REQUIRE(admission->Dump(0).value().substr(kHeaderBytes) == plain.Bytes(bits));
      }
    }
  }
}

}  // namespace
}  // namespace sok
