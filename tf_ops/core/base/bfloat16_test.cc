#include "core/base/bfloat16.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>

namespace sok {
namespace {

float FloatOf(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

// Returns the value of a finite bfloat16 from its fields: 1 sign, 8 exponent and 7 mantissa bits.
// For the bits of an infinity it returns 2^128, with which rounding to infinity is checked.
double ValueOf(uint32_t bits) {
  const int exponent = (bits >> 7) & 0xff;
  const int mantissa = bits & 0x7f;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -126 - 7)
                                         : std::ldexp(128 + mantissa, exponent - 127 - 7);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

// Returns the nearer of the two neighbours; if both are equally near, the one with an even
// mantissa.
uint16_t Nearest(uint32_t lower, float x) {
  const double below = std::fabs(double{x} - ValueOf(lower));
  const double above = std::fabs(ValueOf(lower + 1) - double{x});
  const bool up = above < below || (above == below && lower % 2 == 1);
  return static_cast<uint16_t>(lower + up);
}

TEST_CASE("a bfloat16 becomes the float of the same value") {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    if ((bits & 0x7f80) == 0x7f80) continue;
    REQUIRE(double{ToFloat(BFloat16{static_cast<uint16_t>(bits)})} == ValueOf(bits));
  }
}

TEST_CASE("a float becomes the nearest bfloat16, ties go to even") {
  for (uint32_t upper = 0; upper <= 0xffff; ++upper) {
    if ((upper & 0x7f80) == 0x7f80) continue;
    for (uint32_t lower : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const float x = FloatOf(upper << 16 | lower);
      INFO("upper half ", upper, ", lower half ", lower);
      REQUIRE(FromFloat<BFloat16>(x).bits == Nearest(upper, x));
    }
  }
}

TEST_CASE("infinities stay, and what is nearer to 2^128 than to the largest bfloat16 joins them") {
  const float infinity = std::numeric_limits<float>::infinity();
  CHECK(FromFloat<BFloat16>(infinity).bits == 0x7f80);
  CHECK(FromFloat<BFloat16>(-infinity).bits == 0xff80);
  CHECK(ToFloat(BFloat16{0x7f80}) == infinity);
  CHECK(ToFloat(BFloat16{0xff80}) == -infinity);
  CHECK(FromFloat<BFloat16>(std::numeric_limits<float>::max()).bits == 0x7f80);
  CHECK(FromFloat<BFloat16>(std::numeric_limits<float>::lowest()).bits == 0xff80);
}

TEST_CASE("a NaN stays a NaN of the same sign, whichever half of it says so") {
  for (uint32_t mantissa = 1; mantissa < 0x800000; mantissa += 61) {
    for (uint32_t sign : {0u, 0x80000000u}) {
      const BFloat16 rounded = FromFloat<BFloat16>(FloatOf(sign | 0x7f800000u | mantissa));
      INFO("mantissa ", mantissa);
      REQUIRE(std::isnan(ToFloat(rounded)));
      REQUIRE((rounded.bits & 0x8000u) == sign >> 16);
    }
  }
  CHECK(std::isnan(ToFloat(FromFloat<BFloat16>(FloatOf(0x7f800001u)))));
  CHECK(std::isnan(ToFloat(FromFloat<BFloat16>(FloatOf(0xffffffffu)))));
}

TEST_CASE("the sign of a zero stays") {
  CHECK(FromFloat<BFloat16>(0.0f).bits == 0x0000);
  CHECK(FromFloat<BFloat16>(-0.0f).bits == 0x8000);
  CHECK(std::signbit(ToFloat(BFloat16{0x8000})));
}

}  // namespace
}  // namespace sok
