#include "core/disk/rocksdb/row_database.h"

#include <doctest/doctest.h>

#include <map>
#include <string>
#include <vector>

#include "core/base/test_folder.h"
#include "core/base/test_result.h"
#include "core/disk/rocksdb/noted_folder.h"

namespace sok {
namespace {

using Rows = std::map<Key, float>;  // the first float of each row of group 3

std::unique_ptr<Database> OpenAt(const std::string& path, bool read_only = false) {
  return Value(RowDatabase::Open({path, read_only, nullptr}));
}

RowHeader Header(uint32_t update_num = 0) { return {RowHeader::kVersion, 1, 0, {update_num, 0}}; }

// Returns the values of a row of one float.
std::string_view ValueBytes(const float& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

RowBatch Batch(const Rows& rows, const std::vector<Key>& removed = {}) {
  RowBatch batch;
  for (const auto& [key, value] : rows) batch.Put(RowKey(3, key), Header(), ValueBytes(value));
  for (Key key : removed) batch.Remove(RowKey(3, key));
  return batch;
}

float FirstFloat(std::string_view bytes) {
  RowValue value;
  REQUIRE(value.Parse(bytes, RowLayout(1, {})));
  float first;
  std::memcpy(&first, value.values.data(), sizeof(first));
  return first;
}

Rows RowsOf(const Database& database) {
  Rows rows;
  Key last = 0;
  REQUIRE(database
              .ForEach(3,
                       [&](int group, Key key, std::string_view bytes) {
                         REQUIRE(group == 3);
                         REQUIRE((rows.empty() || key > last));
                         last = key;
                         rows[key] = FirstFloat(bytes);
                         return Status();
                       })
              .ok());
  // Returns the rows by key.
  std::vector<RowKey> keys;
  for (Key key = 0; key < 100; ++key) keys.emplace_back(3, key);
  Rows read;
  REQUIRE(database
              .Read(keys.data(), keys.size(),
                    [&](size_t i, std::string_view bytes) {
                      read[RowKey::KeyOf(keys[i].view())] = FirstFloat(bytes);
                    })
              .ok());
  REQUIRE(read == rows);
  return rows;
}

}  // namespace

TEST_CASE("pending rows hide published ones until they are dropped, published, or forgotten") {
  const TestFolder folder;
  const std::string path = folder / "rows";
  auto database = OpenAt(path);
  REQUIRE(database->WritePublished(Batch({{1, 1.0f}, {2, 2.0f}, {3, 3.0f}}), {}, true).ok());
  REQUIRE(database->WritePending(Batch({{2, 20.0f}, {4, 40.0f}}, {3, 9})).ok());
  const Rows newest = {{1, 1.0f}, {2, 20.0f}, {4, 40.0f}};
  const Rows oldest = {{1, 1.0f}, {2, 2.0f}, {3, 3.0f}};
  CHECK(RowsOf(*database) == newest);

  SUBCASE("a process that ends forgets them") {
    database.reset();
    CHECK(RowsOf(*OpenAt(path, /*read_only=*/true)) == oldest);
    CHECK(RowsOf(*OpenAt(path)) == oldest);
  }
  SUBCASE("dropping forgets them") {
    REQUIRE(database->DropPending().ok());
    CHECK(RowsOf(*database) == oldest);
  }
  SUBCASE("dropping forgets them on a full disk too, whose error the next recovery mends") {
    {
      const FileSizeLimit full(0);
      CHECK_FALSE(database->DropPending().ok());
      CHECK(RowsOf(*database) == oldest);
    }
    CHECK(database->failed());
    REQUIRE(database->Recover().ok());
    CHECK(RowsOf(*database) == oldest);
    REQUIRE(database->WritePending(Batch({{2, 20.0f}})).ok());
    REQUIRE(database->Publish({}).ok());
    CHECK(RowsOf(*database).at(2) == 20.0f);
  }
  SUBCASE("publishing keeps them, with the names of the same step") {
    REQUIRE(database->Publish({{"group/003", "new"}, {"gone", std::nullopt}}).ok());
    CHECK_FALSE(database->has_pending());
    CHECK(RowsOf(*database) == newest);
    database.reset();
    database = OpenAt(path);
    CHECK(RowsOf(*database) == newest);
    CHECK(Value(database->ReadMeta("group/")).at("group/003") == "new");
  }
  SUBCASE("a publication takes newer rows along, in their places") {
    auto publication = database->StartPublication();
    const float value = 7.0f;
    for (Key key : {0, 2, 50}) {
      REQUIRE(publication->Add(RowKey(3, key), Header(), ValueBytes(value)).ok());
    }
    REQUIRE(publication->Finish({}).ok());
    publication.reset();
    const Rows expected = {{0, 7.0f}, {1, 1.0f}, {2, 7.0f}, {4, 40.0f}, {50, 7.0f}};
    CHECK(RowsOf(*database) == expected);
    // Later writes are newer than what was ingested.
    REQUIRE(database->WritePublished(Batch({{2, 8.0f}}), {}, false).ok());
    CHECK(RowsOf(*database).at(2) == 8.0f);
    database.reset();
    CHECK(RowsOf(*OpenAt(path)).at(2) == 8.0f);
  }
  SUBCASE("the mark of a publication that succeeded is not that of a later write that failed") {
    REQUIRE(database->Publish({}).ok());
    CHECK_FALSE(Value(database->FailedPublicationIsThere()));
    {
      const FileSizeLimit full(0);
      CHECK_FALSE(database->WritePublished(Batch({{5, 5.0f}}), {}, true).ok());
    }
    CHECK_FALSE(Value(database->FailedPublicationIsThere()));
  }
  SUBCASE("a publication that is not finished changes nothing and leaves no file") {
    auto publication = database->StartPublication();
    const float value = 7.0f;
    REQUIRE(publication->Add(RowKey(3, 90), Header(), ValueBytes(value)).ok());
    const size_t files = std::distance(std::filesystem::directory_iterator(path), {});
    publication.reset();
    CHECK(std::distance(std::filesystem::directory_iterator(path), {}) == files - 1);
    CHECK(RowsOf(*database) == newest);
  }
}

TEST_CASE("the log and the manifest of a folder are noted, by whichever name it is opened") {
  for (const char* end : {"", "/", "//"}) {
    CAPTURE(end);
    const TestFolder folder;
    const std::string path = folder / "rows";
    const auto database = OpenAt(path + end);
    REQUIRE(database->WritePublished(Batch({{1, 1.0f}}), {}, true).ok());
    WrittenNote note(path);
    REQUIRE(note.Load().ok());
    uint64_t logs = 0, manifests = 0;
    for (const auto& [name, file] : note.files()) {
      logs += LogNumber(name) > 0 && file.bytes > 0;
      manifests += ManifestNumber(name) > 0 && file.bytes > 0;
    }
    CHECK(logs == 1);
    CHECK(manifests >= 1);
  }
}

TEST_CASE("a folder has one writer, and no reader beside it") {
  const TestFolder folder;
  const std::string path = folder / "deep/rows";
  auto database = OpenAt(path);
  for (const bool read_only : {false, true}) {
    const auto second = RowDatabase::Open({path, read_only, nullptr});
    REQUIRE_FALSE(second.ok());
    CHECK(second.status().code() == Code::kUnavailable);
    CHECK(second.status().message().find(path) != std::string::npos);
    CHECK(second.status().message().find("held by this process") != std::string::npos);
  }
  database.reset();
  const auto reader = OpenAt(path, true);
  CHECK(RowsOf(*OpenAt(path, true)).empty());
}

TEST_CASE("folders that are not a storage are left alone") {
  const TestFolder folder;
  CHECK(RowDatabase::Open({folder / "none", true, nullptr}).status().code() == Code::kNotFound);
  WriteAll(folder / "file", "text");
  CHECK(RowDatabase::Open({folder / "file", false, nullptr}).status().code() ==
        Code::kInvalidArgument);
  const auto busy = RowDatabase::Open({folder / ".", false, nullptr});
  CHECK(busy.status().code() == Code::kInvalidArgument);
  CHECK(busy.status().message().find("'file'") != std::string::npos);
  CHECK(ReadAll(folder / "file") == "text");
}

TEST_CASE("a checkpoint opens as a storage of its own") {
  const TestFolder folder;
  auto database = OpenAt(folder / "rows");
  REQUIRE(database->WritePublished(Batch({{1, 1.0f}}), {}, true).ok());
  REQUIRE(database->Checkpoint(folder / "copy").ok());
  REQUIRE(database->WritePublished(Batch({{1, 2.0f}}), {}, true).ok());
  const Rows then = {{1, 1.0f}};
  CHECK(RowsOf(*OpenAt(folder / "copy")) == then);
  CHECK(database->Checkpoint(folder / "copy").code() == Code::kInvalidArgument);
}

}  // namespace sok
