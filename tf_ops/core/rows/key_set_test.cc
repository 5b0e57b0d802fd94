#include "core/rows/key_set.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <random>
#include <unordered_set>

#include "core/base/test_threads.h"

namespace sok {

TEST_CASE("a key set holds what a set of the standard library holds, any key among it") {
  std::mt19937_64 rng(TestSeed());
  for (const uint64_t range : {3u, 100u, 5000u}) {
    KeySet keys;
    std::unordered_set<Key> expected;
    CHECK_FALSE(keys.Contains(0));
    for (int i = 0; i < 4000; ++i) {
      // Also the value that marks a free slot, and both ends of the range.
      const Key key = rng() % range + (i % 3 == 0 ? 0x9e3779b97f4a7c15ull - 1 : ~Key{0} - 1);
      REQUIRE(keys.Insert(key) == expected.insert(key).second);
      REQUIRE(keys.size() == expected.size());
      const Key asked = rng() % range + 0x9e3779b97f4a7c15ull - 1;
      REQUIRE(keys.Contains(asked) == (expected.count(asked) > 0));
    }
    for (Key key : expected) REQUIRE(keys.Contains(key));
  }
}

TEST_CASE("room that was made for keys changes nothing in what a key set holds") {
  KeySet keys;
  keys.Insert(7);
  keys.Reserve(1000);
  CHECK((keys.Contains(7) && !keys.Contains(8) && keys.size() == 1));
}

}  // namespace sok
