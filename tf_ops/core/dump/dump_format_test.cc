// Dumps: the bytes of the file, refused arguments, and detected damage.
#include "core/dump/dump_format.h"

#include <doctest/doctest.h>

#include <random>

#include "core/base/checksum.h"
#include "core/base/test_folder.h"
#include "core/dump/test_dump.h"

namespace sok {
namespace {

// Laid out by hand after docs/reference/dump-format.md; checksums by the Python package xxhash,
// xxh3_64_intdigest(bytes, seed=offset).
constexpr char kGolden[] =
    "534f4b44554d500a"                  //   0 magic "SOKDUMP\n"
    "0100000018000000"                  //   8 version 1, header of 24 bytes
    "68a529058443826d"                  //  16 checksum
    "0300000002000000"                  //  24 block: group 3, 2 rows
    "3800000000000000"                  //  32 payload of 56 bytes
    "0500000000000000ffffffffffffffff"  //  40 keys 5, 2^64 - 1
    "0100000004030201"                  //  56 update_nums 1, 0x01020304
    "0000006500000000"                  //  64 update_times 0x65000000, 0
    "0000803f000000c00000003f"          //  72 1.0, -2.0, slot 0.5
    "0100c07f000080ff00000080"          //  84 a NaN, -inf, slot -0.0
    "4bc08d438174dc49"                  //  96 checksum
    "02000000"                          // 104 index: 2 groups
    "03000000020000000100000002000000"  // 108 group 3, dim 2, 1 slot float, meta of 2 bytes
    "02000000000000007b7d"              // 124 2 rows, "{}"
    "07000000010000000000000000000000"  // 134 group 7, dim 1, no slots, no meta
    "0000000000000000"                  // 150 no rows
    "6800000000000000"                  // 158 footer: index at 104
    "c600000000000000"                  // 166 file of 198 bytes
    "0200000000000000"                  // 174 2 rows in all
    "aee9e5d4181f365d"                  // 182 checksum
    "534f4b44454e440a";                 // 190 end mark "SOKDEND\n"

std::string FromHex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

const std::vector<TestGroup>& GoldenGroups() {
  static const std::vector<TestGroup> groups = {
      {{3, 2, "{}", 1},
       {{5, 1, 0x65000000, {0x3f800000, 0xc0000000, 0x3f000000}},
        {~Key{0}, 0x01020304, 0, {0x7fc00001, 0xff800000, 0x80000000}}}},
      {{7, 1, "", 0}, {}}};
  return groups;
}

// The golden bytes with a changed number, and with a correct checksum of [from, at) at `at`.
std::string Altered(size_t place, const std::string& bytes, size_t from, size_t at) {
  std::string altered = FromHex(kGolden);
  altered.replace(place, bytes.size(), bytes);
  dump::Store(&altered[at], Checksum(&altered[from], at - from, from));
  return altered;
}

template <typename T>
std::string BytesOf(T value) {
  std::string bytes;
  dump::Append(bytes, value);
  return bytes;
}

TEST_CASE("a dump of version 1 has these bytes") {
  const TestFolder folder;
  REQUIRE(WriteDump(folder / "d", GoldenGroups()).ok());
  CHECK(ReadAll(folder / "d") == FromHex(kGolden));
}

TEST_CASE("any flipped bit of a dump is found") {
  const TestFolder folder;
  const std::string path = folder / "d", good = FromHex(kGolden);
  WriteAll(path, good);
  REQUIRE(CheckDump(path).ok());
  for (size_t i = 0; i < good.size(); ++i) {
    CAPTURE(i);
    for (int bits : {1, 2, 4, 8, 16, 32, 64, 128, 255}) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ bits);
      WriteAll(path, bad);
      const Status status = CheckDump(path);
      const bool names_it =
          i < 12 ? status.code() == Code::kInvalidArgument || status.code() == Code::kDataLoss
                 : status.code() == Code::kDataLoss;
      CHECK_MESSAGE(names_it, status.message());
      CHECK(Contains(status, path));
    }
  }
}

