#include "core/disk/rocksdb/noted_folder.h"

#include <doctest/doctest.h>

#include <string>

#include "core/base/test_folder.h"
#include "core/base/test_result.h"

namespace sok {
namespace {

constexpr char kManifest[] = "MANIFEST-000005", kLog[] = "000004.log";

// Makes files as of a database, and their note.
void MakeFiles(const TestFolder& folder) {
  WriteAll(folder / "CURRENT", std::string(kManifest) + "\n");
  WriteAll(folder / kManifest, std::string(100, 'm'));
  WriteAll(folder / kLog, std::string(2000, 'l'));
  REQUIRE(NoteCopy(folder / ".").ok());
}

Result<bool> Check(const TestFolder& folder) {
  WrittenNote note(folder / ".");
  REQUIRE(note.Load().ok());
  return CheckNoted(folder / ".", note);
}

}  // namespace

TEST_CASE("the names of logs and manifests have numbers") {
  CHECK(LogNumber("000012.log") == 12);
  CHECK(LogNumber("LOG") == 0);
  CHECK(LogNumber("000012.sst") == 0);
  CHECK(LogNumber("000012.log.old") == 0);
  CHECK(ManifestNumber("MANIFEST-000012") == 12);
  CHECK(ManifestNumber("MANIFEST-") == 0);
  CHECK(ManifestNumber("OPTIONS-000012") == 0);
}

TEST_CASE("files that have what is noted are whole, whatever follows it") {
  const TestFolder folder;
  MakeFiles(folder);
  CHECK(Value(Check(folder)));
  WriteAll(folder / kLog, std::string(2000, 'l') + "torn");
  WriteAll(folder / "000007.log", "another");
  CHECK(Value(Check(folder)));
}

TEST_CASE("a noted file that is missing, short or has other bytes is an error that names it") {
  for (const char* name : {kManifest, kLog}) {
    CAPTURE(name);
    for (int damage = 0; damage < 3; ++damage) {
      const TestFolder folder;
      MakeFiles(folder);
      std::string bytes = ReadAll(folder / name);
      bytes[50] = static_cast<char>(bytes[50] ^ 1);
      if (damage == 0) WriteAll(folder / name, bytes);
      if (damage == 1) WriteAll(folder / name, bytes.substr(0, 50));
      if (damage == 2) std::filesystem::remove(folder / name);
      const Status status = Check(folder).status();
      CHECK(status.code() == Code::kDataLoss);
      CHECK(status.message().find(name) != std::string::npos);
    }
  }
}

TEST_CASE("a note of an earlier manifest says nothing, and one of a later manifest is an error") {
  const TestFolder folder;
  MakeFiles(folder);
  std::filesystem::remove(folder / kLog);
  WriteAll(folder / "CURRENT", "MANIFEST-000009\n");
  CHECK_FALSE(Value(Check(folder)));
  WriteAll(folder / "CURRENT", "MANIFEST-000003\n");
  CHECK(Check(folder).status().code() == Code::kDataLoss);
}

}  // namespace sok
