// Compares sums by key, squares and products with plain sums in float64.
#include "core/rows/summed_gradients.h"

#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <random>
#include <vector>

#include "core/base/test_threads.h"

namespace sok {
namespace {

using Dense = std::map<Key, std::vector<double>>;

struct Batch {
  std::vector<Key> keys;
  std::vector<uint32_t> positions;
  std::vector<float> gradients;
  std::vector<BFloat16> halves;
  int dim;

  GradientBatch View() const {
    return {keys.data(), halves.empty() ? gradients.data() : nullptr,
            halves.empty() ? nullptr : halves.data(), keys.size(),
            positions.empty() ? nullptr : positions.data()};
  }
  Dense Sums() const {
    Dense sums;
    for (size_t i = 0; i < keys.size(); ++i) {
      auto& sum = sums[keys[i]];
      sum.resize(dim);
      const size_t row = positions.empty() ? i : positions[i];
      for (int j = 0; j < dim; ++j) sum[j] += gradients[row * dim + j];
    }
    return sums;
  }
};

Batch RandomBatch(std::mt19937_64& random, int dim, float scale) {
  Batch batch;
  batch.dim = dim;
  const size_t rows = 1 + random() % 5000, range = 1 + random() % 6000;
  const bool some = random() % 2 == 0;
  for (uint32_t i = 0; i < rows; ++i) {
    if (some && random() % 3 == 0) continue;
    batch.keys.push_back((random() % range) * 0x9e3779b97f4a7c15ull);
    if (some) batch.positions.push_back(i);
  }
  std::normal_distribution<float> normal;
  for (size_t i = 0; i < rows * dim; ++i) batch.gradients.push_back(scale * normal(random));
  if (random() % 2 == 0) {
    for (float& x : batch.gradients) {
      batch.halves.push_back(FromFloat<BFloat16>(x));
      x = ToFloat(batch.halves.back());
    }
  }
  return batch;
}

double Product(const Dense& a, const Dense& b) {
  double sum = 0.0;
  for (const auto& [key, row] : a) {
    const auto found = b.find(key);
    if (found == b.end()) continue;
    for (size_t j = 0; j < row.size(); ++j) sum += row[j] * found->second[j];
  }
  return sum;
}

TEST_CASE("gradients are summed by key, and their norms and products are those of the sums") {
  const uint64_t seed = 21;
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  for (int repeat = 0; repeat < (LongTests() ? 60 : 16); ++repeat) {
    const int dim = 1 + static_cast<int>(random() % 33);
    const auto store = MakeHashStore(std::make_shared<const RowLayout>(dim, std::vector<Slot>{}));
    // Some values have squares that float32 does not hold.
    const float scale = repeat % 4 == 0 ? 1e25f : 1.0f;
    const Batch batches[] = {RandomBatch(random, dim, scale), RandomBatch(random, dim, scale)};
    SummedGradients summed[2];
    Dense sums[2];
    for (int b = 0; b < 2; ++b) {
      summed[b].Build(*store, batches[b].View(), dim, b == 0 ? SerialFor : ThreadedFor);
      sums[b] = batches[b].Sums();
      size_t distinct = 0;
      for (uint32_t s = 0; s < summed[b].partition().shards(); ++s) {
        for (size_t i = 0; i < summed[b].partition().size(s); ++i, ++distinct) {
          const ShardEntry& entry = summed[b].partition().begin(s)[i];
          const auto& expected = sums[b].at(entry.key);
          for (int j = 0; j < dim; ++j) {
            const double sum = summed[b].gradient(entry.position)[j] / scale;
            REQUIRE(sum == doctest::Approx(expected[j] / scale).epsilon(1e-4));
          }
        }
      }
      REQUIRE(distinct == sums[b].size());
      CHECK(summed[b].square() == doctest::Approx(Product(sums[b], sums[b])).epsilon(1e-6));
    }
    const double tolerance = 1e-6 * std::sqrt(summed[0].square() * summed[1].square());
    CHECK(std::abs(summed[0].Dot(summed[1]) - Product(sums[0], sums[1])) <= tolerance);
    CHECK(std::abs(summed[1].Dot(summed[0]) - Product(sums[0], sums[1])) <= tolerance);
  }
}

}  // namespace
}  // namespace sok
