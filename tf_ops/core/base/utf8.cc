#include "core/base/utf8.h"

#include <cstddef>
#include <cstdint>

namespace sok {
namespace {

// Returns the number of bytes of the character at the beginning of a text, 0 if it is invalid. The
// text has at least one byte.
size_t CharacterBytes(std::string_view text) {
  const auto byte = [text](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  const size_t size = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  if (first < 0xc2 || first > 0xf4 || text.size() < size) return 0;
  // Excludes forms that are longer than needed, surrogates, and code points above U+10FFFF.
  const uint8_t least = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  const uint8_t most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  if (byte(1) < least || byte(1) > most) return 0;
  for (size_t i = 2; i < size; ++i) {
    if (byte(i) < 0x80 || byte(i) > 0xbf) return 0;
  }
  return size;
}

}  // namespace

bool IsUtf8(std::string_view text) {
  while (!text.empty()) {
    const size_t size = CharacterBytes(text);
    if (size == 0) return false;
    text.remove_prefix(size);
  }
  return true;
}

std::string EscapedUtf8(std::string_view text) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string escaped;
  while (!text.empty()) {
    const size_t size = CharacterBytes(text);
    if (size == 0) {
      const auto byte = static_cast<uint8_t>(text.front());
      escaped += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
      text.remove_prefix(1);
    } else {
      escaped += text.substr(0, size);
      text.remove_prefix(size);
    }
  }
  return escaped;
}

}  // namespace sok
