#include "core/base/utf8.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <string>

namespace sok {
namespace {

// The bytes of a code point by the shifts of RFC 3629, section 3.
std::string Encoded(uint32_t point) {
  const auto low = [point](int shift) { return static_cast<char>(0x80 | (point >> shift & 0x3f)); };
  if (point < 0x80) return {static_cast<char>(point)};
  if (point < 0x800) return {static_cast<char>(0xc0 | point >> 6), low(0)};
  if (point < 0x10000) return {static_cast<char>(0xe0 | point >> 12), low(6), low(0)};
  return {static_cast<char>(0xf0 | point >> 18), low(12), low(6), low(0)};
}

}  // namespace

TEST_CASE("every character is UTF-8 and stays, and halves of surrogate pairs are not") {
  for (uint32_t point = 0; point < 0x120000; ++point) {
    const std::string text = "a" + Encoded(point) + "z";
    const bool is_character = point < 0xd800 || (point > 0xdfff && point < 0x110000);
    REQUIRE(IsUtf8(text) == is_character);
    REQUIRE((EscapedUtf8(text) == text) == is_character);
    REQUIRE(IsUtf8(EscapedUtf8(text)));
  }
}

TEST_CASE("only as many pairs of bytes are UTF-8 as there are pairs of characters of two bytes") {
  int found = 0;
  for (int pair = 0; pair < 1 << 16; ++pair) {
    const std::string text = {static_cast<char>(pair >> 8), static_cast<char>(pair)};
    found += IsUtf8(text);
    REQUIRE(IsUtf8(EscapedUtf8(text)));
  }
  CHECK(found == 128 * 128 + (0x800 - 0x80));
}

TEST_CASE("bytes that belong to no character are shown by their numbers") {
  CHECK(EscapedUtf8("run/\xff\xc3\xa9") == "run/\\xff\xc3\xa9");
  CHECK(EscapedUtf8("\xe2\x82") == "\\xe2\\x82");
  CHECK(EscapedUtf8("\xc0\x80") == "\\xc0\\x80");
  CHECK(EscapedUtf8("").empty());
}

}  // namespace sok
