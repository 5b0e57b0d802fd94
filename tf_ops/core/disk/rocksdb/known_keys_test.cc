#include <doctest/doctest.h>

#include <cstdio>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "core/base/folder.h"
#include "core/base/hash.h"
#include "core/base/test_folder.h"
#include "core/base/test_result.h"
#include "core/base/test_threads.h"
#include "core/disk/rocksdb/row_database.h"

namespace sok {
namespace {

constexpr char kKeysFile[] = "/sok-keys";
constexpr Key kAbsent = Key{1} << 62;  // from here on no key has a row

std::unique_ptr<Database> OpenAt(const std::string& path) {
  return Value(RowDatabase::Open({path, false, nullptr}));
}

// Copies the files of a folder as a process leaves them that is killed.
std::string CopyOf(const std::string& path, const std::string& to) {
  REQUIRE(MakeFolders(to).ok());
  const auto names = FilesIn(path);
  for (const std::string& name : names.value()) {
    if (name == "LOCK") continue;
    std::ifstream in(path + "/" + name, std::ios::binary);
    std::ofstream(to + "/" + name, std::ios::binary) << in.rdbuf();
  }
  return to;
}

std::string BytesOfFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

// Returns the values of a row of one float.
std::string_view ValueBytes(const float& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

// The first float of each row of group 3, in memory and in a database.
class Model {
 public:
  void Put(RowBatch* batch, Key key, float value) {
    batch->Put(RowKey(3, key), {RowHeader::kVersion, 1, 0, {0, 0}}, ValueBytes(value));
    rows_[key] = value;
  }
  void Remove(RowBatch* batch, Key key) {
    batch->Remove(RowKey(3, key));
    rows_.erase(key);
  }
  // Puts rows of keys, ascending, and publishes them as a flush does that is not small.
  void Publish(Database* database, Key first, uint64_t count, float value) {
    const auto publication = database->StartPublication();
    for (Key key = first; key < first + count; ++key) {
      rows_[key] = value;
      // An error comes back from Finish.
      static_cast<void>(
          publication->Add(RowKey(3, key), {RowHeader::kVersion, 1, 0, {0, 0}}, ValueBytes(value)));
    }
    REQUIRE(publication->Finish({}).ok());
  }
  void Check(const Database& database) const {
    std::vector<RowKey> keys;
    std::vector<const float*> expected;
    for (const auto& [key, value] : rows_) {
      // Between rows there are keys without one.
      for (const Key one : {key, key + 1}) {
        if (!keys.empty() && RowKey::KeyOf(keys.back().view()) >= one) continue;
        const auto found = rows_.find(one);
        keys.emplace_back(3, one);
        expected.push_back(found == rows_.end() ? nullptr : &found->second);
      }
    }
    size_t right = 0, rows = 0;
    REQUIRE(database
                .Read(keys.data(), keys.size(),
                      [&](size_t i, std::string_view bytes) {
                        RowValue value;
                        float first = 0;
                        if (value.Parse(bytes, RowLayout(1, {}))) {
                          std::memcpy(&first, value.values.data(), sizeof(first));
                        }
                        ++rows;
                        right += expected[i] != nullptr && *expected[i] == first;
                      })
                .ok());
    CHECK(rows == rows_.size());
    CHECK(right == rows_.size());
  }
  const std::map<Key, float>& rows() const { return rows_; }

 private:
  std::map<Key, float> rows_;
};

// Returns how many of 10,000 keys without a row were searched for in files.
uint64_t SearchedOfAbsent(const Database& database) {
  const uint64_t before = database.disk_use().searched;
  std::vector<RowKey> keys;
  for (Key key = 0; key < 10000; ++key) keys.emplace_back(3, kAbsent + key);
  REQUIRE(database.Read(keys.data(), keys.size(), [](size_t, std::string_view) { FAIL("a row"); })
              .ok());
  return database.disk_use().searched - before;
}

}  // namespace

TEST_CASE("a database finds its rows, and searches for few others, however it was left") {
  const TestFolder folder;
  std::mt19937_64 random(20);
  Model model;
  std::string path = folder / "rows";
  auto database = OpenAt(path);
  model.Publish(database.get(), 1000, 70000, 1.0f);
  REQUIRE(BytesOfFiles(path, [](const std::string& name) { return name == "sok-keys"; }) > 0);
  for (int round = 0; round < (LongTests() ? 14 : 8); ++round) {
    CAPTURE(round);
    const auto value = static_cast<float>(round);
    RowBatch batch;
    switch (random() % 5) {
      case 0:
        model.Publish(database.get(), random() % 400000, 1 + random() % 10000, value);
        break;
      case 1:  // through the log
        for (int i = 0; i < 1000; ++i) model.Put(&batch, random() % 800000, value);
        REQUIRE(database->WritePublished(batch, {}, true).ok());
        break;
      case 2:
        for (int i = 0; i < 1000; ++i) {
          const auto at = model.rows().lower_bound(random() % 400000);
          if (at != model.rows().end()) model.Remove(&batch, at->first);
        }
        REQUIRE(database->WritePublished(batch, {}, false).ok());
        break;
      case 3:  // pending rows, published together with others
        for (int i = 0; i < 1000; ++i) model.Put(&batch, random() % 800000, value);
        REQUIRE(database->WritePending(batch).ok());
        model.Check(*database);
        model.Publish(database.get(), random() % 400000, 1000, value + 0.5f);
        break;
      default:
        REQUIRE(database->Compact().ok());
    }
    switch (random() % 5) {
      case 0:
        database.reset();
        break;
      case 1:
        path = CopyOf(path, folder / ("copy" + std::to_string(round)));
        database.reset();
        break;
      case 2: {
        const std::string to = folder / ("checkpoint" + std::to_string(round));
        REQUIRE(database->Checkpoint(to).ok());
        database.reset();
        path = to;
        break;
      }
      default:
        break;
    }
    if (database == nullptr) database = OpenAt(path);
    model.Check(*database);
    CHECK(SearchedOfAbsent(*database) < 400);
  }
}

TEST_CASE("a file of keys that is damaged, of another state or not there is made again") {
  const TestFolder folder;
  const std::string path = folder / "rows", keys = path + kKeysFile;
  Model model;
  const auto write = [&](const std::string& bytes) {
    std::ofstream(keys, std::ios::binary | std::ios::trunc) << bytes;
  };
  auto database = OpenAt(path);
  model.Publish(database.get(), 0, 70000, 1.0f);
  database.reset();
  const std::string old = BytesOfFile(keys);
  database = OpenAt(path);
  model.Publish(database.get(), 400000, 70000, 2.0f);
  database.reset();
  const std::string now = BytesOfFile(keys);
  std::string damaged = now;
  damaged[damaged.size() / 2] ^= 4;
  for (const std::string& bytes : {now, old, damaged, now.substr(0, 1000), std::string()}) {
    write(bytes);
    if (bytes.empty()) std::remove(keys.c_str());
    database = OpenAt(path);
    model.Check(*database);
    CHECK(SearchedOfAbsent(*database) < 400);
    database.reset();
  }
  CHECK(BytesOfFile(keys).size() >= now.size() / 2);
}

TEST_CASE("the file of keys knows long files of updated and of merged rows") {
  const TestFolder folder;
  const std::string path = folder / "rows";
  const auto saved = [&] { return BytesOfFile(path + kKeysFile); };
  Model model;
  auto database = OpenAt(path);
  model.Publish(database.get(), 0, 500000, 1.0f);
  REQUIRE(BytesOfFiles(path, [](const std::string&) { return true; }) > 10 << 20);
  const std::string first = saved();
  model.Publish(database.get(), 0, 500000, 2.0f);  // the same keys
  const std::string updated = saved();
  CHECK(updated != first);
  REQUIRE(database->Compact().ok());
  REQUIRE(database->Checkpoint(folder / "checkpoint").ok());
  CHECK(saved() == updated);
  database.reset();
  const std::string merged = saved();
  CHECK(merged != updated);
  database = OpenAt(path);
  model.Publish(database.get(), 0, 10, 3.0f);  // its file is read in a moment
  database.reset();
  CHECK(saved() == merged);
  for (const std::string& opened : {path, folder / "checkpoint"}) {
    CHECK(SearchedOfAbsent(*OpenAt(opened)) < 400);
  }
}

TEST_CASE("keys that have gone leave the memory of a database") {
  const TestFolder folder;
  const std::string path = folder / "rows";
  auto database = Value(RowDatabase::Open({path, false, nullptr, /*memory_bytes=*/1 << 20}));
  Model model;
  uint64_t most = 0;
  for (Key first = 0; first < 1000000; first += 100000) {
    model.Publish(database.get(), first, 100000, 1.0f);
    RowBatch gone;
    for (Key key = first; key < first + 97000; ++key) model.Remove(&gone, key);
    REQUIRE(database->WritePublished(gone, {}, false).ok());
    REQUIRE(database->Compact().ok());
    most = std::max(most, database->disk_use().key_bytes);
    model.Check(*database);
  }
  // A filter of all keys that have come takes 1.7 MB.
  CHECK(most < 3 << 19);
  model.Check(*database);
  CHECK(SearchedOfAbsent(*database) < 400);
}

}  // namespace sok