TEST_CASE("a dump that was cut anywhere is found, at Open already") {
  const TestFolder folder;
  const std::string good = FromHex(kGolden);
  for (size_t n = 0; n < good.size(); ++n) {
    CAPTURE(n);
    WriteAll(folder / "d", good.substr(0, n));
    const auto reader = DumpReader::Open(folder / "d");
    REQUIRE(!reader.ok());
    CHECK(reader.status().code() == (n < 8 ? Code::kInvalidArgument : Code::kDataLoss));
  }
}

TEST_CASE("a dump that has grown is found, at Open already") {
  const TestFolder folder;
  const std::string good = FromHex(kGolden), footer = good.substr(158);
  for (const std::string& more : {std::string(1, '\0'), std::string(1, '\n'),
                                  std::string("SOKDEND\n"), footer, good, std::string(5000, 'x')}) {
    WriteAll(folder / "d", good + more);
    const auto reader = DumpReader::Open(folder / "d");
    REQUIRE(!reader.ok());
    CHECK(reader.status().code() == Code::kDataLoss);
  }
}

TEST_CASE("a block that stands where another belongs is found") {
  std::mt19937_64 random(7);
  const TestFolder folder;
  REQUIRE(WriteDump(folder / "d", {RandomGroup(random, {0, 1020, "", 1020}, 256)}).ok());
  std::string bytes = ReadAll(folder / "d");
  const size_t block = 128 * 8176 + 24;
  const std::string first = bytes.substr(24, block);
  bytes.replace(24, block, bytes.substr(24 + block, block));
  bytes.replace(24 + block, block, first);
  WriteAll(folder / "d", bytes);
  const Status status = CheckDump(folder / "d");
  CHECK(status.code() == Code::kDataLoss);
  CHECK(Contains(status, "at byte 24 of"));
}

TEST_CASE("a block that goes bad after Verify does not reach the caller") {
  const TestFolder folder;
  WriteAll(folder / "d", FromHex(kGolden));
  const auto reader = DumpReader::Open(folder / "d");
  REQUIRE(reader.ok());
  REQUIRE(reader.value()->Verify().ok());
  std::fstream(folder / "d", std::ios::binary | std::ios::in | std::ios::out).seekp(75).put('x');
  const Status status = reader.value()->ForEachPiece([](int, const TableContents&) {
    FAIL("a bad block came through");
    return Status();
  });
  CHECK(status.code() == Code::kDataLoss);
  std::filesystem::resize_file(folder / "d", 60);
  CHECK(reader.value()->Verify().code() == Code::kDataLoss);
}

