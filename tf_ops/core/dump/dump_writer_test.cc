// DumpWriter: wrong use, failing disks, and the files that remain after them.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>

#include "core/base/test_folder.h"
#include "core/dump/test_dump.h"

namespace sok {
namespace {

std::unique_ptr<DumpWriter> OpenWriter(const std::string& path) {
  auto writer = DumpWriter::Open(path);
  REQUIRE_MESSAGE(writer.ok(), writer.status().message());
  return std::move(writer.value());
}

TEST_CASE("groups out of range or out of order are refused, and the writer stays refused") {
  const TestFolder folder;
  const std::vector<DumpGroup> bad = {{-1, 1, "", 0},
                                      {256, 1, "", 0},
                                      {5, 0, "", 0},
                                      {5, -1, "", 0},
                                      {5, (1 << 20) + 1, "", 0},
                                      {5, 1, "", -1},
                                      {5, 1, "", (8 << 20) + 1},
                                      {5, 1, std::string((1 << 20) + 1, 'm'), 0},
                                      {4, 1, "", 0},
                                      {3, 1, "", 0}};
  for (const DumpGroup& group : bad) {
    const auto writer = OpenWriter(folder / "d");
    REQUIRE(writer->BeginGroup({4, 1, "", 0}).ok());
    const Status first = writer->BeginGroup(group);
    CHECK(first.code() == Code::kInvalidArgument);
    CHECK(folder.CountFiles() == 0);
    const float zero = 0;
    CHECK(AddRow(*writer, 1, 0, 0, &zero, 1).message() == first.message());
    CHECK(writer->BeginGroup({9, 1, "", 0}).message() == first.message());
    CHECK(writer->Finish().message() == first.message());
  }
  CHECK(folder.CountFiles() == 0);
}

TEST_CASE("a row before the first group and a call after Finish are refused") {
  const TestFolder folder;
  const float zero = 0;
  CHECK(AddRow(*OpenWriter(folder / "a"), 1, 0, 0, &zero, 1).code() == Code::kFailedPrecondition);
  const auto writer = OpenWriter(folder / "b");
  REQUIRE(writer->Finish().ok());
  CHECK(writer->Finish().code() == Code::kFailedPrecondition);
  CHECK(writer->BeginGroup({1, 1, "", 0}).code() == Code::kFailedPrecondition);
  CHECK(AddRow(*writer, 1, 0, 0, &zero, 1).code() == Code::kFailedPrecondition);
  CHECK(CheckDump(folder / "b").ok());
  CHECK(folder.CountFiles() == 1);
}

TEST_CASE("what a killed writer left goes with the next dump to the same path, and nothing else") {
  const TestFolder folder;
  const pid_t child = fork();
  if (child == 0) {
    const float zero = 0;
    auto killed = DumpWriter::Open(folder / "d");
    const bool wrote = killed.ok() && killed.value()->BeginGroup({1, 1, "", 0}).ok() &&
                       AddRow(*killed.value(), 1, 0, 0, &zero, 1).ok();
    _exit(wrote ? 0 : 1);  // without a destructor, like a kill
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(status == 0);
  REQUIRE(folder.CountFiles() == 1);
  for (const char* name : {"d.tmp", "d.tmp-", "d.tmp-12-0123abcd.bak", "d.tmp-x-0123abcd",
                           "d.tmp-12-0123ABCD", "other.tmp-12-0123abcd", "dd.tmp-12-0123abcd"}) {
    WriteAll(folder / name, "mine");
  }
  REQUIRE(mkdir((folder / "d.tmp-12-0123abcd").c_str(), 0700) == 0);
  const auto other = OpenWriter(folder / "d");  // is still writing
  REQUIRE(OpenWriter(folder / "d")->Finish().ok());
  REQUIRE(other->Finish().ok());
  CHECK(CheckDump(folder / "d").ok());
  CHECK(folder.CountFiles() == 9);
}

TEST_CASE("a path that cannot be a file is refused") {
  const TestFolder folder;
  const auto code = [](const std::string& path) { return DumpWriter::Open(path).status().code(); };
  CHECK(code("") == Code::kInvalidArgument);
  CHECK(code(folder / "") == Code::kInvalidArgument);
  CHECK(code(folder / ".") == Code::kInvalidArgument);
  CHECK(code(folder / "missing/d") == Code::kNotFound);
  CHECK(code("/dev/null") == Code::kInvalidArgument);
  WriteAll(folder / "file", "x");
  CHECK(code(folder / "file/d") == Code::kNotFound);
  REQUIRE(mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK(code(folder / "pipe") == Code::kInvalidArgument);
  CHECK(DumpReader::Open(folder / "pipe").status().code() == Code::kInvalidArgument);
  CHECK(folder.CountFiles() == 2);
}

TEST_CASE("system errors have the code that tells a caller what to do") {
  const auto code = [](int error) { return SystemError(error, "write", "f").code(); };
  CHECK(code(EACCES) == Code::kPermissionDenied);
  CHECK(code(EROFS) == Code::kPermissionDenied);
  CHECK(code(ENOSPC) == Code::kResourceExhausted);
  CHECK(code(EDQUOT) == Code::kResourceExhausted);
  CHECK(code(EMFILE) == Code::kResourceExhausted);
  CHECK(code(ENOENT) == Code::kNotFound);
  CHECK(code(EIO) == Code::kInternal);
  CHECK(code(EINVAL) == Code::kInternal);
}

TEST_CASE("a name as long as the system allows has room for a temporary one") {
  const TestFolder folder;
  CHECK(WriteDump(folder / std::string(255, 'n'), {}).ok());
  CHECK(WriteDump(folder / std::string(256, 'n'), {}).code() == Code::kInvalidArgument);
  CHECK(folder.CountFiles() == 1);
}

TEST_CASE("until Finish the old file stands, and without Finish it stays") {
  std::mt19937_64 random(3);
  const TestFolder folder;
  const std::string path = folder / "d";
  REQUIRE(WriteDump(path, {RandomGroup(random, {1, 2, "", 0}, 4)}).ok());
  const std::string before = ReadAll(path);
  {
    const auto writer = OpenWriter(path);
    REQUIRE(writer->BeginGroup({0, 1 << 20, "", 0}).ok());
    const std::vector<float> floats(1 << 20);
    REQUIRE(AddRow(*writer, 1, 0, 0, floats.data(), 1 << 20).ok());
    CHECK(ReadAll(path) == before);
    CHECK(folder.CountFiles() == 2);
  }
  CHECK(folder.CountFiles() == 1);
  CHECK(ReadAll(path) == before);
  REQUIRE(WriteDump(path, {RandomGroup(random, {2, 2, "", 0}, 4)}).ok());
  CHECK(ReadAll(path) != before);
}

TEST_CASE("a disk without room fails the dump, leaves the old file and no other") {
  std::mt19937_64 random(4);
  const TestFolder folder;
  const std::string path = folder / "d";
  REQUIRE(WriteDump(path, {}).ok());
  const std::string before = ReadAll(path);
  const std::vector<TestGroup> groups = {RandomGroup(random, {1, 1020, "{}", 1020}, 300)};
  // The disk is full in the header, in each block, in the index, in the footer.
  for (rlim_t room : {0, 10, 24, 1000000, 1100000, 2000000, 2452900, 2452940}) {
    CAPTURE(room);
    Status status;
    {
      const FileSizeLimit limit(room);
      status = WriteDump(path, groups);
    }
    CHECK(status.code() == Code::kResourceExhausted);
    CHECK_MESSAGE(Contains(status, "Cannot write byte " + std::to_string(room) + " of " + path),
                  status.message());
    CHECK(ReadAll(path) == before);
    CHECK(folder.CountFiles() == 1);
  }
  REQUIRE(WriteDump(path, groups).ok());
  CHECK(ReadAll(path).size() == 2452966);
}

TEST_CASE("after a full disk every call returns the first error") {
  const TestFolder folder;
  const auto writer = OpenWriter(folder / "d");
  REQUIRE(writer->BeginGroup({0, 1 << 20, "", 0}).ok());
  const std::vector<float> floats(1 << 20);
  Status first;
  {
    const FileSizeLimit limit(1000);
    first = AddRow(*writer, 1, 0, 0, floats.data(), 1 << 20);
  }
  CHECK(first.code() == Code::kResourceExhausted);
  CHECK(folder.CountFiles() == 0);
  CHECK(AddRow(*writer, 2, 0, 0, floats.data(), 1 << 20).message() == first.message());
  CHECK(writer->BeginGroup({1, 1, "", 0}).message() == first.message());
  CHECK(writer->Finish().message() == first.message());
  CHECK(folder.CountFiles() == 0);
}

TEST_CASE("two writers of one path do not get into each other's way") {
  const TestFolder folder;
  const auto first = OpenWriter(folder / "d"), second = OpenWriter(folder / "d");
  REQUIRE(first->BeginGroup({1, 1, "first", 0}).ok());
  REQUIRE(second->BeginGroup({2, 1, "second", 0}).ok());
  REQUIRE(first->Finish().ok());
  REQUIRE(second->Finish().ok());
  const auto reader = DumpReader::Open(folder / "d");
  REQUIRE(reader.ok());
  CHECK(reader.value()->groups()[0].meta == "second");
  CHECK(folder.CountFiles() == 1);
}

}  // namespace
}  // namespace sok
