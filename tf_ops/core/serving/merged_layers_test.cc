#include "core/serving/merged_layers.h"

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "core/base/test_folder.h"
#include "core/base/test_threads.h"
#include "core/serving/test_served_rows.h"

namespace sok {
namespace {

constexpr int kDim = 5;

// Writes and opens rows of some of the keys below 400; null for none.
std::shared_ptr<const ServedRows> SomeFile(const std::string& path, ServingType type, int dim,
                                           std::mt19937_64* random) {
  TestRows rows{dim, {}, {}};
  const uint64_t one_in = 2 + (*random)() % 40;
  for (Key key = 0; key < 400; ++key) {
    if ((*random)() % one_in != 0) continue;
    rows.keys.push_back(key);
    for (int i = 0; i < dim; ++i) {
      rows.values.push_back(static_cast<float>((*random)() % 1000) / 7.0f);
    }
  }
  if (rows.keys.empty()) return nullptr;
  REQUIRE(WriteRows(path, HeaderOf(type, dim), rows).ok());
  return Value(ServedRows::Open(path));
}

TEST_CASE("layers that are merged answer with the bits of layers that are not") {
  std::mt19937_64 random(TestSeed());
  const TestFolder folder;
  for (const ServingType type : kServingTypes) {
    const std::string name = ServingTypeName(type);
    const auto base = SomeFile(folder / (name + "base"), type, kDim, &random);
    REQUIRE(base != nullptr);
    std::vector<RowsLayer> all, merged;
    size_t most = 0;
    for (int i = 0; i < 30; ++i) {
      const std::string at = name + std::to_string(i);
      RowsLayer layer;
      if (random() % 4 != 0) layer.rows = SomeFile(folder / (at + "r"), type, kDim, &random);
      if (random() % 4 != 0) {
        layer.gone = SomeFile(folder / (at + "g"), ServingType::kFloat16, 1, &random);
      }
      all.push_back(layer);
      REQUIRE(AddLayer(&merged, std::move(layer), kDim).ok());
      most = std::max(most, merged.size());
      const LayeredRows expected(base, all), found(base, merged);
      std::vector<Key> keys(500);
      for (size_t key = 0; key < keys.size(); ++key) keys[key] = key;
      std::vector<float> rows(keys.size() * kDim), others(rows.size());
      std::vector<uint8_t> there(keys.size()), others_there(keys.size());
      REQUIRE(expected.Lookup(keys.data(), keys.size(), rows.data(), SerialFor).ok());
      REQUIRE(found.Lookup(keys.data(), keys.size(), others.data(), SerialFor).ok());
      REQUIRE(expected.Contains(keys.data(), keys.size(), there.data(), SerialFor).ok());
      REQUIRE(found.Contains(keys.data(), keys.size(), others_there.data(), SerialFor).ok());
      CHECK(rows == others);
      CHECK(there == others_there);
    }
    CHECK(most > 1);
    CHECK(most <= kMostLayers);
  }
}

TEST_CASE("a disk that is full leaves the layers as they were") {
  std::mt19937_64 random(3);
  const TestFolder folder;
  std::vector<RowsLayer> layers;
  RowsLayer first, second;
  first.rows = SomeFile(folder / "first", ServingType::kFloat32, kDim, &random);
  second.rows = SomeFile(folder / "second", ServingType::kFloat32, kDim, &random);
  REQUIRE(AddLayer(&layers, first, kDim).ok());
  RowsLayer large = second.rows->size() < first.rows->size() ? first : second;
  const FileSizeLimit limit(100);
  CHECK(AddLayer(&layers, large, kDim).code() == Code::kResourceExhausted);
  REQUIRE(layers.size() == 1);
  CHECK(layers[0].rows == first.rows);
}

}  // namespace
}  // namespace sok
