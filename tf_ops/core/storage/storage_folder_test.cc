#include "core/storage/storage_folder.h"

#include <doctest/doctest.h>

#include <string>

#include "core/base/test_folder.h"
#include "core/base/test_result.h"
#include "core/storage/storage.h"

namespace sok {

TEST_CASE("a folder holds a storage once one was opened there") {
  const TestFolder folder;
  CHECK_FALSE(HoldsStorage(folder / ""));
  CHECK_FALSE(HoldsStorage(folder / "none"));
  StorageOptions options;
  options.path = folder / "storage";
  CHECK_FALSE(HoldsStorage(options.path));
  REQUIRE(Value(Storage::Open(options))->Close().ok());
  CHECK(HoldsStorage(options.path));
}

TEST_CASE("the bytes of a storage are those of tables, logs and journals") {
  const TestFolder folder;
  CHECK(FileBytes(folder / "none") == 0);
  WriteAll(folder / "000001.sst", std::string(100, 'x'));
  WriteAll(folder / "000002.log", std::string(20, 'x'));
  WriteAll(folder / "sok-journal-000000000001", std::string(3, 'x'));
  for (const char* other : {"CURRENT", "LOG", "MANIFEST-000003", "sst", "x.sst.old", "journal"}) {
    WriteAll(folder / other, std::string(5000, 'x'));
  }
  CHECK(FileBytes(folder / "") == 123);
}

}  // namespace sok
