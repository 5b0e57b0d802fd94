// Pending rows that are written in files and in memtables, against maps of the standard library.
#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/base/test_folder.h"
#include "core/base/test_result.h"
#include "core/base/test_threads.h"
#include "core/disk/rocksdb/row_database.h"

namespace sok {
namespace {

constexpr int kDim = 32;
constexpr Key kKeys = 100000;
constexpr size_t kMany =
    60000;  // rows that take more bytes than those from which on they get a file
static_assert(kMany * (RowBatch::kBytesBesideValues + kDim * sizeof(float) / 2) >
              Database::kPendingFileBytes);
constexpr int kGroup = 3;

using Rows = std::map<Key, float>;  // the first float of each row

class Program {
 public:
  explicit Program(uint64_t seed) : rng_(seed) { Open(); }

  void Run(int steps) {
    for (int step = 0; step < steps; ++step) {
      CAPTURE(step);
      Step();
      Check();
    }
  }
  // Writes random rows, which may have a key more than once, and removals.
  Status Write(size_t n) {
    RowBatch batch;
    Rows written = pending_;
    for (size_t i = 0; i < n; ++i) {
      const Key key = rng_() % kKeys;
      if (rng_() % 8 == 0) {
        batch.Remove(RowKey(kGroup, key));
        written.erase(key);
      } else {
        const float values[kDim] = {static_cast<float>(rng_() % 100000)};
        batch.Put(RowKey(kGroup, key), {RowHeader::kVersion, kDim, 0, {0, 0}},
                  {reinterpret_cast<const char*>(values), sizeof(values)});
        written[key] = values[0];
      }
    }
    const Status status = database_->WritePending(batch);
    if (status.ok()) pending_ = std::move(written);
    return status;
  }
  void Check() const {
    Rows rows;
    const auto add = [&](Key key, std::string_view bytes) {
      RowValue value;
      if (!value.Parse(bytes, RowLayout(kDim, {}))) return;
      std::memcpy(&rows[key], value.values.data(), sizeof(float));
    };
    REQUIRE(database_
                ->ForEach(kGroup,
                          [&](int, Key key, std::string_view bytes) {
                            add(key, bytes);
                            return Status();
                          })
                .ok());
    CHECK(rows == pending_);
    rows.clear();
    std::vector<RowKey> keys;
    for (Key key = 0; key < kKeys; key += 7) keys.emplace_back(kGroup, key);
    REQUIRE(database_
                ->Read(keys.data(), keys.size(),
                       [&](size_t i, std::string_view bytes) {
                         add(RowKey::KeyOf(keys[i].view()), bytes);
                       })
                .ok());
    for (const auto& [key, value] : pending_) {
      if (key % 7 != 0) continue;
      const auto row = rows.find(key);
      REQUIRE(row != rows.end());
      REQUIRE(row->second == value);
      rows.erase(row);
    }
    CHECK(rows.empty());
  }
  const std::string& path() const { return path_; }

 private:
  void Open() {
    database_.reset();
    database_ = Value(RowDatabase::Open({path_, /*read_only=*/false, nullptr}));
    pending_ = published_;
  }
  void Step() {
    switch (rng_() % 8) {
      case 0:
      case 1:
      case 2:
        REQUIRE(Write(kMany + rng_() % kMany).ok());
        break;
      case 3:
        REQUIRE(Write(rng_() % 1000).ok());
        break;
      case 4:
        REQUIRE(database_->Publish({}).ok());
        published_ = pending_;
        break;
      case 5: {
        REQUIRE(database_->SetPendingApart().ok());
        const Rows apart = pending_;
        REQUIRE(Write(rng_() % 2 == 0 ? kMany : 100).ok());
        const auto publication = database_->StartPublicationOfSetApart();
        REQUIRE(publication->Finish({{"name", "value"}}).ok());
        database_->DropSetApart();
        published_ = apart;
        break;
      }
      case 6:
        REQUIRE(database_->DropPending().ok());
        pending_ = published_;
        break;
      default:
        Open();
    }
  }

  const TestFolder folder_;
  const std::string path_ = folder_ / "rows";
  std::mt19937_64 rng_;
  std::unique_ptr<Database> database_;
  Rows published_, pending_;  // the latter is what readers see
};

}  // namespace

TEST_CASE("pending rows of files and memtables are read, published and dropped as maps have them") {
  const uint64_t seed = TestSeed();
  CAPTURE(seed);
  Program(seed).Run(LongTests() ? 200 : 8);
}

TEST_CASE("many rows that no file takes wait in a memtable, and no file is left") {
  Program program(7);
  REQUIRE(program.Write(kMany).ok());
  {
    const FileSizeLimit full(1 << 16);
    const Status status = program.Write(kMany);
    REQUIRE_MESSAGE(status.ok(), status.message());
  }
  program.Check();
  for (const auto& entry : std::filesystem::directory_iterator(program.path())) {
    CHECK(entry.path().filename().string().rfind("sok-publish-", 0) != 0);
  }
  REQUIRE(program.Write(kMany).ok());
  program.Check();
}

}  // namespace sok
