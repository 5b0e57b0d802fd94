#include "core/bags/bags.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/test_result.h"
#include "core/base/test_threads.h"

namespace sok {
namespace {

using Splits = std::vector<int64_t>;

std::string Refusal(const std::vector<int32_t>& offsets, int64_t entries, bool ends = false) {
  const auto splits =
      SplitsOfOffsets(offsets.data(), static_cast<int64_t>(offsets.size()), entries, ends);
  REQUIRE(!splits.ok());
  REQUIRE(splits.status().code() == Code::kInvalidArgument);
  return splits.status().message();
}

TEST_CASE("offsets become splits, with and without the last one") {
  const int64_t offsets[] = {0, 2, 2, 5};
  CHECK(Value(SplitsOfOffsets(offsets, 4, 6, false)) == Splits{0, 2, 2, 5, 6});
  CHECK(Value(SplitsOfOffsets(offsets, 4, 5, true)) == Splits{0, 2, 2, 5});
  CHECK(Value(SplitsOfOffsets(offsets, 0, 0, false)) == Splits{0});
  CHECK(Value(SplitsOfOffsets(offsets, 1, 0, true)) == Splits{0});
}

TEST_CASE("malformed offsets are refused") {
  CHECK(Refusal({1, 2}, 5) == "expected the first offset to be 0, got 1");
  CHECK(Refusal({0, 3, 2}, 5) ==
        "expected offsets that do not decrease, got 2 after 3 at position 2");
  CHECK(Refusal({0, 6}, 5) ==
        "expected offsets of at most 5, the number of ids, got 6 at position 1");
  CHECK(Refusal({0, -1}, 5) ==
        "expected offsets that do not decrease, got -1 after 0 at position 1");
  CHECK(Refusal({}, 5) == "expected offsets that cover 5 ids, got none");
  CHECK(Refusal({}, 0, true).find("at least one offset") != std::string::npos);
  CHECK(Refusal({0, 3}, 5, true).find("the last offset to be 5") != std::string::npos);
}

TEST_CASE("rows become splits") {
  const int64_t rows[] = {0, 0, 3, 4, 4};
  int64_t splits[8];
  REQUIRE(SplitsOfRows(rows, 5, 7, splits).ok());
  CHECK(Splits(splits, splits + 8) == Splits{0, 2, 2, 2, 3, 5, 5, 5});
  REQUIRE(SplitsOfRows(rows, 0, 2, splits).ok());
  CHECK(Splits(splits, splits + 3) == Splits{0, 0, 0});
}

TEST_CASE("rows that decrease or are out of range are refused") {
  int64_t splits[8];
  const int64_t decreasing[] = {0, 2, 1}, negative[] = {-1}, large[] = {0, 7};
  CHECK(SplitsOfRows(decreasing, 3, 7, splits).message() ==
        "expected rows that do not decrease, got 1 after 2 at position 2");
  CHECK(SplitsOfRows(negative, 1, 7, splits).message() ==
        "expected rows in [0, 7), got -1 at position 0");
  CHECK(SplitsOfRows(large, 2, 7, splits).message() ==
        "expected rows in [0, 7), got 7 at position 1");
}

TEST_CASE("the first id out of range is named, whoever finds one") {
  std::vector<int64_t> ids(1000, 9);
  CHECK(CheckIds(ids.data(), 1000, 10, ThreadedFor).ok());
  ids[700] = 10;
  ids[900] = -1;
  CHECK(CheckIds(ids.data(), 1000, 10, ThreadedFor).message() ==
        "expected ids in [0, 10), got 10 at position 700");
  ids[3] = INT64_MIN;
  CHECK(CheckIds(ids.data(), 1000, 10, ThreadedFor).message() ==
        "expected ids in [0, 10), got -9223372036854775808 at position 3");
}

}  // namespace
}  // namespace sok
