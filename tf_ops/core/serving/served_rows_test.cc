#include "core/serving/served_rows.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "core/base/hash.h"
#include "core/base/test_folder.h"
#include "core/base/test_threads.h"
#include "core/serving/test_served_rows.h"

namespace sok {
namespace {

// Returns the largest error of a value in a row with these values.
double BoundOf(ServingType type, const float* row, int dim) {
  const auto [least, most] = std::minmax_element(row, row + dim);
  const double range = double{*most} - *least;
  const double size = std::max(std::fabs(*least), std::fabs(*most));
  switch (type) {
    case ServingType::kFloat32:
      return 0;
    case ServingType::kFloat16:
      return size * 0x1p-11 + 0x1p-25;
    case ServingType::kInt8:
      return (range / 255 + size * 0x1p-18) * 0.5 * (1 + 0x1p-9) + size * 0x1p-22 + 0x1p-24;
    case ServingType::kInt4:
      return (range / 15 + size * 0x1p-14) * 0.5 * (1 + 0x1p-9) + size * 0x1p-22 + 0x1p-24;
  }
  return 0;
}

TEST_CASE("a file of rows has the rows that were written, of every type and dim") {
  std::mt19937_64 random(TestSeed());
  const TestFolder folder;
  for (const ServingType type : kServingTypes) {
    for (const int dim : {1, 3, 16, 32, 64, 129}) {
      for (const size_t n : {size_t{0}, size_t{1}, size_t{2}, size_t{700}, size_t{5000}}) {
        CAPTURE(ServingTypeName(type));
        CAPTURE(dim);
        CAPTURE(n);
        const TestRows written = RandomRows(n, dim, &random);
        const std::string path = folder / "items.safetensors";
        REQUIRE(WriteRows(path, HeaderOf(type, dim), written).ok());
        const auto rows = Value(ServedRows::Open(path));
        REQUIRE(rows->size() == n);
        CHECK(rows->Verify(ThreadedFor).ok());
        CHECK(rows->file_bytes() == ReadAll(path).size());

        std::vector<Key> asked = written.keys;
        for (int i = 0; i < 300; ++i) asked.push_back(random());
        const std::vector<float> found = LookUp(*rows, asked, ThreadedFor);
        std::vector<uint8_t> there(asked.size());
        REQUIRE(rows->Contains(asked.data(), asked.size(), there.data(), ThreadedFor).ok());
        size_t wrong = 0;
        const auto width = static_cast<size_t>(dim);
        for (size_t i = 0; i < asked.size(); ++i) {
          wrong += there[i] != (i < n);
          const double bound = i < n ? BoundOf(type, written.values.data() + i * width, dim) : 0.0;
          for (size_t j = 0; j < width; ++j) {
            const double expected = i < n ? written.values[i * width + j] : 0.0;
            wrong += !(std::fabs(found[i * width + j] - expected) <= bound);
          }
        }
        CHECK(wrong == 0);

        std::vector<float> all(n * width);
        rows->Read(0, n, all.data(), SerialFor);
        const std::vector<Key> in_file(rows->keys(), rows->keys() + n);
        CHECK(all == LookUp(*rows, in_file));
        CHECK(std::is_sorted(in_file.begin(), in_file.end(),
                             [](Key a, Key b) { return Mix64(a) < Mix64(b); }));
      }
    }
  }
}

TEST_CASE("a key that a file does not have gets the vector of its initializer") {
  std::mt19937_64 random(TestSeed());
  const TestFolder folder;
  const TestRows written = RandomRows(100, 5, &random);
  const MissingRows starts[] = {{"constant", 0.25, 0, 0, 0},
                                {"uniform", -0.05, 0.05, ~uint64_t{0}, 0},
                                {"normal", 0, 0.1, 7, 3},
                                {"truncated_normal", 1, 1e-30, 1, 255}};
  for (const MissingRows& start : starts) {
    ServingHeader header = HeaderOf(ServingType::kFloat32, 5);
    header.missing = start;
    const std::string path = folder / "rows";
    REQUIRE(WriteRows(path, header, written).ok());
    const auto rows = Value(ServedRows::Open(path));
    const Initializer initializer =
        Value(Initializer::Make(start.kind, start.a, start.b, start.seed, start.group));
    const std::vector<Key> absent = {42, 43, Key{1} << 40};
    std::vector<float> expected(absent.size() * 5);
    for (size_t i = 0; i < absent.size(); ++i) {
      initializer.Fill(absent[i], expected.data() + 5 * i, 5);
    }
    CHECK(LookUp(*rows, absent) == expected);
  }
}

TEST_CASE("a bucket that somebody has filled is searched for the hash") {
  const TestFolder folder;
  TestRows rows{1, {}, {}};
  for (Key key = 0; rows.keys.size() < 20000; ++key) {
    if (Mix64(key) >> 56 != 77) continue;
    rows.keys.push_back(key);
    rows.values.push_back(static_cast<float>(key));
  }
  REQUIRE(WriteRows(folder / "rows", HeaderOf(ServingType::kFloat32, 1), rows).ok());
  const auto served = Value(ServedRows::Open(folder / "rows"));
  CHECK(served->Verify(SerialFor).ok());
  CHECK(LookUp(*served, rows.keys) == rows.values);
  for (Key& key : rows.keys) ++key;
  const std::vector<float> others = LookUp(*served, rows.keys);
  for (size_t i = 0; i < others.size(); ++i) {
    const bool there = Mix64(rows.keys[i]) >> 56 == 77;
    CHECK(others[i] == (there ? static_cast<float>(rows.keys[i]) : 0.0f));
  }
}

TEST_CASE("what is open stays when another file takes its name") {
  std::mt19937_64 random(TestSeed());
  const TestFolder folder;
  const TestRows first = RandomRows(50, 3, &random), second = RandomRows(60, 3, &random);
  const ServingHeader header = HeaderOf(ServingType::kFloat32, 3);
  REQUIRE(WriteRows(folder / "rows", header, first).ok());
  const auto rows = Value(ServedRows::Open(folder / "rows"));
  REQUIRE(WriteRows(folder / "rows", header, second).ok());
  CHECK(LookUp(*rows, first.keys) == first.values);
  CHECK(LookUp(*Value(ServedRows::Open(folder / "rows")), second.keys) == second.values);
}

TEST_CASE("a path without a file of rows is refused") {
  const TestFolder folder;
  CHECK(ServedRows::Open(folder / "absent").status().code() == Code::kNotFound);
  CHECK(ServedRows::Open(folder / "").status().code() == Code::kInvalidArgument);
  CHECK(ServedRows::Open("/dev/null").status().code() == Code::kInvalidArgument);
  for (const std::string& bytes : {std::string(), std::string("short"), std::string(9000, 'x')}) {
    WriteAll(folder / "other", bytes);
    const Status status = ServedRows::Open(folder / "other").status();
    CHECK(status.code() == Code::kDataLoss);
    CHECK(Contains(status, folder / "other"));
  }
}

}  // namespace
}  // namespace sok
