// Tests the types of rows against tables of all the numbers that they have, and the mean of random
// roundings.
#include "core/rows/row_coding.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "core/base/random_rounding.h"
#include "core/base/test_result.h"
#include "core/base/test_threads.h"

namespace sok {
namespace {

constexpr RowType kCoded[] = {RowType::kBFloat16, RowType::kFloat16, RowType::kInt8,
                              RowType::kFloat8E4M3};

RowForm FormOf(RowType row, RowType slots = RowType::kFloat32) {
  RowForm form;
  form.row = row;
  form.slots = slots;
  form.seed = 12345;
  return form;
}

std::vector<float> Decoded(const RowCoding& coding, const std::vector<char>& row) {
  std::vector<float> floats(coding.floats());
  coding.Decode(row.data(), floats.data());
  return floats;
}

std::vector<float> Nearest(const RowCoding& coding, const std::vector<float>& floats) {
  std::vector<char> row(coding.bytes());
  coding.EncodeNearest(floats.data(), row.data());
  return Decoded(coding, row);
}

std::vector<float> AtRandom(const RowCoding& coding, const std::vector<float>& floats, Key key,
                            uint32_t update) {
  std::vector<char> row(coding.bytes());
  coding.EncodeUpdated(floats.data(), key, update, row.data());
  return Decoded(coding, row);
}

// Returns all finite numbers of a 16-bit type, ascending: `mantissa` bits behind the exponent,
// whose bias is `bias`. Infinity stands at either end.
std::vector<double> AllOf(int mantissa, int bias) {
  const double infinity = std::numeric_limits<double>::infinity();
  std::vector<double> all = {-infinity, infinity};
  for (int bits = 0; bits < 1 << 15; ++bits) {
    const int exponent = bits >> mantissa, fraction = bits & ((1 << mantissa) - 1);
    if (exponent == (1 << (15 - mantissa)) - 1) break;
    const double unit = std::ldexp(1.0, std::max(exponent, 1) - bias - mantissa);
    const double value = (fraction + (exponent == 0 ? 0 : 1 << mantissa)) * unit;
    all.push_back(value);
    if (value != 0) all.push_back(-value);
  }
  std::sort(all.begin(), all.end());
  return all;
}

// Returns the numbers around x: twice x itself, if it is one of them.
std::pair<double, double> Around(const std::vector<double>& all, double x) {
  const auto above = std::lower_bound(all.begin(), all.end(), x);
  return *above == x ? std::make_pair(x, x) : std::make_pair(*(above - 1), *above);
}

// Returns floats of all sizes that the type has, and beside.
std::vector<float> ManyFloats(std::mt19937_64& rng, int n, int least, int most) {
  std::uniform_real_distribution<double> exponent(least, most), sign(-1, 1);
  std::vector<float> values(n);
  for (float& x : values) {
    x = static_cast<float>(std::copysign(std::exp2(exponent(rng)), sign(rng)));
  }
  return values;
}

TEST_CASE("numbers of 16 bits are rounded to nearest, or at random to one of the two around") {
  std::mt19937_64 rng(TestSeed());
  for (const RowType type : {RowType::kBFloat16, RowType::kFloat16}) {
    const bool half = type == RowType::kFloat16;
    const auto all = half ? AllOf(10, 15) : AllOf(7, 127);
    const int n = 4099;
    const RowCoding coding(FormOf(type), n, 0);
    for (uint32_t round = 0; round < 20; ++round) {
      auto values = half ? ManyFloats(rng, n, -30, 15) : ManyFloats(rng, n, -120, 126);
      for (int i = 0; i < 500; ++i) {  // those that the type has
        values[i] = static_cast<float>(all[1 + rng() % (all.size() - 2)]);
      }
      const auto nearest = Nearest(coding, values), random = AtRandom(coding, values, 7, round);
      for (int i = 0; i < n; ++i) {
        const auto [below, above] = Around(all, values[i]);
        CAPTURE(values[i]);
        REQUIRE((random[i] == below || random[i] == above));
        const double distance = std::abs(static_cast<double>(nearest[i]) - values[i]);
        REQUIRE((nearest[i] == below || nearest[i] == above));
        REQUIRE(distance <= std::min(values[i] - below, above - values[i]));
      }
    }
  }
}

TEST_CASE("a row that was decoded gets its bytes again, however it is rounded") {
  std::mt19937_64 rng(TestSeed());
  for (const RowType type : kCoded) {
    for (const int dim : {1, 2, 3, 8, 16, 17, 64}) {
      const RowCoding coding(FormOf(type, RowType::kBFloat16), dim, dim + 1);
      for (uint32_t round = 0; round < 300; ++round) {
        const int most = static_cast<int>(rng() % 14);
        auto floats = ManyFloats(rng, 2 * dim + 1, most - 20, most);
        if (round % 7 == 0) floats[rng() % dim] = 0.0f;
        if (round % 50 == 0) std::fill_n(floats.begin(), dim, 0.0f);
        const auto once =
            round % 2 == 0 ? Nearest(coding, floats) : AtRandom(coding, floats, rng(), round);
        REQUIRE(Nearest(coding, once) == once);
        REQUIRE(AtRandom(coding, once, rng(), round) == once);
        auto formula = once;
        coding.RoundForFormula(formula.data(), rng(), round);
        REQUIRE(formula == once);
        auto embedding = once;
        std::vector<char> scratch(coding.bytes());
        coding.RoundEmbedding(embedding.data(), scratch.data());
        REQUIRE(embedding == once);
      }
    }
  }
}

TEST_CASE("numbers of int8 are multiples of the scale, which is a 127th of the greatest") {
  std::mt19937_64 rng(TestSeed());
  for (const int dim : {1, 5, 16, 100}) {
    const RowCoding coding(FormOf(RowType::kInt8), dim, 0);
    for (uint32_t round = 0; round < 200; ++round) {
      const int most = static_cast<int>(rng() % 200) - 80;
      const auto floats = ManyFloats(rng, dim, most - 10, most);
      double greatest = 0;
      for (const float x : floats) greatest = std::max(greatest, std::abs(double{x}));
      const double unit = greatest / 127;
      const auto nearest = Nearest(coding, floats), random = AtRandom(coding, floats, 3, round);
      for (int j = 0; j < dim; ++j) {
        const double slack = greatest * 0x1p-15;
        REQUIRE(std::abs(nearest[j] - floats[j]) <= unit / 2 + slack);
        REQUIRE(std::abs(random[j] - floats[j]) <= unit + slack);
        if (std::abs(floats[j]) != greatest) continue;
        REQUIRE(std::abs(nearest[j] - floats[j]) <= slack);
        REQUIRE(std::abs(random[j] - floats[j]) <= slack);
      }
    }
  }
}

TEST_CASE("numbers of float8 have 4 bits of significand, down to 2^-17 of the greatest") {
  std::mt19937_64 rng(TestSeed());
  for (const int dim : {1, 5, 16, 100}) {
    const RowCoding coding(FormOf(RowType::kFloat8E4M3), dim, 0);
    for (uint32_t round = 0; round < 400; ++round) {
      const int most = static_cast<int>(rng() % 190) - 70;
      const auto floats = ManyFloats(rng, dim, most - 24, most);
      double greatest = 0;
      for (const float x : floats) greatest = std::max(greatest, std::abs(double{x}));
      // The unit of the least numbers, of a row whose greatest number is at least 128 scales.
      const double least = std::exp2(std::floor(std::log2(greatest)) - 7 - 9);
      const auto nearest = Nearest(coding, floats), random = AtRandom(coding, floats, 3, round);
      for (int j = 0; j < dim; ++j) {
        const double unit =
            std::max(std::exp2(std::floor(std::log2(std::abs(double{floats[j]}))) - 3), least);
        CAPTURE(floats[j]);
        REQUIRE(std::abs(nearest[j] - floats[j]) <= (unit == least ? unit : unit / 2));
        // The greatest number of a row, rounded up, may double the unit of the least.
        REQUIRE(std::abs(random[j] - floats[j]) < (unit == least ? 2 * unit : unit));
      }
    }
  }
}

TEST_CASE("the mean of random roundings is the number itself") {
  constexpr int kKeys = 20000, kDim = 24;
  std::mt19937_64 rng(TestSeed());
  for (const RowType type : kCoded) {
    const RowCoding coding(FormOf(type, RowType::kBFloat16), kDim, kDim);
    auto floats = ManyFloats(rng, 2 * kDim, -20, -2);
    floats[0] = 1.0f;
    floats[1] = 1e-4f;
    floats[2] = -0.99999f;
    std::vector<double> sums(floats.size()), squares(floats.size());
    for (Key key = 0; key < kKeys; ++key) {
      const auto rounded = AtRandom(coding, floats, key, static_cast<uint32_t>(key % 3));
      for (size_t j = 0; j < floats.size(); ++j) {
        sums[j] += rounded[j];
        squares[j] += static_cast<double>(rounded[j]) * rounded[j];
      }
    }
    for (size_t j = 0; j < floats.size(); ++j) {
      const double mean = sums[j] / kKeys;
      const double deviation = std::sqrt(std::max(0.0, squares[j] / kKeys - mean * mean) / kKeys);
      CAPTURE(j);
      CHECK(std::abs(mean - floats[j]) <= 5 * deviation + 1e-6 * std::abs(floats[j]));
    }
  }
}

TEST_CASE("draws of keys, of updates and of places differ, and so do those of a formula") {
  constexpr int kDim = 64;
  const RowCoding coding(FormOf(RowType::kBFloat16), kDim, 0);
  const std::vector<float> floats(kDim, 1.0f + 0x1p-8f);  // halfway
  const auto first = AtRandom(coding, floats, 1, 1);
  CHECK(AtRandom(coding, floats, 1, 1) == first);
  CHECK(AtRandom(coding, floats, 2, 1) != first);
  CHECK(AtRandom(coding, floats, 1, 2) != first);
  CHECK(*std::max_element(first.begin(), first.end()) !=
        *std::min_element(first.begin(), first.end()));
  auto formula = floats;
  coding.RoundForFormula(formula.data(), 1, 1);
  CHECK(formula != first);
  RowForm form = FormOf(RowType::kBFloat16);
  ++form.seed;
  CHECK(AtRandom(RowCoding(form, kDim, 0), floats, 1, 1) != first);
}

TEST_CASE("what is not finite stays visible") {
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  const std::vector<float> floats = {infinity, -infinity, nan, 1.0f};
  for (const RowType type : {RowType::kBFloat16, RowType::kFloat16}) {
    const RowCoding coding(FormOf(type), 4, 0);
    for (const auto& coded : {Nearest(coding, floats), AtRandom(coding, floats, 1, 1)}) {
      CHECK(coded[0] == infinity);
      CHECK(coded[1] == -infinity);
      CHECK(std::isnan(coded[2]));
      CHECK(coded[3] == 1.0f);
    }
  }
  CHECK(Nearest(RowCoding(FormOf(RowType::kFloat16), 1, 0), {1e5f})[0] == infinity);
  CHECK(AtRandom(RowCoding(FormOf(RowType::kFloat16), 1, 0), {1e5f}, 1, 1)[0] == infinity);
  for (const RowType type : {RowType::kInt8, RowType::kFloat8E4M3}) {
    const RowCoding coding(FormOf(type), 4, 0);
    for (const float x : {infinity, nan}) {
      for (const float each : Nearest(coding, {x, 1.0f, 2.0f, 3.0f})) CHECK(std::isnan(each));
    }
    const float most = std::numeric_limits<float>::max();
    for (const float x : {most, -most}) {
      CHECK(std::isfinite(Nearest(coding, {x, 1.0f, 2.0f, 3.0f})[0]));
      CHECK(std::isfinite(AtRandom(coding, {x, 1.0f, 2.0f, 3.0f}, 1, 1)[0]));
    }
  }
}

TEST_CASE("rows take the bytes of their types, in whole float32") {
  CHECK(RowCoding(FormOf(RowType::kBFloat16), 16, 0).bytes() == 32);
  CHECK(RowCoding(FormOf(RowType::kFloat16, RowType::kBFloat16), 16, 32).bytes() == 96);
  CHECK(RowCoding(FormOf(RowType::kInt8), 16, 0).bytes() == 20);
  CHECK(RowCoding(FormOf(RowType::kInt8), 15, 16).bytes() == 84);
  CHECK(RowCoding(FormOf(RowType::kFloat8E4M3), 15, 16).bytes() == 84);
  CHECK(RowCoding(FormOf(RowType::kFloat32, RowType::kBFloat16), 3, 3).bytes() == 20);
}

TEST_CASE("each byte of a row follows from its numbers, whatever was there before") {
  for (const RowType type : kCoded) {
    for (const int dim : {1, 2, 3, 4, 5}) {
      const RowCoding coding(FormOf(type, RowType::kBFloat16), dim, dim);
      const std::vector<float> floats(2 * dim, 0.7f);
      std::vector<char> row(coding.bytes(), 0), other(coding.bytes(), 0x55);
      coding.EncodeNearest(floats.data(), row.data());
      coding.EncodeNearest(floats.data(), other.data());
      CHECK(row == other);
      std::fill(other.begin(), other.end(), 0x55);
      coding.EncodeUpdated(floats.data(), 1, 1, row.data());
      coding.EncodeUpdated(floats.data(), 1, 1, other.data());
      CHECK(row == other);
    }
  }
}

TEST_CASE("bfloat16 comes out of rows as it does for a lookup in float32") {
  std::mt19937_64 rng(TestSeed());
  for (const RowType type : kCoded) {
    const RowCoding coding(FormOf(type), 19, 0);
    std::vector<char> row(coding.bytes());
    coding.EncodeNearest(ManyFloats(rng, 19, -10, 3).data(), row.data());
    std::vector<BFloat16> short_ones(19);
    coding.DecodeEmbedding(row.data(), short_ones.data());
    const auto floats = Decoded(coding, row);
    for (int j = 0; j < 19; ++j)
      CHECK(ToFloat(short_ones[j]) == ToFloat(FromFloat<BFloat16>(floats[j])));
  }
}

TEST_CASE("names of types") {
  CHECK(Value(RowForm::Make("int8", "bfloat16")).row == RowType::kInt8);
  CHECK(Value(RowForm::Make("float32", "float32")).plain());
  CHECK(
      RowForm::Make("int4", "float32").status().message() ==
      "expected row_dtype to be one of float32, bfloat16, float16, int8, float8_e4m3, got 'int4'");
  CHECK(RowForm::Make("int8", "float16").status().message() ==
        "expected slot_dtype to be one of float32, bfloat16, got 'float16'");
}

}  // namespace
}  // namespace sok
