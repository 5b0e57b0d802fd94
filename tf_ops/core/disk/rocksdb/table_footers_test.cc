// Damaged table files are errors, and never end the process.
#include "core/disk/rocksdb/table_footers.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <random>

#include "core/base/test_folder.h"
#include "core/base/test_threads.h"
#include "core/base/thread_pool.h"
#include "core/storage/storage.h"

namespace sok {
namespace {

namespace fs = std::filesystem;

constexpr int kDim = 4;
constexpr size_t kRows = 2000;

std::vector<Key> SomeKeys() {
  std::vector<Key> keys(kRows);
  for (size_t i = 0; i < kRows; ++i) keys[i] = i * 977;
  return keys;
}

// Makes a storage of at least two table files.
void MakeStorage(const std::string& path) {
  StorageOptions options;
  options.path = path;
  const auto storage = Storage::Open(options);
  REQUIRE(storage.ok());
  TableSpec config;
  config.dim = kDim;
  for (int group = 0; group < 2; ++group) {
    config.group = group;
    const auto table = storage.value()->OpenTable(config);
    REQUIRE(table.ok());
    const std::vector<float> embeddings(kRows * kDim, 1.0f);
    REQUIRE(table.value()->Assign(SomeKeys().data(), kRows, embeddings.data(), SerialFor).ok());
    REQUIRE(storage.value()->Compact().ok());
  }
}

std::vector<std::string> TablesIn(const std::string& path) {
  std::vector<std::string> tables;
  for (const auto& entry : fs::directory_iterator(path)) {
    if (entry.path().extension() == ".sst") tables.push_back(entry.path().string());
  }
  return tables;
}

// Opens the storage and reads everything; the result is always a Status.
Status Use(const std::string& path) {
  StorageOptions options;
  options.path = path;
  options.cache_bytes = 1 << 20;
  options.read_only = true;
  const auto storage = Storage::Open(options);
  if (!storage.ok()) return storage.status();
  TableSpec config;
  config.dim = kDim;
  Status first;
  for (config.group = 0; config.group < 2; ++config.group) {
    const auto table = storage.value()->OpenTable(config);
    if (!table.ok()) return table.status();
    std::vector<float> out(kRows * kDim);
    Status status =
        table.value()->Lookup(SomeKeys().data(), kRows, false, out.data(), ProcessPool());
    if (first.ok()) first = status;
  }
  return first;
}

void AppendVarint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

TEST_CASE("a footer that points beyond its file is refused with the file's name") {
  const TestFolder folder;
  const std::string path = folder / "rows";
  MakeStorage(path);
  REQUIRE(Use(path).ok());
  CHECK(CheckTableFooters(path).ok());
  const std::string table = TablesIn(path).at(0);
  const std::string whole = ReadAll(table);
  const std::string footer = whole.substr(whole.size() - 53);
  for (int which = 0; which < 4; ++which) {
    for (const uint64_t value : {uint64_t{whole.size()}, uint64_t{1} << 40, uint64_t{1} << 62,
                                 ~uint64_t{0}, ~uint64_t{0} - 4}) {
      CAPTURE(which);
      CAPTURE(value);
      std::string damaged = footer.substr(0, 1);
      for (int i = 0; i < 4; ++i) AppendVarint(damaged, i == which ? value : 1);
      damaged.resize(41, '\0');
      WriteAll(table, whole.substr(0, whole.size() - 53) + damaged + footer.substr(41));
      const Status refused = Use(path);
      CHECK(refused.code() == Code::kDataLoss);
      CHECK(Contains(refused, fs::path(table).filename().string()));
      CHECK(Contains(refused, "its footer points to"));
    }
  }
  WriteAll(table, whole);
  CHECK(Use(path).ok());
}

TEST_CASE("files that no compaction finished do not stand in the way") {
  const TestFolder folder;
  const std::string path = folder / "rows";
  MakeStorage(path);
  WriteAll(path + "/999990.sst", "");
  WriteAll(path + "/999991.sst", "short");
  WriteAll(path + "/999992.sst", std::string(5000, 'x'));
  fs::create_directory(path + "/999993.sst");
  CHECK(CheckTableFooters(path).ok());
  CHECK(Use(path).ok());
}

TEST_CASE("a table file with changed bytes is an error or reads as before") {
  const TestFolder folder;
  const std::string path = folder / "rows";
  MakeStorage(path);
  const uint64_t seed = TestSeed();
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  for (const std::string& table : TablesIn(path)) {
    const std::string whole = ReadAll(table);
    for (int trial = 0; trial < 60; ++trial) {
      std::string damaged = whole;
      const size_t tail = std::min<size_t>(whole.size(), trial % 2 == 0 ? 53 : whole.size());
      const size_t at = whole.size() - 1 - random() % tail;
      const size_t bytes = std::min<size_t>(1 + random() % 10, whole.size() - at);
      for (size_t i = 0; i < bytes; ++i) {
        damaged[at + i] = static_cast<char>(trial % 3 == 0 ? 0xff : random());
      }
      if (trial % 7 == 0) damaged.resize(at);
      WriteAll(table, damaged);
      const Status status = Use(path);
      CHECK((status.ok() || !status.message().empty()));
    }
    WriteAll(table, whole);
  }
}

}  // namespace
}  // namespace sok
