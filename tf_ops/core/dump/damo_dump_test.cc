// Files of Damo-Embedding's dump().
#include "core/dump/damo_dump.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>

#include "core/base/test_folder.h"
#include "core/dump/dump_format.h"
#include "core/dump/test_dump.h"

namespace sok {
namespace {

using dump::Append;

struct Record {
  int group;
  Key key;
  std::vector<uint32_t> bits;
  bool operator==(const Record& other) const {
    return group == other.group && key == other.key && bits == other.bits;
  }
};

// Returns a file in the format of Damo-Embedding, written after the description in the header.
std::string DamoBytes(const std::vector<DamoGroup>& groups, const std::vector<Record>& records) {
  std::string bytes;
  Append(bytes, static_cast<int32_t>(groups.size()));
  for (const DamoGroup& group : groups) Append(bytes, static_cast<int32_t>(group.group));
  for (const DamoGroup& group : groups) Append(bytes, static_cast<int32_t>(group.dim));
  for (const DamoGroup& group : groups) Append(bytes, static_cast<int64_t>(group.rows));
  for (const Record& record : records) {
    Append(bytes, static_cast<int64_t>(record.key));
    Append(bytes, static_cast<int32_t>(record.group));
    for (uint32_t bits : record.bits) Append(bytes, bits);
  }
  return bytes;
}

std::vector<Record> ReadRecords(const DamoDumpReader& reader) {
  std::vector<Record> records;
  const Status status = reader.ForEachPiece([&](int group, const TableContents& piece) {
    int dim = 0;
    for (const DamoGroup& g : reader.groups()) dim = g.group == group ? g.dim : dim;
    REQUIRE(piece.n == 1);
    Record record{group, *piece.rows.keys, std::vector<uint32_t>(dim)};
    std::memcpy(record.bits.data(), piece.rows.embeddings, dim * sizeof(float));
    records.push_back(std::move(record));
    return Status();
  });
  CHECK_MESSAGE(status.ok(), status.message());
  return records;
}

Status CheckDamo(const std::string& path) {
  const auto reader = DamoDumpReader::Open(path);
  return reader.ok() ? reader.value()->Verify() : reader.status();
}

void CheckRead(const std::vector<DamoGroup>& groups, const std::vector<Record>& records) {
  const TestFolder folder;
  WriteAll(folder / "d", DamoBytes(groups, records));
  CHECK(LooksLikeDamoDump(folder / "d"));
  const auto reader = DamoDumpReader::Open(folder / "d");
  REQUIRE_MESSAGE(reader.ok(), reader.status().message());
  CHECK(reader.value()->Verify().ok());
  REQUIRE(reader.value()->groups().size() == groups.size());
  for (size_t i = 0; i < groups.size(); ++i) {
    CHECK(reader.value()->groups()[i].group == groups[i].group);
    CHECK(reader.value()->groups()[i].dim == groups[i].dim);
    CHECK(reader.value()->groups()[i].rows == groups[i].rows);
  }
  CHECK(ReadRecords(*reader.value()) == records);
}

// Two groups, dims 1 and 2, three records: 36 bytes of header, then 20, 16 and 20.
const std::vector<DamoGroup> kGroups = {{9, 1, 1}, {4, 2, 2}};
const std::vector<Record> kRecords = {{4, 7, {0x3f800000, 0x7fc00001}},
                                      {9, ~Key{0}, {0xff800000}},
                                      {4, Key{1} << 63, {0, 0x80000000}}};

TEST_CASE("a Damo dump is read as its description says") {
  const TestFolder folder;
  const std::string spelled(
      "\2\0\0\0"
      "\x9\0\0\0\4\0\0\0"
      "\1\0\0\0\2\0\0\0"
      "\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0"
      "\7\0\0\0\0\0\0\0\4\0\0\0"
      "\0\0\x80\x3f\1\0\xc0\x7f"
      "\xff\xff\xff\xff\xff\xff\xff\xff\x9\0\0\0"
      "\0\0\x80\xff"
      "\0\0\0\0\0\0\0\x80\4\0\0\0"
      "\0\0\0\0\0\0\0\x80",
      92);
  CHECK(DamoBytes(kGroups, kRecords) == spelled);
  CheckRead(kGroups, kRecords);
}

TEST_CASE("Damo dumps without groups or without rows are read") {
  CheckRead({}, {});
  CheckRead({{0, 1, 0}}, {});
  CheckRead({{255, 1 << 20, 0}, {0, 1, 1}}, {{0, 1, {5}}});
}

TEST_CASE("Damo dumps with many records and with long ones are read") {
  const uint64_t seed = 11;
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  std::vector<DamoGroup> groups = {{0, 3, 0}, {1, 64, 0}, {200, 1 << 20, 0}, {3, 300000, 0}};
  std::vector<Record> records;
  for (int i = 0; i < 30000; ++i) {
    DamoGroup& group = groups[i % 9000 == 8999 ? 2 : i % 7000 == 6999 ? 3 : random() % 2];
    ++group.rows;
    Record record{group.group, random(), std::vector<uint32_t>(group.dim)};
    for (uint32_t& bits : record.bits) bits = static_cast<uint32_t>(random());
    records.push_back(std::move(record));
  }
  CheckRead(groups, records);
}

TEST_CASE("a Damo dump that was cut anywhere or has grown is found at Open") {
  const TestFolder folder;
  const std::string good = DamoBytes(kGroups, kRecords);
  for (size_t n = 0; n < good.size(); ++n) {
    CAPTURE(n);
    WriteAll(folder / "d", good.substr(0, n));
    const auto reader = DamoDumpReader::Open(folder / "d");
    REQUIRE(!reader.ok());
    CHECK(reader.status().code() == (n < 36 ? Code::kInvalidArgument : Code::kDataLoss));
  }
  WriteAll(folder / "d", good + "x");
  CHECK(DamoDumpReader::Open(folder / "d").status().code() == Code::kDataLoss);
}

TEST_CASE("a Damo header that makes no sense is refused with the offset") {
  const TestFolder folder;
  const auto check = [&](const std::vector<DamoGroup>& groups, Code code,
                         const std::string& words) {
    WriteAll(folder / "d", DamoBytes(groups, {}));
    const Status status = CheckDamo(folder / "d");
    CHECK(status.code() == code);
    CHECK_MESSAGE(Contains(status, words), status.message());
  };
  check({{-1, 1, 0}}, Code::kInvalidArgument, "at byte 4.");
  check({{0, 1, 0}, {256, 1, 0}}, Code::kInvalidArgument, "at byte 8.");
  check({{5, 1, 0}, {5, 1, 0}}, Code::kInvalidArgument, "each once at byte 8.");
  check({{5, 0, 0}}, Code::kInvalidArgument, "at byte 8.");
  check({{5, (1 << 20) + 1, 0}}, Code::kInvalidArgument, "at byte 8.");
  check({{5, 1, ~uint64_t{0}}}, Code::kInvalidArgument, "at byte 12.");
  check({{5, 1, uint64_t{1} << 63}}, Code::kInvalidArgument, "at byte 12.");
  check({{5, 1, (uint64_t{1} << 63) - 1}}, Code::kDataLoss, "at byte 20 ");
  // 2^60 records of 16 bytes, whose product would wrap to 0 bytes.
  check({{5, 1, uint64_t{1} << 60}}, Code::kDataLoss, "at byte 20 ");
  check({{5, 1, 1}}, Code::kDataLoss, "at byte 20 ");
  for (int32_t n : {-1, 257, std::numeric_limits<int32_t>::max()}) {
    std::string bytes(5000, '\0');
    dump::Store(bytes.data(), n);
    WriteAll(folder / "d", bytes);
    CHECK(CheckDamo(folder / "d").code() == Code::kInvalidArgument);
    CHECK(!LooksLikeDamoDump(folder / "d"));
  }
}

TEST_CASE("Damo records that contradict the header are found by Verify, with the offset") {
  const TestFolder folder;
  const std::string good = DamoBytes(kGroups, kRecords);
  const auto check = [&](int32_t group, size_t place, const std::string& words) {
    std::string bad = good;
    dump::Store(&bad[place], group);
    WriteAll(folder / "d", bad);
    const Status status = CheckDamo(folder / "d");
    CHECK(status.code() == Code::kDataLoss);
    CHECK_MESSAGE(Contains(status, words), status.message());
  };
  check(5, 44, "a group that the header has at byte 44 of");
  check(-1, 44, "a group that the header has at byte 44 of");
  check(256, 64, "a group that the header has at byte 64 of");
  check(std::numeric_limits<int32_t>::min(), 80, "a group that the header has at byte 80 of");
  check(4, 64, "at byte");  // the record after it no longer starts where it did

  WriteAll(folder / "d", DamoBytes({{1, 2, 1}, {2, 2, 1}}, {{1, 1, {0, 0}}, {1, 2, {0, 0}}}));
  const Status status = CheckDamo(folder / "d");
  CHECK(status.code() == Code::kDataLoss);
  CHECK(Contains(status, "1 records of group 1 up to the end at byte 76 of"));
}

TEST_CASE("a walk over a Damo dump reports where it is and stops when it is told to") {
  const TestFolder folder;
  std::vector<Record> records(200000, {0, 1, {2}});
  WriteAll(folder / "d", DamoBytes({{0, 1, 200000}}, records));
  const auto reader = DamoDumpReader::Open(folder / "d");
  REQUIRE(reader.ok());
  const uint64_t bytes = 20 + 200000 * 16;
  uint64_t last = 0, calls = 0, rows = 0;
  CHECK(reader.value()
            ->Verify([&](uint64_t done, uint64_t total) {
              CHECK(total == bytes);
              CHECK(done > last);
              last = done;
              ++calls;
              return true;
            })
            .ok());
  CHECK(last == bytes);
  CHECK(calls == 5);
  const auto count = [&](int, const TableContents&) { return ++rows, Status(); };
  const auto stop = [&](uint64_t, uint64_t) { return rows == 0; };
  CHECK(reader.value()->ForEachPiece(count, stop).code() == Code::kFailedPrecondition);
  CHECK(rows == (1 << 20) / 16);
  const Status full = reader.value()->ForEachPiece(
      [&](int, const TableContents&) { return Status(Code::kResourceExhausted, "full"); });
  CHECK(full.message() == "full");
}

TEST_CASE("a sok-embed dump and other files are not taken for Damo dumps") {
  const TestFolder folder;
  REQUIRE(WriteDump(folder / "d", {}).ok());
  const Status status = CheckDamo(folder / "d");
  CHECK(status.code() == Code::kInvalidArgument);
  CHECK(Contains(status, "Read it with load."));
  CHECK(!LooksLikeDamoDump(folder / "d"));
  CHECK(CheckDamo(folder / "missing").code() == Code::kNotFound);
  CHECK(CheckDamo(folder / ".").code() == Code::kInvalidArgument);
}

}  // namespace
}  // namespace sok
