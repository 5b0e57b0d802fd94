// Measures how often a counting Bloom filter admits a key too early, and checks that it never
// misses one.
#include "core/policies/counting_bloom_admission.h"

#include <algorithm>
#include <array>
#include <functional>
#include <random>

#include "core/policies/test_admission.h"

namespace sok {
namespace {

constexpr uint64_t kSeed = 20240607;

// Distinct keys by number: the first are counted, later ones ask.
struct KeySet {
  const char* name;
  std::function<Key(uint64_t)> key;
};

// A bijection of the 64-bit numbers that has nothing to do with Mix64.
Key Scramble(uint64_t i) {
  static const std::array<uint64_t, 4> odd = [] {
    std::mt19937_64 rng(kSeed);
    return std::array<uint64_t, 4>{rng() | 1, rng() | 1, rng() | 1, rng() | 1};
  }();
  for (uint64_t factor : odd) {
    i = (i + kSeed) * factor;
    i ^= i >> 32;
  }
  return i;
}

const std::vector<KeySet> kKeySets = {
    {"sequential", [](uint64_t i) { return i; }},
    {"random", Scramble},
    {"negative", [](uint64_t i) { return ~i; }},
    {"multiples of 2^8", [](uint64_t i) { return i << 8; }},
    {"multiples of 2^16", [](uint64_t i) { return i << 16; }},
    {"multiples of 2^32", [](uint64_t i) { return i << 32; }},
    {"multiples of 2^43", [](uint64_t i) { return i << 43; }},
};

std::vector<Key> Numbers(const KeySet& set, uint64_t begin, uint64_t n) {
  std::vector<Key> keys(n);
  for (uint64_t i = 0; i < n; ++i) keys[i] = set.key(begin + i);
  return keys;
}

double Share(const Answers& admitted) {
  return static_cast<double>(std::count(admitted.begin(), admitted.end(), 1)) /
         static_cast<double>(admitted.size());
}

TEST_CASE("keys never seen are admitted at the rate that was asked for, and no key is missed") {
  constexpr uint64_t kCapacity = 100000, kAsked = 200000;
  constexpr uint32_t kMinCount = 3;
  CAPTURE(kSeed);
  for (const KeySet& set : kKeySets) {
    CAPTURE(set.name);
    const std::vector<Key> counted = Numbers(set, 0, kCapacity);
    const std::vector<Key> asked = Numbers(set, kCapacity, kAsked);
    for (double rate : {1e-2, 1e-3}) {
      CAPTURE(rate);
      const auto admission = Make(BloomConfig(kMinCount, kCapacity, rate, 4));
      Answers last;
      for (uint32_t seen = 0; seen < kMinCount; ++seen) last = Observe(*admission, counted);
      CHECK(Share(last) == 1);
      CHECK(Share(Admitted(*admission, counted)) == 1);
      const double measured = Share(Admitted(*admission, asked));
      CAPTURE(measured);
      CHECK(measured < 1.5 * rate);
      CHECK(measured > 0.5 * rate);  // memory is not wasted either
    }
  }
}

// A quarter of the keys is seen one time too few, among others that are seen often enough: before
// them, after them, and in turn.
TEST_CASE("keys seen min_count - 1 times are admitted within the rate that was asked for") {
  constexpr uint64_t kCapacity = 100000;
  constexpr uint32_t kMinCount = 3;
  CAPTURE(kSeed);
  for (size_t sequential_and_random : {0, 1}) {
    const KeySet& set = kKeySets[sequential_and_random];
    CAPTURE(set.name);
    const std::vector<Key> rare = Numbers(set, 0, kCapacity / 4);
    const std::vector<Key> often = Numbers(set, kCapacity, kCapacity - rare.size());
    for (const char* order : {"RROOO", "OOORR", "OROROO", "OOROR"}) {
      CAPTURE(order);
      const auto admission = Make(BloomConfig(kMinCount, kCapacity, 1e-2, 4));
      for (const char* keys = order; *keys != 0; ++keys) {
        Observe(*admission, *keys == 'R' ? rare : often);
      }
      const double measured = Share(Admitted(*admission, rare));
      CAPTURE(measured);
      CHECK(measured < 1.5e-2);
      CHECK(Share(Admitted(*admission, often)) == 1);
    }
  }
}

TEST_CASE("the rate holds for other widths, rates and counts") {
  constexpr uint64_t kCapacity = 50000, kAsked = 400000;
  struct Case {
    uint32_t min_count;
    double rate;
    int bits;
  };
  CAPTURE(kSeed);
  const KeySet& set = kKeySets[1];
  const std::vector<Key> counted = Numbers(set, 0, kCapacity);
  const std::vector<Key> asked = Numbers(set, kCapacity, kAsked);
  for (const Case& c : {Case{1, 1e-2, 2}, Case{3, 1e-3, 2}, Case{1, 0.3, 4}, Case{15, 1e-2, 4},
                        Case{2, 0.9, 8}, Case{20, 1e-3, 8}, Case{4, 1e-3, 16}}) {
    CAPTURE(c.rate);
    CAPTURE(c.bits);
    const auto admission = Make(BloomConfig(c.min_count, kCapacity, c.rate, c.bits));
    for (uint32_t seen = 0; seen < c.min_count; ++seen) Observe(*admission, counted);
    const double measured = Share(Admitted(*admission, asked));
    CAPTURE(measured);
    CHECK(measured < std::min(1.0, 1.5 * c.rate));
    CHECK(measured > 0.5 * c.rate);
  }
}

TEST_CASE("the rate holds for small filters, on the average of many") {
  CAPTURE(kSeed);
  for (uint64_t capacity : {1, 10, 100, 1000}) {
    for (double rate : {1e-2, 1e-3}) {
      CAPTURE(capacity);
      CAPTURE(rate);
      double sum = 0;
      constexpr uint64_t kFilters = 200, kAsked = 2000;
      for (uint64_t filter = 0; filter < kFilters; ++filter) {
        const auto admission = Make(BloomConfig(1, capacity, rate, 4));
        const uint64_t first = filter * (capacity + kAsked);
        Observe(*admission, Numbers(kKeySets[1], first, capacity));
        sum += Share(Admitted(*admission, Numbers(kKeySets[1], first + capacity, kAsked)));
      }
      CHECK(sum / kFilters < 1.5 * rate);
    }
  }
}

TEST_CASE("a counting Bloom filter takes the memory that its capacity and rate ask for") {
  // -ln(0.01) / ln(2)^2 counters a key: 9.585
  const auto admission = Make(BloomConfig(2, 1000000, 0.01, 4));
  CHECK(admission->bytes() > 4792000);
  CHECK(admission->bytes() < 4792000 + (2 << 20) + 4096);
  const uint64_t before = admission->bytes();
  Observe(*admission, Numbers(kKeySets[0], 0, 10000));
  CHECK(admission->bytes() == before);
}

TEST_CASE("a counting Bloom filter forgets nothing") {
  const auto admission = Make(BloomConfig(2, 100, 0.01, 4));
  Observe(*admission, {1, 1, 2});
  const std::vector<Key> forgotten = {1, 2};
  admission->Forget(forgotten.data(), forgotten.size());
  CHECK(Admitted(*admission, {1}) == Answers{1});
  CHECK(Observe(*admission, {2}) == Answers{1});
}

}  // namespace
}  // namespace sok
