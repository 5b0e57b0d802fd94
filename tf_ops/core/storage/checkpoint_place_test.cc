// Tests that checkpoints and dumps lie outside of the folder of their storage, that they take the
// place of nothing, and that what a killed checkpoint leaves is removed.
#include "core/storage/checkpoint_place.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>

#include "core/base/test_folder.h"
#include "core/disk/rocksdb/row_database.h"
#include "core/storage/storage.h"

namespace sok {
namespace {

namespace fs = std::filesystem;

std::shared_ptr<Storage> OpenStorage(const std::string& path) {
  StorageOptions options;
  options.path = path;
  auto storage = Storage::Open(options);
  REQUIRE_MESSAGE(storage.ok(), storage.status().message());
  return std::move(storage.value());
}

TEST_CASE("a checkpoint or a dump in the storage's own folder is refused, by any name of it") {
  const TestFolder folder;
  const std::string rows = folder / "rows";
  const auto storage = OpenStorage(rows);
  fs::create_directory(rows + "/in");
  fs::create_directory_symlink(rows, folder / "link");
  fs::create_directory_symlink(rows + "/in", folder / "deep");
  const std::string before = fs::current_path();
  fs::current_path(rows);
  for (const std::string& path :
       {rows + "/x", rows + "/in/x", folder / "link/x", folder / "deep/x", std::string("x"),
        std::string("in/../x"), folder / "link/", rows + "//CURRENT", rows + "/x/"}) {
    CAPTURE(path);
    const Status refused = storage->Checkpoint(path);
    CHECK(refused.code() == Code::kInvalidArgument);
    CHECK(storage->Dump(path, {}, nullptr).status().code() == Code::kInvalidArgument);
  }
  CHECK(Contains(storage->Checkpoint("x"), "outside of the folder of the storage"));
  CHECK(Contains(storage->Dump("CURRENT", {}, nullptr).status(), "outside of the folder"));
  fs::current_path(before);
  CHECK(storage->Checkpoint(folder / "rows-2").ok());
  CHECK(storage->Dump(folder / "rows.dump", {}, nullptr).ok());
  CHECK(OpenStorage(folder / "rows-2") != nullptr);
}

TEST_CASE("what a killed checkpoint left goes when the storage is opened or the next one is made") {
  const TestFolder folder;
  const std::string rows = folder / "rows";
  OpenStorage(rows);
  const auto leave = [&] {
    for (const char* name : {"/sok-checkpoint", "/sok-checkpoint.tmp"}) {
      fs::create_directories(rows + name + "/sub");
      WriteAll(rows + name + "/000001.sst", "part");
    }
  };
  const auto left = [&] {
    return fs::exists(rows + "/sok-checkpoint") || fs::exists(rows + "/sok-checkpoint.tmp");
  };
  leave();
  const auto storage = OpenStorage(rows);
  CHECK_FALSE(left());
  leave();
  REQUIRE(storage->Checkpoint(folder / "copy").ok());
  CHECK_FALSE(left());
  CHECK(folder.CountFiles() == 2);
  CHECK(OpenStorage(folder / "copy") != nullptr);
}

TEST_CASE("a checkpoint never takes the place of something") {
  const TestFolder folder;
  const auto storage = OpenStorage(folder / "rows");
  fs::create_directory(folder / "empty");
  fs::create_symlink("nowhere", folder / "dangling");
  WriteAll(folder / "file", "mine");
  for (const char* name : {"empty", "file", "dangling"}) {
    CAPTURE(name);
    CHECK_FALSE(storage->Checkpoint(folder / name).ok());
  }
  CHECK(fs::is_empty(folder / "empty"));
  CHECK(fs::is_symlink(folder / "dangling"));
  CHECK(ReadAll(folder / "file") == "mine");
  CHECK_FALSE(storage->Checkpoint(folder / "missing/x").ok());
}

TEST_CASE("an empty path is none for a checkpoint or a dump") {
  const TestFolder folder;
  const auto storage = OpenStorage(folder / "rows");
  for (const Status& refused : {storage->Checkpoint(""), storage->Dump("", {}, nullptr).status()}) {
    CHECK(refused.code() == Code::kInvalidArgument);
    CHECK(Contains(refused, "got ''"));
  }
}

TEST_CASE("a checkpoint on another file system leaves what is beside it alone") {
  const TestFolder folder;
  auto opened = RowDatabase::Open({folder / "rows", /*read_only=*/false, nullptr});
  REQUIRE(opened.ok());
  const Database& database = *opened.value();
  // The folder "elsewhere" does not exist, so that no file can be moved from it: the checkpoint is
  // made as if the storage lay on another file system.
  const auto checkpoint = [&](const std::string& path) {
    return MakeCheckpoint(database, folder / "elsewhere", path);
  };
  fs::create_directories(folder / "ck.tmp/sub");
  WriteAll(folder / "ck.tmp/mine.txt", "mine");
  fs::create_directories(folder / "target");
  WriteAll(folder / "target/mine.txt", "mine");
  fs::create_directory_symlink("target", folder / "link.tmp");
  WriteAll(folder / "file.tmp", "mine");
  fs::create_directory(folder / "empty.tmp");
  for (const char* name : {"ck", "ck/", "ck//", "link", "file", "empty"}) {
    CAPTURE(name);
    const Status refused = checkpoint(folder / name);
    CHECK(refused.code() == Code::kInvalidArgument);
    CHECK(Contains(refused, ".tmp', where the checkpoint would grow"));
  }
  CHECK(ReadAll(folder / "ck.tmp/mine.txt") == "mine");
  CHECK(fs::is_directory(folder / "ck.tmp/sub"));
  CHECK(ReadAll(folder / "target/mine.txt") == "mine");
  CHECK(fs::is_symlink(folder / "link.tmp"));
  CHECK(ReadAll(folder / "file.tmp") == "mine");
  CHECK(fs::is_directory(folder / "empty.tmp"));
  CHECK_FALSE(fs::exists(folder / "ck"));
  const size_t files = folder.CountFiles();
  CHECK(checkpoint(folder / "missing/x").code() == Code::kNotFound);
  {
    const FileSizeLimit full(16);
    CHECK_FALSE(checkpoint(folder / "copy").ok());
  }
  CHECK(folder.CountFiles() == files);
  CHECK(checkpoint(folder / "copy").ok());
  CHECK(checkpoint(folder / "copy-2/").ok());
  CHECK(folder.CountFiles() == files + 2);
  CHECK(RowDatabase::Open({folder / "copy", /*read_only=*/true, nullptr}).ok());
}

}  // namespace
}  // namespace sok
