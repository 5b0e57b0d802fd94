#include "core/tables/table.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "core/base/test_result.h"
#include "core/base/test_threads.h"

namespace sok {
namespace {

constexpr int kDim = 4;

std::unique_ptr<Table> MakeTable(const TableSpec& config) {
  auto table = Table::Make(config);
  REQUIRE_MESSAGE(table.ok(), table.status().message());
  return std::move(table.value());
}

TableSpec Config() {
  TableSpec config;
  config.dim = kDim;
  return config;
}

TableSpec DirectConfig(uint64_t max_rows, uint64_t owners = 1, uint64_t owner = 0) {
  TableSpec config = Config();
  config.direct = true;
  config.max_rows = max_rows;
  config.owners = owners;
  config.owner = owner;
  return config;
}

Status Look(Table& table, const std::vector<Key>& keys, bool make_rows,
            std::vector<float>* out = nullptr) {
  std::vector<float> embeddings(keys.size() * kDim);
  const Status status =
      table.Lookup(keys.data(), keys.size(), make_rows, embeddings.data(), ThreadedFor);
  if (out != nullptr) *out = embeddings;
  return status;
}

std::vector<float> Embeddings(Table& table, const std::vector<Key>& keys) {
  std::vector<float> out;
  REQUIRE(Look(table, keys, false, &out).ok());
  return out;
}

std::vector<Key> Range(Key begin, Key end) {
  std::vector<Key> keys(end - begin);
  std::iota(keys.begin(), keys.end(), begin);
  return keys;
}

void CheckRefused(const TableSpec& config, const std::string& part) {
  const auto table = Table::Make(config);
  REQUIRE_FALSE(table.ok());
  CHECK(table.status().code() == Code::kInvalidArgument);
  INFO("message: ", table.status().message());
  CHECK(table.status().message().find(part) != std::string::npos);
}

TEST_CASE("a table that cannot be is refused with the reason") {
  TableSpec config = Config();
  config.dim = 0;
  CheckRefused(config, "a dim of 1 to 1048576, got 0");
  config = Config();
  config.initializer = "glorot";
  CheckRefused(config, "\"glorot\"");
  CheckRefused(DirectConfig(0), "max_rows of at least 1");
  CheckRefused(DirectConfig(10, 0), "owner 0 of 0");
  CheckRefused(DirectConfig(10, 2, 2), "owner 2 of 2");
}

TEST_CASE("a lookup makes rows only if it is told to, and shows the same vectors either way") {
  const auto table = MakeTable(Config());
  const auto keys = Range(0, 200);
  const auto before = Embeddings(*table, keys);
  CHECK(table->size() == 0);
  std::vector<float> making;
  REQUIRE(Look(*table, keys, true, &making).ok());
  CHECK(table->size() == 200);
  CHECK(making == before);
  CHECK(Embeddings(*table, keys) == before);
}

TEST_CASE("equal keys of a lookup share one row") {
  const auto table = MakeTable(Config());
  REQUIRE(Look(*table, {5, 5, 9, 5}, true).ok());
  CHECK(table->size() == 2);
}

TEST_CASE("a bfloat16 lookup gives the float vectors, rounded") {
  const auto table = MakeTable(Config());
  const auto keys = Range(0, 100);
  REQUIRE(Look(*table, Range(0, 50), true).ok());
  std::vector<BFloat16> halves(100 * kDim);
  REQUIRE(table->Lookup(keys.data(), keys.size(), true, halves.data(), SerialFor).ok());
  const auto floats = Embeddings(*table, keys);
  for (size_t i = 0; i < floats.size(); ++i) {
    CHECK(ToFloat(halves[i]) == doctest::Approx(floats[i]).epsilon(1.0 / 256));
    CHECK(halves[i].bits == FromFloat<BFloat16>(floats[i]).bits);
  }
}

TEST_CASE("the vector that a key starts from does not depend on the order of insertion") {
  auto keys = Range(0, 300);
  const auto forward = MakeTable(Config()), backward = MakeTable(Config());
  REQUIRE(Look(*forward, keys, true).ok());
  std::reverse(keys.begin(), keys.end());
  for (size_t i = 0; i < 10; ++i) REQUIRE(Look(*backward, {keys[i]}, true).ok());
  REQUIRE(Look(*backward, keys, true).ok());
  CHECK(Embeddings(*forward, keys) == Embeddings(*backward, keys));
}

TEST_CASE("a removed key starts from its first vector again") {
  const auto table = MakeTable(Config());
  const std::vector<Key> keys = {1, 2, ~Key{0}};
  const auto start = Embeddings(*table, keys);
  const std::vector<float> ones(3 * kDim, 1.0f);
  REQUIRE(table->Assign(keys.data(), 3, ones.data(), SerialFor).ok());
  CHECK(Embeddings(*table, keys) == ones);
  CHECK(Value(table->Remove(keys.data(), 3, SerialFor)) == 3);
  CHECK(table->size() == 0);
  CHECK(Embeddings(*table, keys) == start);
  CHECK(Value(table->Remove(keys.data(), 3, SerialFor)) == 0);
}

TEST_CASE("tables of different seeds start from different vectors, the owner does not matter") {
  TableSpec other_seed = Config();
  other_seed.seed = 1;
  const auto keys = Range(0, 20);
  const auto expected = Embeddings(*MakeTable(Config()), keys);
  CHECK(Embeddings(*MakeTable(other_seed), keys) != expected);
  CHECK(Embeddings(*MakeTable(DirectConfig(20)), keys) == expected);
  const std::vector<float> key_7(&expected[7 * kDim], &expected[8 * kDim]);
  CHECK(Embeddings(*MakeTable(DirectConfig(20, 3, 1)), {7}) == key_7);
}

TEST_CASE("of equal keys that are assigned the last one counts") {
  const auto table = MakeTable(Config());
  const std::vector<Key> keys = {3, 8, 3};
  std::vector<float> embeddings;
  for (float x : {1.0f, 2.0f, 3.0f}) embeddings.insert(embeddings.end(), kDim, x);
  REQUIRE(table->Assign(keys.data(), 3, embeddings.data(), ThreadedFor).ok());
  CHECK(Embeddings(*table, {3}) == std::vector<float>(kDim, 3.0f));
  CHECK(Embeddings(*table, {8}) == std::vector<float>(kDim, 2.0f));
  CHECK(table->size() == 2);
}

TEST_CASE("a full table refuses new keys and keeps what it has") {
  TableSpec config = Config();
  config.max_rows = 10;
  const auto table = MakeTable(config);
  REQUIRE(Look(*table, Range(0, 8), true).ok());
  const Status lookup = Look(*table, Range(5, 11), true);
  CHECK(lookup.code() == Code::kResourceExhausted);
  CHECK(lookup.message().find("8 of at most 10 rows") != std::string::npos);
  CHECK(lookup.message().find("3 new keys") != std::string::npos);
  const std::vector<float> ones(6 * kDim, 1.0f);
  const auto keys = Range(5, 11), all = Range(0, 11);
  const auto before = Embeddings(*table, all);
  CHECK(table->Assign(keys.data(), 6, ones.data(), SerialFor).code() == Code::kResourceExhausted);
  CHECK(table->size() == 8);
  CHECK(Embeddings(*table, all) == before);
  CHECK(Look(*table, {8, 9, 8, 0}, true).ok());
  CHECK(table->size() == 10);
  CHECK(Value(table->Remove(keys.data(), 1, SerialFor)) == 1);
  CHECK(Look(*table, {500}, true).ok());
}

TEST_CASE("a direct table takes exactly the keys of its range") {
  const auto table = MakeTable(DirectConfig(100));
  REQUIRE(Look(*table, Range(0, 100), true).ok());
  CHECK(table->size() == 100);
  for (Key key : {Key{100}, ~Key{0}, Key{1} << 63}) {
    for (bool make_rows : {false, true}) {
      CHECK(Look(*table, {1, key}, make_rows).code() == Code::kOutOfRange);
    }
    const std::vector<float> ones(kDim, 1.0f);
    CHECK(table->Assign(&key, 1, ones.data(), SerialFor).code() == Code::kOutOfRange);
  }
  CHECK(Look(*table, {100}, true).message() ==
        "expected keys in [0, 100), got 100; make the table larger, or give it a hash index for "
        "keys of any value");
  CHECK(Look(*table, {~Key{0}}, true).message().find("got -1;") != std::string::npos);
  CHECK(table->size() == 100);
}

TEST_CASE("a direct table of several workers takes its own keys only") {
  const auto table = MakeTable(DirectConfig(10, 3, 1));
  REQUIRE(Look(*table, {1, 4, 28}, true).ok());
  CHECK(Look(*table, {31}, true).code() == Code::kOutOfRange);
  const Status other = Look(*table, {4, 5}, true);
  CHECK(other.code() == Code::kInvalidArgument);
  CHECK(other.message() == "key 5 belongs to worker 2, and this is worker 1 of 3");
  CHECK(table->size() == 3);
}

TEST_CASE("CheckKeysBelow names the first key that is too large, and 0 sets no limit") {
  const std::vector<Key> keys = {3, 12, 11, 0};
  CHECK(CheckKeysBelow(keys.data(), keys.size(), 13).ok());
  CHECK(CheckKeysBelow(keys.data(), keys.size(), 0).ok());
  CHECK(CheckKeysBelow(keys.data(), 0, 1).ok());
  const Status status = CheckKeysBelow(keys.data(), keys.size(), 11);
  CHECK(status.code() == Code::kOutOfRange);
  CHECK(status.message().find("[0, 11), got 12;") != std::string::npos);
}

TEST_CASE("stats tell rows, their limit, memory, steps and what waits for a commit") {
  TableSpec config = Config();
  config.max_rows = 1000;
  const auto table = MakeTable(config);
  const auto keys = Range(0, 300);
  REQUIRE(Look(*table, keys, true).ok());
  const std::vector<float> gradients(300 * kDim, 1.0f);
  REQUIRE(
      table->Deposit({nullptr, keys.data(), 300, true}, nullptr, gradients.data(), nullptr).ok());
  REQUIRE(
      table->Deposit({nullptr, keys.data(), 20, true}, nullptr, gradients.data(), nullptr).ok());
  TableStats stats = table->Stats();
  CHECK(stats.rows == 300);
  CHECK(stats.max_rows == 1000);
  CHECK(stats.index_bytes >= 300 * (sizeof(Key) + sizeof(uint32_t)));
  CHECK(stats.row_bytes >= 300 * kDim * sizeof(float));
  CHECK(stats.steps == 0);
  CHECK(stats.pending_gradients == 320);
  REQUIRE(table->Commit({"sgd", {}, 0, 1.0f}, SerialFor).ok());
  stats = table->Stats();
  CHECK(stats.steps == 1);
  CHECK(stats.pending_gradients == 0);
}

TEST_CASE("a lookup of no keys is fine") {
  const auto table = MakeTable(Config());
  CHECK(table->Lookup<float>(nullptr, 0, true, nullptr, ThreadedFor).ok());
  CHECK(table->Assign(nullptr, 0, nullptr, ThreadedFor).ok());
  CHECK(Value(table->Remove(nullptr, 0, ThreadedFor)) == 0);
  CHECK(table->size() == 0);
}

}  // namespace
}  // namespace sok
