#include "core/disk/rocksdb/database_files.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "core/base/test_folder.h"

namespace sok {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

// Writes pieces of 1 MiB until an error, and then ends the file.
rocksdb::IOStatus WriteMuch(const std::string& path) {
  const auto file = NewTableFile(path);
  REQUIRE(file != nullptr);
  const std::string piece(kMiB, 'x');
  rocksdb::IOStatus status;
  for (int i = 0; i < 12 && status.ok(); ++i) status = file->Append(piece, {}, nullptr);
  if (status.ok()) status = file->Sync({}, nullptr);
  CHECK(!status.ok());
  CHECK(file->Close({}, nullptr) == status);
  return status;
}

}  // namespace

TEST_CASE("a file of rows has all bytes in order once it is brought to the device") {
  const TestFolder folder;
  std::string bytes(13 * kMiB + 4095, 0);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7 + i / 4099);
  for (size_t piece : {size_t{65'001}, kMiB, bytes.size()}) {
    const std::string path = folder / (std::to_string(piece) + ".sst");
    const auto file = NewTableFile(path);
    for (size_t at = 0; at < bytes.size(); at += piece) {
      REQUIRE(
          file->Append({bytes.data() + at, std::min(piece, bytes.size() - at)}, {}, nullptr).ok());
    }
    CHECK(file->GetFileSize({}, nullptr) == bytes.size());
    REQUIRE(file->Sync({}, nullptr).ok());
    std::ifstream read(path, std::ios::binary);
    CHECK(std::string(std::istreambuf_iterator<char>(read), {}) == bytes);
    CHECK(file->Append("more", {}, nullptr).IsIOError());
    CHECK(file->Close({}, nullptr).IsIOError());
  }
  const auto closed = NewTableFile(folder / "closed.sst");
  REQUIRE(closed->Append("bytes", {}, nullptr).ok());
  REQUIRE(closed->Close({}, nullptr).ok());
  std::ifstream read(folder / "closed.sst", std::ios::binary);
  CHECK(std::string(std::istreambuf_iterator<char>(read), {}) == "bytes");
}

TEST_CASE("the system is asked to read ahead for everything but compactions") {
  const TestFolder folder;
  std::ofstream(folder / "rows.sst") << "rows";
  const auto file = OpenFile(folder / "rows.sst");
  REQUIRE(file != nullptr);
  rocksdb::IOOptions options;
  CHECK(file->Prefetch(0, 4, options, nullptr).ok());
  options.io_activity = rocksdb::Env::IOActivity::kCompaction;
  CHECK(file->Prefetch(0, 4, options, nullptr).IsNotSupported());
}

TEST_CASE("RocksDB is told of a full disk, after which it may go on, and of other errors") {
  const TestFolder folder;
  REQUIRE(symlink("/dev/full", (folder / "full.sst").c_str()) == 0);
  const rocksdb::IOStatus full = WriteMuch(folder / "full.sst");
  CHECK(full.IsNoSpace());
  CHECK(std::string(full.getState()).find("No space left on device") != std::string::npos);

  const FileSizeLimit limit(2 * kMiB + 512);
  const rocksdb::IOStatus large = WriteMuch(folder / "large.sst");
  CHECK((large.IsIOError() && !large.IsNoSpace()));
  CHECK(std::string(large.getState()).find("File too large") != std::string::npos);
}

}  // namespace sok