TEST_CASE("structure is checked where checksums agree") {
  const TestFolder folder;
  const auto check = [&](const std::string& bytes, const std::string& words) {
    CAPTURE(words);
    WriteAll(folder / "d", bytes);
    const Status status = CheckDump(folder / "d");
    CHECK(status.code() == Code::kDataLoss);
    CHECK_MESSAGE(Contains(status, words), status.message());
  };
  const auto in_index = [&](size_t place, const std::string& bytes) {
    return Altered(place, bytes, 104, 182);
  };
  const auto in_block = [&](size_t place, const std::string& bytes) {
    return Altered(place, bytes, 24, 96);
  };
  check(Altered(8, BytesOf<uint32_t>(0), 0, 16), "version 1 with a header of 24");
  check(Altered(12, BytesOf<uint32_t>(28), 0, 16), "version 1 with a header of 24");
  check(in_block(24, BytesOf<uint32_t>(7)), "a block of 2 rows of group 3 at byte 24");
  check(in_block(28, BytesOf<uint32_t>(1)), "a block of 2 rows of group 3 at byte 24");
  check(in_block(32, BytesOf<uint64_t>(55)), "a block of 2 rows of group 3 at byte 24");
  check(in_index(104, BytesOf<uint32_t>(1)), "the footer after the last group at byte 134");
  check(in_index(104, BytesOf<uint32_t>(3)), "an index entry of 24 bytes at byte 158");
  check(in_index(104, BytesOf<uint32_t>(257)), "number of groups");
  check(in_index(108, BytesOf<uint32_t>(7)), "ascending groups");
  check(in_index(134, BytesOf<uint32_t>(3)), "ascending groups");
  check(in_index(134, BytesOf<uint32_t>(256)), "ascending groups");
  check(in_index(134, BytesOf<uint32_t>(0xffffffff)), "ascending groups");
  check(in_index(112, BytesOf<uint32_t>(0)), "a dim in");
  check(in_index(112, BytesOf<uint32_t>((1 << 20) + 1)), "a dim in");
  check(in_index(112, BytesOf<uint32_t>(3)), "2 rows of group 3");
  check(in_index(112, BytesOf<uint32_t>(1)), "the index after the last row");
  check(in_index(116, BytesOf<uint32_t>((8 << 20) + 1)), "slot_floats in");
  check(in_index(120, BytesOf<uint32_t>(0xffffffff)), "a meta of at most");
  check(in_index(124, BytesOf<uint64_t>(3)), "the rows of all groups");
  for (uint64_t rows : {uint64_t{1} << 63, ~uint64_t{0} - 1, uint64_t{1} << 60}) {
    std::string many = in_index(124, BytesOf(rows));
    many.replace(174, 8, BytesOf(rows));
    dump::Store(&many[182], Checksum(&many[104], 78, 104));
    check(many, "which are too few");
  }
  check(in_index(158, BytesOf<uint64_t>(~uint64_t{0})), "the offset of the index");
  check(in_index(158, BytesOf<uint64_t>(0)), "the offset of the index");
  check(in_index(158, BytesOf<uint64_t>(24)), "agree with their checksum");
}

TEST_CASE("a dump of a newer version is refused with both versions") {
  const TestFolder folder;
  WriteAll(folder / "d", Altered(8, BytesOf<uint32_t>(9), 0, 16));
  const Status status = CheckDump(folder / "d");
  CHECK(status.code() == Code::kInvalidArgument);
  CHECK(Contains(status, "version 1,"));
  CHECK(Contains(status, "version 9 "));
}

TEST_CASE("other files are not taken for dumps") {
  const TestFolder folder;
  for (const std::string& bytes : {std::string(), std::string("S"), std::string("SOKDUMP\r\n"),
                                   std::string(300, '\0'), std::string("{\"a\": 1}\n")}) {
    WriteAll(folder / "d", bytes);
    const Status status = CheckDump(folder / "d");
    CHECK(status.code() == Code::kInvalidArgument);
    CHECK(Contains(status, "not a sok-embed dump"));
    CHECK(!Contains(status, "load_damo"));
  }
  CHECK(CheckDump(folder / "missing").code() == Code::kNotFound);
  CHECK(CheckDump(folder / ".").code() == Code::kInvalidArgument);
  CHECK(CheckDump("/dev/null").code() == Code::kInvalidArgument);
}

TEST_CASE("a dump of Damo-Embedding is told from other files, even when it was cut") {
  const TestFolder folder;
  std::string damo = BytesOf<int32_t>(1) + BytesOf<int32_t>(4) + BytesOf<int32_t>(2);
  damo += BytesOf<int64_t>(10) + BytesOf<int64_t>(77);
  for (const std::string& bytes : {damo, std::string(4, '\0')}) {
    WriteAll(folder / "d", bytes);
    const Status status = CheckDump(folder / "d");
    CHECK(status.code() == Code::kInvalidArgument);
    CHECK(Contains(status, "load_damo"));
  }
}

}  // namespace
}  // namespace sok
