// Compares remainders with the results of the operator %.
#include "core/base/remainder.h"

#include <doctest/doctest.h>

#include <random>
#include <vector>

#include "core/base/test_threads.h"

namespace sok {

TEST_CASE("remainders are those of a division, at the ends of every range") {
  std::mt19937_64 rng(TestSeed());
  std::vector<uint64_t> ends;
  for (int bit = 0; bit < 64; ++bit) {
    for (uint64_t near : {-1, 0, 1}) ends.push_back((uint64_t{1} << bit) + near);
  }
  std::vector<uint64_t> divisors = ends, numbers = ends;
  for (int i = 0; i < 200; ++i) {
    divisors.push_back(rng() >> rng() % 64);
    numbers.push_back(rng() >> rng() % 64);
  }
  for (uint64_t divisor : divisors) {
    if (divisor == 0) continue;
    CAPTURE(divisor);
    const Remainder remainder(divisor);
    for (uint64_t x : numbers) {
      for (uint64_t near : {x, x / divisor * divisor, x / divisor * divisor - 1}) {
        REQUIRE(remainder(near) == near % divisor);
      }
    }
  }
}

}  // namespace sok
