#include "core/serving/layered_rows.h"

#include <doctest/doctest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/base/test_folder.h"
#include "core/base/test_threads.h"
#include "core/serving/test_served_rows.h"

namespace sok {
namespace {

constexpr int kDim = 3;

// Writes whole numbers, which every type of these rows holds exactly, for keys below 500.
TestRows SomeRows(size_t n, std::mt19937_64* random) {
  TestRows rows{kDim, {}, {}};
  std::map<Key, bool> seen;
  while (rows.keys.size() < n) {
    const Key key = (*random)() % 500;
    if (!seen.emplace(key, true).second) continue;
    rows.keys.push_back(key);
    for (int i = 0; i < kDim; ++i) rows.values.push_back(static_cast<float>((*random)() % 100));
  }
  return rows;
}

TEST_CASE("layers over a base answer as a map that takes the changes in turn") {
  std::mt19937_64 random(TestSeed());
  const TestFolder folder;
  for (int round = 0; round < 20; ++round) {
    std::map<Key, std::vector<float>> expected;
    const auto take = [&](const TestRows& rows) {
      for (size_t i = 0; i < rows.keys.size(); ++i) {
        const auto* const row = rows.values.data() + i * kDim;
        expected[rows.keys[i]].assign(row, row + kDim);
      }
    };
    const auto write = [&](const std::string& name, ServingHeader header, const TestRows& rows) {
      const std::string path = folder / (std::to_string(round) + name);
      REQUIRE(WriteRows(path, header, rows).ok());
      return path;
    };
    const TestRows first = SomeRows(random() % 300, &random);
    ServingHeader header = HeaderOf(ServingType::kFloat32, kDim);
    header.missing = MissingRows{"uniform", -1, 1, 7, 0};
    const auto base = Value(ServedRows::Open(write("base", header, first)));
    take(first);
    std::vector<std::string> gone, rows;
    for (int layer = static_cast<int>(random() % 5); layer > 0; --layer) {
      const std::string name = std::to_string(layer);
      gone.emplace_back();
      rows.emplace_back();
      if (random() % 3 != 0) {
        TestRows keys = SomeRows(random() % 100, &random);
        keys.dim = 1;
        keys.values.assign(keys.keys.size(), 0.0f);
        for (const Key key : keys.keys) expected.erase(key);
        gone.back() = write("gone" + name, HeaderOf(ServingType::kFloat16, 1), keys);
      }
      if (random() % 3 != 0) {
        const TestRows changed = SomeRows(random() % 100, &random);
        take(changed);
        const auto type = random() % 2 != 0 ? ServingType::kFloat32 : ServingType::kFloat16;
        rows.back() = write("rows" + name, HeaderOf(type, kDim), changed);
      }
    }
    const auto layered = Value(LayeredRows::Open(base, gone, rows));
    std::vector<Key> asked(700);
    for (size_t i = 0; i < asked.size(); ++i) asked[i] = i < 600 ? i : random();
    std::vector<float> found(asked.size() * kDim), missing(asked.size() * kDim);
    std::vector<uint8_t> there(asked.size());
    REQUIRE(layered->Lookup(asked.data(), asked.size(), found.data(), ThreadedFor).ok());
    REQUIRE(layered->Contains(asked.data(), asked.size(), there.data(), ThreadedFor).ok());
    const auto start = Value(Initializer::Make("uniform", -1, 1, 7, 0));
    size_t wrong = 0;
    for (size_t i = 0; i < asked.size(); ++i) {
      const auto at = expected.find(asked[i]);
      std::vector<float> row(kDim);
      if (at == expected.end()) {
        start.Fill(asked[i], row.data(), kDim);
      } else {
        row = at->second;
      }
      wrong += there[i] != (at != expected.end());
      wrong += row != std::vector<float>(&found[i * kDim], &found[i * kDim] + kDim);
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("a layer of rows of another length is refused") {
  std::mt19937_64 random(1);
  const TestFolder folder;
  const std::string base = folder / "base", other = folder / "other";
  REQUIRE(WriteRows(base, HeaderOf(ServingType::kFloat32, kDim), SomeRows(5, &random)).ok());
  REQUIRE(WriteRows(other, HeaderOf(ServingType::kFloat32, 7), RandomRows(5, 7, &random)).ok());
  const auto opened = LayeredRows::Open(Value(ServedRows::Open(base)), {""}, {other});
  CHECK(opened.status().code() == Code::kInvalidArgument);
}

}  // namespace
}  // namespace sok
