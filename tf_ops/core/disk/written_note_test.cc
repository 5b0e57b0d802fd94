#include "core/disk/written_note.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <string>

#include "core/base/test_folder.h"

namespace sok {
namespace {

std::string PathOf(const TestFolder& folder) { return folder / WrittenNote::kFileName; }

// Returns the files that a new process reads.
WrittenNote::Files Read(const TestFolder& folder) {
  WrittenNote note(folder / ".");
  REQUIRE(note.Load().ok());
  return note.files();
}

}  // namespace

TEST_CASE("a note says what was set last, and is made when it is started") {
  const TestFolder folder;
  {
    WrittenNote note(folder / ".");
    REQUIRE(note.Load().ok());
    REQUIRE(note.Set("000004.log", {10, 10, 77}).ok());
    CHECK(folder.CountFiles() == 0);
    REQUIRE(note.Start().ok());
    for (uint64_t bytes = 11; bytes < 20; ++bytes) {
      REQUIRE(note.Set("000004.log", {bytes, bytes, 78}).ok());
      CHECK(Read(folder).at("000004.log").bytes == bytes);
    }
    REQUIRE(note.Set("MANIFEST-000005", {1, 1, 1}).ok());
  }
  WrittenNote note(folder / ".");
  REQUIRE(note.Load().ok());
  CHECK(note.exists());
  CHECK(note.files().size() == 2);
  CHECK(note.files().at("000004.log").checksum == 78);
  const auto is_log = [](const std::string& name) { return name == "000004.log"; };
  REQUIRE(note.Drop(is_log, /*sync=*/true).ok());
  CHECK(Read(folder).count("000004.log") == 0);
  CHECK(Read(folder).count("MANIFEST-000005") == 1);
}

TEST_CASE("a note that two folders share by a hard link is written for one of them alone") {
  const TestFolder first, second;
  {
    WrittenNote note(first / ".");
    REQUIRE(note.Start().ok());
    for (uint64_t bytes : {1, 2}) REQUIRE(note.Set("000004.log", {bytes, bytes, 0}).ok());
  }
  std::filesystem::create_hard_link(PathOf(first), PathOf(second));
  {
    WrittenNote note(second / ".");
    REQUIRE(note.Load().ok());
    for (uint64_t bytes : {7, 8}) {
      REQUIRE(note.Set("000009.log", {bytes, bytes, 0}).ok());
      CHECK(Read(second).at("000009.log").bytes == bytes);
    }
  }
  CHECK(Read(second).at("000004.log").bytes == 2);
  CHECK(Read(first).size() == 1);
  CHECK(second.CountFiles() == 1);
}

TEST_CASE("of a note that is torn the one before it counts, and a damaged file is an error") {
  const TestFolder folder;
  {
    WrittenNote note(folder / ".");
    REQUIRE(note.Start().ok());
    for (uint64_t bytes : {1, 2, 3}) REQUIRE(note.Set("000004.log", {bytes, bytes, 0}).ok());
  }
  const std::string whole = ReadAll(PathOf(folder));
  for (size_t at = 0; at < whole.size(); ++at) {
    if (whole[at] == 0) continue;
    std::string torn = whole;
    torn[at] = static_cast<char>(torn[at] ^ 4);
    WriteAll(PathOf(folder), torn);
    const uint64_t bytes = Read(folder).at("000004.log").bytes;
    CHECK((bytes == 2 || bytes == 3));
  }
  WriteAll(PathOf(folder), std::string(whole.size(), '\0'));
  WrittenNote note(folder / ".");
  CHECK(note.Load().code() == Code::kDataLoss);
  WriteAll(PathOf(folder), "");
  CHECK(note.Load().ok());
  CHECK_FALSE(note.exists());
}

}  // namespace sok
