// Table: which rows go after steps because of their age or norm, and which evictions it can have.
#include <doctest/doctest.h>

#include <optional>
#include <vector>

#include "core/base/test_folder.h"
#include "core/base/test_result.h"
#include "core/storage/storage.h"
#include "core/storage/test_place.h"
#include "core/tables/table.h"

namespace sok {
namespace {

TEST_CASE("max_age: rows go after steps once they are so old, and in a full table at once") {
  EvictionConfig config{"max_age", 3};
  Place place(false, config, 4);
  place.Step({1});
  place.Step({2});
  place.Step({3});
  CHECK(place.Rows() == Keys{1, 2, 3});
  place.Step({3});  // 1 was trained three steps ago
  CHECK(place.Rows() == Keys{2, 3});
  CHECK(place.table->Stats().evicted == 1);
  REQUIRE(place.Look({5, 6}).ok());  // made at 4
  const Status full = place.Look({7});
  CHECK(full.code() == Code::kResourceExhausted);
  CHECK(place.Rows() == Keys{2, 3, 5, 6});

  Place slow(false, {"max_age", 64}, 3);  // rows are looked through in every fourth step
  slow.Step({1});
  slow.Step({2});
  for (int step = 3; step <= 65; ++step) slow.Step({3});
  CHECK(slow.Rows() == Keys{2, 3});
  REQUIRE(slow.Look({4}).ok());
  slow.Step({3});
  CHECK(slow.Rows() == Keys{2, 3, 4});  // not looked through before step 69
  REQUIRE(slow.Look({5}).ok());
  CHECK(slow.Rows() == Keys{3, 4, 5});
}

TEST_CASE("min_norm: rows go in every so many steps, and in a full table at once") {
  for (const bool on_disk : {false, true}) {
    EvictionConfig config{"min_norm", 0, 1.0f, 3};
    Place place(on_disk, config, 4);
    const Keys keys = {1, 2, 3, 4};
    const std::vector<float> values = {0.5f, 0, 3, 4, 0.1f, 0.1f, 5, 5};
    REQUIRE(place.table->Assign(keys.data(), 4, values.data(), SerialFor).ok());
    REQUIRE(place.Look({7}).ok());
    CHECK(place.Rows() == Keys{1, 2, 4, 7});  // the smallest
    REQUIRE(place.Look({8}).ok());
    CHECK(place.Rows() == Keys{2, 4, 7, 8});
    CHECK(place.Look({9}).code() == Code::kResourceExhausted);
    CHECK(place.table->Stats().evicted == 2);
    const Key key = 2;
    const float nothing[] = {0, 0};
    REQUIRE(place.table->Assign(&key, 1, nothing, SerialFor).ok());
    for (int step = 1; step <= 3; ++step) {
      CHECK(place.Rows() == Keys{2, 4, 7, 8});
      place.Step({4});  // from (5, 5) to (2, 2)
    }
    CHECK(place.Rows() == Keys{4, 7, 8});
    CHECK(place.table->Stats().evicted == 3);
  }
}

TEST_CASE("min_norm: rows of an update stay until the next one") {
  for (const bool on_disk : {false, true}) {
    Place place(on_disk, {"min_norm", 0, 1.0f, 1}, 0);
    const auto sgd = Value(MakeRowOptimizer("sgd", {{"learning_rate", 1.0}}));
    const auto update = [&](const Keys& keys) {
      const std::vector<float> gradients(keys.size() * kDim, 0.9f);  // from (1, 1)
      REQUIRE(place.table
                  ->Update(keys.data(), keys.size(), gradients.data(), "sgd", *sgd, {}, SerialFor)
                  .ok());
    };
    update({1, 2});
    CHECK(place.Rows() == Keys{1, 2});
    update({2, 3});
    CHECK(place.Rows() == Keys{2, 3});
    CHECK(place.table->Stats().evicted == 1);
  }
}

TEST_CASE("rows in use do not go after steps") {
  Place place(false, {"min_norm", 0, 10.0f, 1}, 0);
  LookupKeys batch = Place::Held({1});
  batch.claim = place.table->Claim(batch);
  REQUIRE(place.Look({1, 2}).ok());
  place.Deposit({2});
  place.Commit();
  CHECK(place.Rows() == Keys{1});
}

TEST_CASE("a key whose row went has to be admitted anew") {
  AdmissionConfig admission;
  admission.min_count = 2;
  Place place(false, Kind("lru"), 2, admission);
  REQUIRE(place.Look({1, 1, 2, 2}).ok());
  REQUIRE(place.Look({3, 3}).ok());
  CHECK(place.Rows() == Keys{2, 3});
  REQUIRE(place.Look({1}).ok());
  CHECK(place.Rows() == Keys{2, 3});
  REQUIRE(place.Look({1}).ok());
  CHECK(place.Rows() == Keys{1, 3});
}

TEST_CASE("evictions that a table cannot have are refused") {
  const auto make = [](const EvictionConfig& eviction, TableSpec config) {
    config.eviction = eviction;
    return Table::Make(config).status();
  };
  CHECK(make(Kind("lru"), Config(0)).code() == Code::kInvalidArgument);
  CHECK(make(Kind("lfu"), Config(0)).code() == Code::kInvalidArgument);
  CHECK(make({"max_age", 1}, Config(0)).ok());
  TableSpec direct = Config(5);
  direct.direct = true;
  CHECK(make(Kind("lru"), direct).code() == Code::kInvalidArgument);
}

TEST_CASE("a group's description has its eviction, and while it is open there is no other") {
  const TestFolder folder;
  StorageOptions options;
  options.path = folder / "storage";
  const EvictionConfig by_norm{"min_norm", 0, 0.25f, 7};
  const auto open = [](Storage& storage, std::optional<EvictionConfig> eviction) {
    TableSpec config = Config(5);
    config.eviction = std::move(eviction);
    return storage.OpenTable(config);
  };
  const auto described = [](Storage& storage) { return Value(storage.Groups())[0].meta.eviction; };
  for (const auto& eviction : std::vector<std::optional<EvictionConfig>>{
           Kind("lru"), by_norm, std::nullopt, EvictionConfig{"max_age", 9}}) {
    const auto storage = Value(Storage::Open(options));
    REQUIRE(open(*storage, eviction).ok());
    CHECK(open(*storage, eviction).ok());
    const Status other = open(*storage, Kind("lfu")).status();
    CHECK(other.code() == Code::kInvalidArgument);
    CHECK(other.message().find("{\"kind\":\"lfu\"}") != std::string::npos);
    REQUIRE(storage->Close().ok());
    const auto again = Value(Storage::Open(options));
    const auto meta = described(*again);
    REQUIRE(meta.has_value() == eviction.has_value());
    if (meta.has_value()) CHECK(SameEviction(*meta, *eviction));
    REQUIRE(again->Close().ok());
  }
}

}  // namespace
}  // namespace sok
