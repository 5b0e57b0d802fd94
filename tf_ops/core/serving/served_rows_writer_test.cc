#include "core/serving/served_rows_writer.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>

#include "core/base/test_folder.h"
#include "core/base/test_threads.h"
#include "core/serving/test_served_rows.h"

namespace sok {
namespace {

TEST_CASE("rows that are sorted in runs make the same file, in every order and number of batches") {
  std::mt19937_64 random(TestSeed());
  const TestFolder folder;
  for (const ServingType type : kServingTypes) {
    const TestRows rows = RandomRows(3000, 5, &random);
    const ServingHeader header = HeaderOf(type, 5);
    REQUIRE(WriteRows(folder / "whole", header, rows).ok());
    const std::string expected = ReadAll(folder / "whole");
    for (const size_t memory : {size_t{1}, size_t{2000}, size_t{30000}}) {
      std::vector<size_t> order(rows.keys.size());
      for (size_t i = 0; i < order.size(); ++i) order[i] = i;
      std::shuffle(order.begin(), order.end(), random);
      auto writer = Value(ServedRowsWriter::Open(folder / "parts", header, memory));
      for (size_t begin = 0; begin < order.size();) {
        const size_t n = std::min<size_t>(random() % 700, order.size() - begin);
        TestRows part{5, {}, {}};
        for (size_t i = begin; i < begin + n; ++i) {
          part.keys.push_back(rows.keys[order[i]]);
          const float* row = rows.values.data() + 5 * order[i];
          part.values.insert(part.values.end(), row, row + 5);
        }
        REQUIRE(writer->Add(part.keys.data(), part.values.data(), n, ThreadedFor).ok());
        begin += n;
      }
      REQUIRE(writer->Finish().ok());
      CHECK(writer->rows() == 3000);
      CHECK(writer->file_bytes() == expected.size());
      CHECK(ReadAll(folder / "parts") == expected);
    }
  }
  CHECK(folder.CountFiles() == 2);
}

TEST_CASE("a key that comes twice is refused by its name, in memory and in runs") {
  std::mt19937_64 random(TestSeed());
  const TestFolder folder;
  TestRows rows = RandomRows(1000, 2, &random);
  rows.keys.push_back(~Key{0});
  rows.values.insert(rows.values.end(), {1.0f, 2.0f});
  for (const size_t memory : {size_t{1}, size_t{3000}, ServedRowsWriter::kMemory}) {
    const Status status =
        WriteRows(folder / "rows", HeaderOf(ServingType::kFloat32, 2), rows, memory);
    CHECK(status.code() == Code::kInvalidArgument);
    CHECK(Contains(status, "key 18446744073709551615 (-1 as int64) more than once"));
  }
  CHECK(folder.CountFiles() == 0);
}

TEST_CASE("values that a file cannot hold are refused with their key") {
  const TestFolder folder;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto written = [&](ServingType type, float low, float high) {
    return WriteRows(folder / "rows", HeaderOf(type, 2), {2, {7, 42}, {0, 0, low, high}});
  };
  for (const ServingType type : kServingTypes) {
    for (const float wrong : {kInfinity, -kInfinity, std::nanf("")}) {
      const Status status = written(type, 1, wrong);
      CHECK(status.code() == Code::kInvalidArgument);
      CHECK(Contains(status, "place 1 of the row of key 42"));
    }
  }
  CHECK(written(ServingType::kFloat32, -3e38f, 3e38f).ok());
  CHECK(written(ServingType::kFloat16, -65504, 65519).ok());
  CHECK(Contains(written(ServingType::kFloat16, 0, 65520), "row of key 42"));
  CHECK(written(ServingType::kInt8, -8e6f, 8e6f).ok());
  CHECK(Contains(written(ServingType::kInt8, -3e38f, 3e38f), "row of key 42"));
  CHECK(Contains(written(ServingType::kInt8, 70000, 70000), "row of key 42"));
  CHECK(Contains(written(ServingType::kInt4, -1e6f, 1e6f), "row of key 42"));
}

TEST_CASE("a writer that ends early, or fails, leaves the older file") {
  std::mt19937_64 random(TestSeed());
  const TestFolder folder;
  const ServingHeader header = HeaderOf(ServingType::kFloat32, 4);
  REQUIRE(WriteRows(folder / "rows", header, RandomRows(10, 4, &random)).ok());
  const std::string before = ReadAll(folder / "rows");
  const TestRows rows = RandomRows(20000, 4, &random);
  {
    auto writer = Value(ServedRowsWriter::Open(folder / "rows", header, 5000));
    REQUIRE(writer->Add(rows.keys.data(), rows.values.data(), 1000, SerialFor).ok());
  }
  for (const size_t memory : {size_t{5000}, ServedRowsWriter::kMemory}) {
    const FileSizeLimit full(100000);
    CHECK(WriteRows(folder / "rows", header, rows, memory).code() == Code::kResourceExhausted);
  }
  CHECK(ReadAll(folder / "rows") == before);
  CHECK(folder.CountFiles() == 1);
}

TEST_CASE("a finished writer takes nothing more") {
  const TestFolder folder;
  const float row = 1;
  const Key key = 1;
  auto writer = Value(ServedRowsWriter::Open(folder / "rows", HeaderOf(ServingType::kInt4, 1)));
  REQUIRE(writer->Finish().ok());
  CHECK(writer->Add(&key, &row, 1, SerialFor).code() == Code::kFailedPrecondition);
  CHECK(writer->Finish().code() == Code::kFailedPrecondition);
  CHECK(Value(ServedRows::Open(folder / "rows"))->size() == 0);
}

TEST_CASE("headers that no file can have are refused before a row comes") {
  const TestFolder folder;
  const auto refused = [&](const ServingHeader& header) {
    return ServedRowsWriter::Open(folder / "rows", header).status().code() ==
           Code::kInvalidArgument;
  };
  CHECK(refused(HeaderOf(ServingType::kInt8, 0)));
  CHECK(refused(HeaderOf(ServingType::kInt8, (1 << 20) + 1)));
  ServingHeader header = HeaderOf(ServingType::kFloat32, 4);
  header.name = "\xff";
  CHECK(refused(header));
  header.name = "items";
  header.missing = MissingRows{"cauchy", 0, 1, 0, 0};
  CHECK(refused(header));
  header.missing.reset();
  header.extra = {{"dim", "5"}};
  CHECK(refused(header));
  header.extra = {{"note", std::string(5 << 20, 'x')}};
  CHECK(refused(header));
  header.extra = {{"note", "\"quoted\"\n"}, {"", std::string(10000, 'x')}};
  CHECK_FALSE(refused(header));
}

}  // namespace
}  // namespace sok
