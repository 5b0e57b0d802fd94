#include "core/base/float16.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>

namespace sok {
namespace {

// Returns the value of a finite float16 from its fields: 1 sign, 5 exponent and 10 mantissa bits.
// For the bits of an infinity it returns 2^16, with which rounding to infinity is checked.
double ValueOf(uint32_t bits) {
  const int exponent = (bits >> 10) & 0x1f;
  const int mantissa = bits & 0x3ff;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -14 - 10)
                                         : std::ldexp(1024 + mantissa, exponent - 15 - 10);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

TEST_CASE("a float16 becomes the float of the same value") {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    if ((bits & 0x7c00) == 0x7c00) continue;
    const float x = ToFloat(Float16{static_cast<uint16_t>(bits)});
    REQUIRE(double{x} == ValueOf(bits));
    REQUIRE(std::signbit(x) == (bits >= 0x8000));
  }
}

TEST_CASE("a float becomes the nearest float16, ties go to even") {
  for (uint32_t bits = 0; bits < 0x7c00; ++bits) {
    const double low = ValueOf(bits), high = ValueOf(bits + 1), middle = (low + high) / 2;
    const uint32_t even = bits + bits % 2;
    for (int sign : {0, 0x8000}) {
      const auto rounded = [&](double x) {
        const auto value = static_cast<float>(sign != 0 ? -x : x);
        return FromFloat<Float16>(value).bits ^ sign;
      };
      INFO("bits ", bits, ", sign ", sign);
      REQUIRE(rounded(low) == bits);
      REQUIRE(rounded(std::nextafter(static_cast<float>(middle), 0.0f)) == bits);
      REQUIRE(rounded(middle) == even);
      REQUIRE(rounded(std::nextafter(static_cast<float>(middle), 1e6f)) == bits + 1);
    }
  }
}

TEST_CASE("infinities stay, what is too large joins them, and a NaN stays a NaN") {
  const float infinity = std::numeric_limits<float>::infinity();
  CHECK(FromFloat<Float16>(infinity).bits == 0x7c00);
  CHECK(FromFloat<Float16>(-infinity).bits == 0xfc00);
  CHECK(ToFloat(Float16{0x7c00}) == infinity);
  CHECK(ToFloat(Float16{0xfc00}) == -infinity);
  CHECK(FromFloat<Float16>(std::numeric_limits<float>::max()).bits == 0x7c00);
  CHECK(FromFloat<Float16>(65519.0f).bits == 0x7bff);
  CHECK(FromFloat<Float16>(65520.0f).bits == 0x7c00);
  CHECK(std::isnan(ToFloat(Float16{0x7c01})));
  CHECK(std::isnan(ToFloat(Float16{0xffff})));
  for (const char* payload : {"", "1", "123456"}) {
    CHECK(std::isnan(ToFloat(FromFloat<Float16>(std::nanf(payload)))));
  }
}

}  // namespace
}  // namespace sok
