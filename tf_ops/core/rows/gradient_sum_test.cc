#include "core/rows/gradient_sum.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "core/base/test_threads.h"

namespace sok {
namespace {

constexpr uint32_t kLeftOut = UINT32_MAX;

// Holds batches of gradients, entries that point into them, and the row of each entry.
class Case {
 public:
  explicit Case(int dim) : dim_(dim) {}

  void AddBatch(size_t n, bool bfloat16, std::mt19937_64& rng) {
    std::normal_distribution<float> normal;
    std::vector<float> floats(n * dim_);
    for (float& x : floats) x = normal(rng);
    std::vector<BFloat16> halves;
    for (float& x : floats) {
      if (!bfloat16) continue;
      halves.push_back(FromFloat<BFloat16>(x));
      x = ToFloat(halves.back());
    }
    floats_.push_back(std::move(floats));
    halves_.push_back(std::move(halves));
    sizes_.push_back(n);
  }

  void AddEntry(uint32_t batch, uint32_t position, uint32_t row) {
    entries_.push_back({row, batch, position});
    rows_.push_back(row);
  }

  void Build(GradientSum& sum) const {
    std::vector<GradientBatch> batches;
    for (size_t b = 0; b < sizes_.size(); ++b) {
      if (halves_[b].empty()) {
        batches.push_back({nullptr, floats_[b].data(), nullptr, sizes_[b]});
      } else {
        batches.push_back({nullptr, nullptr, halves_[b].data(), sizes_[b]});
      }
    }
    sum.Build(entries_.data(), rows_.data(), entries_.size(), batches, dim_);
  }

  // Compares with sums of the entries' values in double. A sum in float32 may be off by an ulp for
  // each addition.
  void Check(const GradientSum& sum) const {
    std::vector<uint32_t> order;
    std::map<uint32_t, std::vector<double>> sums, magnitudes;
    for (size_t i = 0; i < entries_.size(); ++i) {
      if (rows_[i] == kLeftOut) continue;
      if (sums.count(rows_[i]) == 0) order.push_back(rows_[i]);
      sums[rows_[i]].resize(dim_);
      magnitudes[rows_[i]].resize(dim_);
      for (int j = 0; j < dim_; ++j) {
        const double x = Gradient(entries_[i])[j];
        sums[rows_[i]][j] += x;
        magnitudes[rows_[i]][j] += std::fabs(x);
      }
    }
    REQUIRE(sum.rows() == order);
    REQUIRE(sum.gradients().size() == order.size());
    for (size_t u = 0; u < order.size(); ++u) {
      for (int j = 0; j < dim_; ++j) {
        INFO("row ", order[u], ", element ", j);
        const double error = std::fabs(sum.gradients()[u][j] - sums[order[u]][j]);
        REQUIRE(error <= 1e-5 * magnitudes[order[u]][j]);
      }
    }
  }

  const float* Gradient(const ShardEntry& entry) const {
    return &floats_[entry.batch][size_t{entry.position} * dim_];
  }
  size_t batch_size(uint32_t batch) const { return sizes_[batch]; }

 private:
  int dim_;
  std::vector<std::vector<float>> floats_;
  std::vector<std::vector<BFloat16>> halves_;  // empty for a batch of float32
  std::vector<size_t> sizes_;
  std::vector<ShardEntry> entries_;
  std::vector<uint32_t> rows_;
};

TEST_CASE("sums agree with sums in double, over floats, bfloat16s and both") {
  std::mt19937_64 rng(TestSeed());
  GradientSum sum;
  for (int round = 0; round < 60; ++round) {
    Case c(1 + round % 9);
    const auto batches = static_cast<uint32_t>(1 + rng() % 4);
    const auto distinct = static_cast<uint32_t>(1 + rng() % 300);
    for (uint32_t b = 0; b < batches; ++b) c.AddBatch(1 + rng() % 200, rng() % 2 == 0, rng);
    for (uint32_t b = 0; b < batches; ++b) {
      for (uint32_t i = 0; i < c.batch_size(b); ++i) {
        const auto row = static_cast<uint32_t>(rng() % distinct);
        c.AddEntry(b, i, rng() % 5 == 0 ? kLeftOut : row);
      }
    }
    c.Build(sum);
    c.Check(sum);
  }
}

TEST_CASE("equal rows are added in the order of the entries") {
  // In float32, 2^24 + 1 is 2^24: only one order of the three gives 2^24 + 2.
  const float gradients[] = {1.0f, 1.0f, 16777216.0f, -3.0f};
  const std::vector<GradientBatch> batches = {{nullptr, gradients, nullptr, 4}};
  const uint32_t rows[] = {8, 8, 8};
  GradientSum sum;
  const ShardEntry small_first[] = {{0, 0, 0}, {0, 0, 1}, {0, 0, 2}};
  sum.Build(small_first, rows, 3, batches, 1);
  CHECK(sum.gradients()[0][0] == 16777218.0f);
  const ShardEntry large_first[] = {{0, 0, 2}, {0, 0, 0}, {0, 0, 1}};
  sum.Build(large_first, rows, 3, batches, 1);
  CHECK(sum.gradients()[0][0] == 16777216.0f);
}

TEST_CASE("a float gradient that no other entry shares is not copied") {
  std::mt19937_64 rng(TestSeed());
  Case c(4);
  c.AddBatch(3, false, rng);
  c.AddEntry(0, 0, 7);
  c.AddEntry(0, 1, 9);
  c.AddEntry(0, 2, 9);
  GradientSum sum;
  c.Build(sum);
  REQUIRE(sum.rows() == std::vector<uint32_t>{7, 9});
  CHECK(sum.gradients()[0] == c.Gradient({0, 0, 0}));
  c.Check(sum);
}

TEST_CASE("the deposited gradients stay as they were") {
  const float gradients[] = {1, 2, 3, 4};
  const ShardEntry entries[] = {{0, 0, 0}, {0, 0, 1}};
  const uint32_t rows[] = {5, 5};
  GradientSum sum;
  sum.Build(entries, rows, 2, {{nullptr, gradients, nullptr, 2}}, 2);
  CHECK(std::vector<float>(gradients, gradients + 4) == std::vector<float>{1, 2, 3, 4});
}

TEST_CASE("entries that are all left out, or none at all, give no rows") {
  std::mt19937_64 rng(TestSeed());
  GradientSum sum;
  Case full(3);
  full.AddBatch(1, false, rng);
  full.AddEntry(0, 0, 1);
  full.Build(sum);
  Case left_out(3);
  left_out.AddBatch(2, false, rng);
  left_out.AddEntry(0, 0, kLeftOut);
  left_out.AddEntry(0, 1, kLeftOut);
  left_out.Build(sum);
  CHECK(sum.rows().empty());
  CHECK(sum.gradients().empty());
  Case empty(3);
  empty.Build(sum);
  CHECK(sum.rows().empty());
}

}  // namespace
}  // namespace sok
