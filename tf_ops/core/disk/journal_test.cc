// Records of a journal are read again whatever the stack held when they were written, and whatever
// order they came to the device in.
#include "core/disk/journal.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "core/base/test_folder.h"
#include "core/base/test_result.h"
#include "core/disk/journal_reader.h"
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace sok {
namespace {

constexpr uint64_t kStorage = 7;

using Image = std::array<unsigned char, sizeof(XXH3_state_t)>;

// Returns the bytes of a state of the seed that has a secret of another one.
Image StateOf(uint64_t seed) {
  XXH3_state_t state;
  XXH3_INITSTATE(&state);
  XXH3_64bits_reset_withSeed(&state, seed);
  std::memset(state.customSecret, 0x5a, sizeof(state.customSecret));
  Image image;
  std::memcpy(image.data(), &state, sizeof(state));
  return image;
}

// Leaves such bytes all over the stack below the caller, `phase` times the alignment of a state
// later than at a multiple of its size.
__attribute__((noinline)) void DirtyStack(const Image& image, size_t phase) {
  alignas(XXH3_state_t) volatile unsigned char stack[size_t{64} << 10];
  size_t from = image.size() - phase * alignof(XXH3_state_t);
  for (volatile unsigned char& byte : stack) byte = image[from++ % image.size()];
}

// Appends a record with one row.
void AppendRow(Journal* journal, Key key) {
  const std::string row(64 * sizeof(float), 'x');
  RowHeader header = {};
  header.version = RowHeader::kVersion;
  header.dim = 64;
  std::vector<RowBatch> rows(1);
  rows[0].Put(RowKey(0, key), header, row);
  Journal::Room room = Value(journal->Reserve(rows[0].bytes()));
  REQUIRE(journal->Append(std::move(room), {{"group/000", "text"}}, rows).ok());
}

}  // namespace

TEST_CASE("segments that are dropped do not count, also where a later one has begun") {
  const TestFolder folder;
  Journal journal(folder / ".", kStorage, 1);
  AppendRow(&journal, 1);
  const uint64_t one = journal.bytes();
  const uint64_t ended = journal.EndSegment();
  AppendRow(&journal, 2);
  CHECK(journal.bytes() == 2 * one);
  journal.DropThrough(ended);
  CHECK(journal.bytes() == one);
  AppendRow(&journal, 3);
  journal.DropThrough(journal.EndSegment());
  CHECK(journal.bytes() == 0);
}

TEST_CASE("a whole record behind a torn one counts if that one was on the device before") {
  const TestFolder folder;
  {
    Journal journal(folder / ".", kStorage, 1);
    for (Key key = 0; key < 3; ++key) AppendRow(&journal, key);
  }
  const std::string path = folder / JournalSegmentName(1);
  std::ifstream file(path, std::ios::binary);
  const std::string written{std::istreambuf_iterator<char>(file), {}};
  const size_t begin = sizeof(JournalSegmentHeader);
  const size_t bytes = (written.size() - begin) / 3;
  for (const bool was_there : {true, false}) {
    CAPTURE(was_there);
    std::string torn = written;
    JournalRecordHeader last;
    char* place = torn.data() + begin + 2 * bytes;
    std::memcpy(&last, place, sizeof(last));
    last.unsynced = was_there ? 0 : static_cast<uint32_t>(bytes);
    last.head_checksum = HeadChecksum(last, 1);
    std::memcpy(place, &last, sizeof(last));
    std::fill_n(torn.begin() + static_cast<std::ptrdiff_t>(begin + bytes), bytes, '\0');
    std::ofstream(path, std::ios::binary | std::ios::trunc) << torn;
    const auto reader = JournalReader::Open(folder / ".", kStorage, 0, {});
    CHECK(reader.ok() == !was_there);
    if (reader.ok()) CHECK(reader.value()->places().size() == 1);
  }
}

TEST_CASE("a torn end is torn only behind what calls had returned for") {
  const TestFolder folder;
  const auto note = std::make_shared<WrittenNote>(folder / ".");
  {
    Journal journal(folder / ".", kStorage, 1, Journal::kMostBytes, /*sync=*/false,
                    /*history=*/{}, /*before=*/{}, note);
    for (Key key = 0; key < 3; ++key) AppendRow(&journal, key);
  }
  const auto open = [&] {
    return JournalReader::Open(folder / ".", kStorage, 0, {}, note->files());
  };
  const std::string path = folder / JournalSegmentName(1);
  const std::string written = ReadAll(path);
  CHECK(open().value()->places().size() == 3);
  WriteAll(path, written + "torn");
  CHECK(open().value()->places().size() == 3);
  const size_t begin = sizeof(JournalSegmentHeader);
  const size_t bytes = (written.size() - begin) / 3;
  for (size_t end : {size_t{0}, begin, begin + 2 * bytes, written.size() - 1}) {
    WriteAll(path, written.substr(0, end));
    CHECK(open().status().code() == Code::kDataLoss);
  }
  std::filesystem::remove(path);
  CHECK(open().status().code() == Code::kDataLoss);
  CHECK(JournalReader::Open(folder / ".", kStorage, 1, {}, note->files()).ok());
}

TEST_CASE("a record of a journal has a right checksum whatever the stack held before") {
  const std::string row(64 * sizeof(float), 'x');
  const Image image = StateOf(1);
  for (size_t phase = 0; phase < sizeof(XXH3_state_t) / alignof(XXH3_state_t); ++phase) {
    const TestFolder folder;
    Journal journal(folder / ".", kStorage, 1);
    RowHeader header = {};
    header.version = RowHeader::kVersion;
    header.dim = 64;
    std::vector<RowBatch> rows(1);
    for (Key key = 0; key < 100; ++key) rows[0].Put(RowKey(0, key), header, row);
    auto room = journal.Reserve(rows[0].bytes());
    REQUIRE(room.ok());
    const NamedValues named = {{"group/000", "text"}};
    Journal::Room taken = std::move(room.value());
    DirtyStack(image, phase);
    const Status written = journal.Append(std::move(taken), named, rows);
    REQUIRE(written.ok());
    const auto reader = JournalReader::Open(folder / ".", kStorage, 0, {});
    CHECK(reader.status().message() == "");
    if (reader.ok()) CHECK(reader.value()->places().size() == 100);
  }
}

}  // namespace sok
