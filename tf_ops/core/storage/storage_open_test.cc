// Tests the folder's TTL and other settings as a storage is opened, and how an opening changes
// them.
#include <doctest/doctest.h>

#include <optional>
#include <vector>

#include "core/base/test_folder.h"
#include "core/base/test_result.h"
#include "core/disk/rocksdb/row_database.h"
#include "core/storage/storage.h"

namespace sok {
namespace {

TableSpec OneFloat() {
  TableSpec config;
  config.dim = 1;
  return config;
}

}  // namespace

TEST_CASE("a TTL that another process changes while a folder is opened is the folder's") {
  for (const bool read_only : {false, true}) {
    CAPTURE(read_only);
    const TestFolder folder;
    uint32_t now = 1000;
    const auto open = [&](std::optional<uint32_t> ttl, Database::Opener opener) {
      StorageOptions options;
      options.path = folder / "storage";
      options.ttl = ttl;
      options.now = [&now] { return now; };
      options.read_only = read_only && !ttl.has_value();
      options.open_database = std::move(opener);
      return Value(Storage::Open(options));
    };
    const Key keys[] = {1, 2, 3};
    const float rows[] = {1, 2, 3};
    REQUIRE(open(5, RowDatabase::Open)->Close().ok());
    int openings = 0;
    const auto storage = open(std::nullopt, [&](const Database::Options& options) {
      // The folder is free between the two openings: the first reads the TTL.
      if (++openings == 2) {
        const auto other = open(0, RowDatabase::Open);
        const auto table = Value(other->OpenTable(OneFloat()));
        REQUIRE(table->Assign(keys, 3, rows, SerialFor).ok());
        REQUIRE(other->Close().ok());
      }
      return RowDatabase::Open(options);
    });
    CHECK(openings == 3);
    CHECK(storage->ttl() == 0);
    now += 100;
    if (!read_only) REQUIRE(storage->Compact().ok());
    const auto table = Value(storage->OpenTable(OneFloat()));
    CHECK(table->size() == 3);
    float found[3] = {};
    REQUIRE(table->Lookup(keys, 3, false, found, SerialFor).ok());
    CHECK(found[2] == 3);
    REQUIRE(storage->Close().ok());
    CHECK(open(std::nullopt, RowDatabase::Open)->ttl() == 0);
  }
}

}  // namespace sok
