// Fingerprints against the same hash of words read from the written number, and against what
// TensorFlow's tf.strings.to_hash_bucket_fast(tf.as_string(id), 2^63 - 1) gave.
#include "core/adaptive/decimal_fingerprint.h"

#include <doctest/doctest.h>

#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace sok {
namespace {

template <typename Word>
uint64_t Fetch(const std::string& text, size_t at) {
  Word word;
  std::memcpy(&word, text.data() + at, sizeof(word));
  return word;
}

uint64_t Plain(int64_t id) {
  const std::string text = std::to_string(id);
  const size_t n = text.size();
  const auto length = static_cast<int>(n);
  if (n < 4) {
    return farm::UpTo3(static_cast<uint8_t>(text[0]), static_cast<uint8_t>(text[n / 2]),
                       static_cast<uint8_t>(text[n - 1]), length);
  }
  if (n < 8) {
    return farm::UpTo7(static_cast<uint32_t>(Fetch<uint32_t>(text, 0)),
                       static_cast<uint32_t>(Fetch<uint32_t>(text, n - 4)), length);
  }
  const uint64_t head = Fetch<uint64_t>(text, 0), tail = Fetch<uint64_t>(text, n - 8);
  if (n < 17) return farm::UpTo16(head, tail, length);
  return farm::UpTo32(head, Fetch<uint64_t>(text, 8), Fetch<uint64_t>(text, n - 16), tail, length);
}

void CheckOne(int64_t id) {
  // There are millions of these, so they use no macro.
  if (FingerprintOfDigits(id) == Plain(id)) return;
  CAPTURE(id);
  CHECK(FingerprintOfDigits(id) == Plain(id));
}

void CheckBothSigns(int64_t id) {
  CheckOne(id);
  if (id != INT64_MIN) CheckOne(-id);
}

TEST_CASE("fingerprints of digits are those of the written number") {
  for (int64_t id = 0; id < 200000; ++id) CheckBothSigns(id);
  for (int64_t power = 10;; power *= 10) {
    for (int64_t near = -3; near <= 3; ++near) CheckBothSigns(power + near);
    if (power > INT64_MAX / 10) break;
  }
  for (int64_t near = 0; near < 4; ++near) {
    CheckBothSigns(INT64_MAX - near);
    CheckBothSigns(INT64_MIN + near);
  }
  std::mt19937_64 random(7);
  for (int i = 0; i < 1000000; ++i) {
    const uint64_t bits = random();
    CheckBothSigns(static_cast<int64_t>(bits >> (1 + random() % 63)));
  }
}

TEST_CASE("many fingerprints of digits are those of each") {
  std::mt19937_64 random(8);
  for (const uint64_t in_a_hundred : {0, 1, 10, 50, 100}) {
    CAPTURE(in_a_hundred);
    for (const size_t n : {0, 1, 31, 32, 33, 64, 1000, 20000}) {
      CAPTURE(n);
      std::vector<int64_t> ids(n);
      for (int64_t& id : ids) {
        const bool any = random() % 100 < in_a_hundred;
        id = static_cast<int64_t>(random() >> (any ? random() % 64 : 0));
      }
      for (size_t i = 0; i + 40 < n; i += 40) ids[i] = i % 80 == 0 ? INT64_MIN : INT64_MAX;
      for (size_t i = 7; i + 50 < n; i += 50) ids[i] = 10000000000000000 - i % 3;
      std::vector<uint64_t> each(n), found(n);
      for (size_t i = 0; i < n; ++i) each[i] = FingerprintOfDigits(ids[i]);
      FingerprintsOfDigits(ids.data(), n, found.data());
      CHECK(found == each);
    }
  }
}

TEST_CASE("fingerprints of digits are TensorFlow's") {
  const std::pair<int64_t, uint64_t> known[] = {
      {0, 5975597238397796928u},
      {7, 590358713228080281u},
      {-7, 157654154374354255u},
      {42, 623910487284905736u},
      {-42, 7080633827887290911u},
      {123, 6000784015536866124u},
      {-999, 2135822386599680965u},
      {1234, 882600748797058222u},
      {-12345, 798859481435320310u},
      {999999, 481594372334303475u},
      {-1234567, 4561049060225586265u},
      {12345678, 3430003927990384362u},
      {-12345678, 7333875822948227941u},
      {99999999, 8747822183096626519u},
      {-99999999, 888144820150304974u},
      {100000000, 1793263354092403821u},
      {1234567890123456, 8015733323785012261u},
      {-1234567890123456, 3423126079723869195u},
      {12345678901234567, 323895964247077303u},
      {9223372036854775807, 3516461496058286512u},
      {INT64_MIN, 1493431938208774112u},
  };
  for (const auto& [id, rest] : known) {
    CAPTURE(id);
    CHECK(FingerprintOfDigits(id) % static_cast<uint64_t>(INT64_MAX) == rest);
  }
}

}  // namespace
}  // namespace sok
