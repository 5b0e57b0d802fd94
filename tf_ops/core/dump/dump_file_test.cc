// Dumps: reading returns the rows that were written.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>

#include "core/base/test_folder.h"
#include "core/dump/test_dump.h"

namespace sok {
namespace {

constexpr uint64_t kSeed = 20240607;

void CheckGroups(const std::vector<DumpGroup>& read, const std::vector<TestGroup>& written) {
  REQUIRE(read.size() == written.size());
  for (size_t i = 0; i < read.size(); ++i) {
    CHECK(read[i].group == written[i].group.group);
    CHECK(read[i].dim == written[i].group.dim);
    CHECK(read[i].slot_floats == written[i].group.slot_floats);
    CHECK(read[i].meta == written[i].group.meta);
    CHECK(read[i].rows == written[i].rows.size());
  }
}

// Reads a dump block by block.
Status ReadPieces(const DumpReader& reader, const PieceFn& fn) {
  for (size_t i = 0; i < reader.groups().size(); ++i) {
    size_t n = 0;
    for (uint64_t begin = 0; begin < reader.groups()[i].rows; begin += n) {
      const Status status = reader.ReadPiece(i, begin, [&](int group, const TableContents& piece) {
        n = piece.n;
        return fn(group, piece);
      });
      if (!status.ok()) return status;
    }
  }
  return Status();
}

void CheckWalk(const std::function<Status(const PieceFn&)>& walk,
               const std::vector<TestGroup>& written) {
  size_t group = 0, row = 0, different = 0;
  const Status status = walk([&](int of, const TableContents& piece) {
    while (row == written[group].rows.size()) ++group, row = 0;
    CHECK(of == written[group].group.group);
    const size_t dim = written[group].group.dim, slot_floats = written[group].group.slot_floats;
    const RowColumns& rows = piece.rows;
    REQUIRE(piece.n > 0);
    REQUIRE(piece.slot_floats == written[group].group.slot_floats);
    REQUIRE(row + piece.n <= written[group].rows.size());
    for (size_t i = 0; i < piece.n; ++i, ++row) {
      TestRow read{rows.keys[i],
                   static_cast<uint32_t>(rows.update_nums[i]),
                   static_cast<uint32_t>(rows.update_times[i]),
                   {}};
      read.bits.resize(dim + slot_floats);
      std::memcpy(read.bits.data(), rows.embeddings + i * dim, dim * sizeof(float));
      if (slot_floats > 0) {
        std::memcpy(read.bits.data() + dim, rows.slots + i * slot_floats,
                    slot_floats * sizeof(float));
      }
      different += !(read == written[group].rows[row]);
    }
    return Status();
  });
  CHECK_MESSAGE(status.ok(), status.message());
  CHECK(different == 0);
  while (group < written.size() && row == written[group].rows.size()) ++group, row = 0;
  CHECK(group == written.size());
}

void CheckRows(const DumpReader& reader, const std::vector<TestGroup>& written) {
  CheckWalk([&](const PieceFn& fn) { return reader.ForEachPiece(fn); }, written);
  CheckWalk([&](const PieceFn& fn) { return ReadPieces(reader, fn); }, written);
}

void CheckRoundTrip(const std::vector<TestGroup>& groups) {
  const TestFolder folder;
  const std::string path = folder / "rows.dump";
  const Status written = WriteDump(path, groups);
  REQUIRE_MESSAGE(written.ok(), written.message());
  CHECK(folder.CountFiles() == 1);
  const auto reader = DumpReader::Open(path);
  REQUIRE_MESSAGE(reader.ok(), reader.status().message());
  const Status verified = reader.value()->Verify();
  CHECK_MESSAGE(verified.ok(), verified.message());
  uint64_t rows = 0;
  for (const TestGroup& group : groups) rows += group.rows.size();
  CHECK(reader.value()->rows() == rows);
  CheckGroups(reader.value()->groups(), groups);
  CheckRows(*reader.value(), groups);
}

TEST_CASE("a dump gives back every group and every bit of its rows") {
  std::mt19937_64 random(kSeed);
  CAPTURE(kSeed);
  const std::string binary("\0{\"rule\": \"\xff\"}\n", 16);
  SUBCASE("no groups") { CheckRoundTrip({}); }
  SUBCASE("groups without rows") {
    CheckRoundTrip(
        {RandomGroup(random, {0, 1, "", 0}, 0), RandomGroup(random, {255, 8, "{}", 16}, 0)});
  }
  SUBCASE("empty groups between full ones") {
    CheckRoundTrip({RandomGroup(random, {0, 3, "a", 0}, 0),
                    RandomGroup(random, {1, 4, binary, 8}, 5),
                    RandomGroup(random, {2, 1, "", 1}, 0), RandomGroup(random, {200, 1, "b", 0}, 1),
                    RandomGroup(random, {255, 2, "c", 0}, 0)});
  }
  SUBCASE("all groups") {
    std::vector<TestGroup> groups;
    for (int g = 0; g < 256; ++g) {
      groups.push_back(RandomGroup(random, {g, 1 + g % 7, std::string(g, 'm'), g % 5}, g % 11));
    }
    CheckRoundTrip(groups);
  }
  SUBCASE("the longest meta") {
    CheckRoundTrip({RandomGroup(random, {9, 2, std::string(1 << 20, 'm'), 0}, 3)});
  }
}

TEST_CASE("a dump gives back rows around the ends of blocks") {
  std::mt19937_64 random(kSeed);
  CAPTURE(kSeed);
  const int dim = 1020, slot_floats = 1020;  // 8176 bytes a row, 128 rows a block
  for (size_t rows : {1, 127, 128, 129, 256, 257, 700}) {
    CAPTURE(rows);
    CheckRoundTrip({RandomGroup(random, {1, dim, "", slot_floats}, rows),
                    RandomGroup(random, {2, 5, "", 0}, rows)});
  }
}

TEST_CASE("a row may be longer than a block") {
  std::mt19937_64 random(kSeed);
  CAPTURE(kSeed);
  CheckRoundTrip({RandomGroup(random, {0, (1 << 18) - 4, "", 0}, 2),  // 2^20 bytes
                  RandomGroup(random, {1, (1 << 18) - 3, "", 0}, 2),
                  RandomGroup(random, {3, 1 << 20, "", 1 << 20}, 2),
                  RandomGroup(random, {4, 1, "", 0}, 9)});
}

TEST_CASE("a dump keeps rows of an equal key as they came") {
  const TestRow row{~Key{0}, 1, 2, {0x7fc00123}};
  CheckRoundTrip({{{0, 1, "", 0}, {row, row, {0, 0, 0, {0xff800000}}}}});
}

TEST_CASE("blocks stay within a mebibyte") {
  std::mt19937_64 random(kSeed);
  const TestFolder folder;
  REQUIRE(WriteDump(folder / "d", {RandomGroup(random, {0, 7, "", 2}, 100000)}).ok());
  const auto reader = DumpReader::Open(folder / "d");
  REQUIRE(reader.ok());
  std::vector<size_t> sizes;
  REQUIRE(reader.value()
              ->ForEachPiece([&](int, const TableContents& piece) {
                sizes.push_back(piece.n);
                return Status();
              })
              .ok());
  CHECK(sizes == std::vector<size_t>{20164, 20164, 20164, 20164, 19344});  // 2^20 / 52
}

TEST_CASE("readers report where they are, and stop when they are told to") {
  std::mt19937_64 random(kSeed);
  const TestFolder folder;
  REQUIRE(WriteDump(folder / "d", {RandomGroup(random, {0, 7, "", 2}, 50000)}).ok());
  const uint64_t bytes = ReadAll(folder / "d").size();
  const auto reader = DumpReader::Open(folder / "d");
  REQUIRE(reader.ok());
  std::vector<uint64_t> reports;
  REQUIRE(reader.value()
              ->Verify([&](uint64_t done, uint64_t total) {
                CHECK(total == bytes);
                reports.push_back(done);
                return true;
              })
              .ok());
  CHECK(reports.size() == 4);
  CHECK(std::is_sorted(reports.begin(), reports.end()));
  CHECK(reports.back() == bytes);

  size_t blocks = 0;
  const Status stopped =
      reader.value()->ForEachPiece([&](int, const TableContents&) { return ++blocks, Status(); },
                                   [&](uint64_t, uint64_t) { return blocks < 2; });
  CHECK(stopped.code() == Code::kFailedPrecondition);
  CHECK(blocks == 2);
}

TEST_CASE("an error of the caller ends the walk and is handed on") {
  std::mt19937_64 random(kSeed);
  const TestFolder folder;
  REQUIRE(WriteDump(folder / "d",
                    {RandomGroup(random, {0, 2, "", 0}, 3), RandomGroup(random, {1, 2, "", 0}, 3)})
              .ok());
  const auto reader = DumpReader::Open(folder / "d");
  REQUIRE(reader.ok());
  size_t blocks = 0;
  const Status status = reader.value()->ForEachPiece([&](int, const TableContents&) {
    ++blocks;
    return Status(Code::kResourceExhausted, "the table is full");
  });
  CHECK(status.code() == Code::kResourceExhausted);
  CHECK(status.message() == "the table is full");
  CHECK(blocks == 1);
}

TEST_CASE("a reader goes on with its file when another takes the name") {
  std::mt19937_64 random(kSeed);
  const TestFolder folder;
  const std::vector<TestGroup> first = {RandomGroup(random, {0, 2, "", 0}, 3)};
  const std::vector<TestGroup> second = {RandomGroup(random, {8, 4, "", 1}, 9)};
  REQUIRE(WriteDump(folder / "d", first).ok());
  const auto old_reader = DumpReader::Open(folder / "d");
  REQUIRE(WriteDump(folder / "d", second).ok());
  const auto new_reader = DumpReader::Open(folder / "d");
  REQUIRE(old_reader.ok());
  REQUIRE(new_reader.ok());
  CheckRows(*old_reader.value(), first);
  CheckRows(*new_reader.value(), second);
}

}  // namespace
}  // namespace sok
