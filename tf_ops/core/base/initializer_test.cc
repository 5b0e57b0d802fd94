#include "core/base/initializer.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <set>
#include <string>
#include <vector>

namespace sok {
namespace {

constexpr Key kMinusOne = ~Key{0};
constexpr Key kInt64Min = Key{1} << 63;

Initializer MakeOrDie(const std::string& kind, double a, double b, uint64_t seed = 0,
                      uint64_t group = 0) {
  Result<Initializer> made = Initializer::Make(kind, a, b, seed, group);
  REQUIRE_MESSAGE(made.ok(), made.status().message());
  return made.value();
}

std::vector<float> Row(const Initializer& initializer, Key key, int dim) {
  std::vector<float> row(dim);
  initializer.Fill(key, row.data(), dim);
  return row;
}

// Returns all elements of the rows of keys 0 .. rows - 1.
std::vector<double> Sample(const Initializer& initializer, int rows, int dim) {
  std::vector<double> sample;
  for (int key = 0; key < rows; ++key) {
    for (float x : Row(initializer, static_cast<Key>(key), dim)) sample.push_back(x);
  }
  return sample;
}

double NormalCdf(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }

struct Distribution {
  std::string kind;
  double a, b;
  double mean, stddev;
  std::function<double(double)> cdf;
};

// The standard deviation of a standard normal truncated at 2 is 0.87962566103423978, the constant
// that Keras' VarianceScaling divides by.
std::vector<Distribution> Distributions() {
  const double mass = NormalCdf(2) - NormalCdf(-2);
  return {
      {"uniform", -0.05, 0.05, 0.0, 0.1 / std::sqrt(12.0),
       [](double x) { return (x + 0.05) / 0.1; }},
      {"uniform", 2.0, 5.0, 3.5, 3.0 / std::sqrt(12.0), [](double x) { return (x - 2.0) / 3.0; }},
      {"normal", 0.0, 1.0, 0.0, 1.0, NormalCdf},
      {"normal", -3.0, 0.5, -3.0, 0.5, [](double x) { return NormalCdf((x + 3.0) / 0.5); }},
      {"truncated_normal", 0.0, 1.0, 0.0, 0.87962566103423978,
       [mass](double x) { return (NormalCdf(x) - NormalCdf(-2)) / mass; }},
      {"truncated_normal", 1.0, 0.1, 1.0, 0.087962566103423978,
       [mass](double x) { return (NormalCdf((x - 1.0) / 0.1) - NormalCdf(-2)) / mass; }},
  };
}

TEST_CASE("the stream is pinned, so that a table keeps its initial vectors across versions") {
  // The values are from an implementation in Python with big integers and
  // statistics.NormalDist().inv_cdf.
  struct Golden {
    std::string kind;
    double a, b;
    uint64_t seed, group;
    Key key;
    std::vector<float> row;
  };
  const std::vector<Golden> goldens = {
      {"uniform",
       -0.05,
       0.05,
       0,
       0,
       0,
       {-0.03245844319462776f, -0.002678418066352606f, 0.015400486998260021f,
        -0.03619901090860367f}},
      {"uniform",
       -1,
       3,
       42,
       7,
       kMinusOne,
       {1.7738230228424072f, 0.6756210327148438f, -0.6298646926879883f, 0.12003350257873535f}},
      {"normal",
       0,
       1,
       0,
       0,
       1,
       {-0.09738370031118393f, -2.104490280151367f, 0.8979648947715759f, -0.9835684895515442f}},
      {"normal",
       0.5,
       0.05,
       42,
       255,
       kInt64Min,
       {0.5335018634796143f, 0.48809725046157837f, 0.46578726172447205f, 0.5618909597396851f}},
      {"truncated_normal",
       0,
       1,
       0,
       0,
       0,
       {-0.8772173523902893f, -0.0641271099448204f, 0.3772273361682892f, -1.0174041986465454f}},
      {"truncated_normal",
       -1,
       0.1,
       ~0ull,
       3,
       kInt64Min - 1,
       {-1.0411652326583862f, -0.9932132959365845f, -0.9660646915435791f, -1.1246514320373535f}},
  };
  for (const Golden& golden : goldens) {
    CAPTURE(golden.kind);
    CAPTURE(golden.seed);
    CHECK(Row(MakeOrDie(golden.kind, golden.a, golden.b, golden.seed, golden.group), golden.key,
              static_cast<int>(golden.row.size())) == golden.row);
  }
}

TEST_CASE("a constant fills the row") {
  CHECK(Row(MakeOrDie("constant", -1.5, 0), 7, 5) == std::vector<float>(5, -1.5f));
}

TEST_CASE("moments are those of the distribution") {
  for (const Distribution& d : Distributions()) {
    CAPTURE(d.kind);
    CAPTURE(d.a);
    const std::vector<double> sample = Sample(MakeOrDie(d.kind, d.a, d.b, 3), 20000, 16);
    const double n = static_cast<double>(sample.size());
    double mean = 0, variance = 0, skew = 0;
    for (double x : sample) mean += x / n;
    for (double x : sample) {
      const double z = (x - d.mean) / d.stddev;
      variance += z * z / n;
      skew += z * z * z / n;
    }
    CHECK(std::fabs(mean - d.mean) < 4 * d.stddev / std::sqrt(n));
    CHECK(std::fabs(variance - 1) < 4 * std::sqrt(2 / n));
    CHECK(std::fabs(skew) < 4 * std::sqrt(15 / n));
  }
}

TEST_CASE("the sample follows the exact CDF (Kolmogorov and Smirnov)") {
  for (const Distribution& d : Distributions()) {
    CAPTURE(d.kind);
    CAPTURE(d.a);
    std::vector<double> sample = Sample(MakeOrDie(d.kind, d.a, d.b, 11), 20000, 16);
    std::sort(sample.begin(), sample.end());
    const double n = static_cast<double>(sample.size());
    double distance = 0;
    for (size_t i = 0; i < sample.size(); ++i) {
      const double p = d.cdf(sample[i]);
      distance = std::max({distance, std::fabs(p - i / n), std::fabs(p - (i + 1) / n)});
    }
    CHECK(distance < 1.95 / std::sqrt(n));  // exceeded by 1 sample of 1000
  }
}

TEST_CASE("a uniform stays in [minval, maxval), also where float32 has few values between") {
  for (auto [minval, maxval] : {std::pair{-0.05, 0.05}, {0.0, 1.0}, {16777214.0, 16777216.0}}) {
    const Initializer initializer = MakeOrDie("uniform", minval, maxval);
    for (double x : Sample(initializer, 20000, 16)) {
      REQUIRE(x >= static_cast<float>(minval));
      REQUIRE(x < static_cast<float>(maxval));
    }
  }
  CHECK(Row(MakeOrDie("uniform", 2.5, 2.5), 1, 3) == std::vector<float>(3, 2.5f));
}

TEST_CASE("a truncated normal stays within two standard deviations") {
  const double mean = 0.3, stddev = 0.7;
  double least = 10, most = -10;
  for (double x : Sample(MakeOrDie("truncated_normal", mean, stddev), 20000, 16)) {
    least = std::min(least, x);
    most = std::max(most, x);
  }
  CHECK(least >= static_cast<float>(mean - 2 * stddev));
  CHECK(most <= static_cast<float>(mean + 2 * stddev));
  CHECK(least < mean - 1.99 * stddev);
  CHECK(most > mean + 1.99 * stddev);
}

TEST_CASE("a normal has tails") {
  double most = 0;
  for (double x : Sample(MakeOrDie("normal", 0, 1), 100000, 16))
    most = std::max(most, std::fabs(x));
  CHECK(most > 4.5);  // all 1.6 M elements are smaller in less than 1 of 40000 runs
  CHECK(most < 6.5);
}

TEST_CASE("a shorter row is the beginning of a longer one") {
  for (const Distribution& d : Distributions()) {
    CAPTURE(d.kind);
    const Initializer initializer = MakeOrDie(d.kind, d.a, d.b, 5, 2);
    for (Key key : {Key{0}, kMinusOne, kInt64Min}) {
      const std::vector<float> longest = Row(initializer, key, 200);
      for (int dim : {1, 3, 8, 16, 63, 64, 65, 128}) {
        CAPTURE(dim);
        CHECK(Row(initializer, key, dim) ==
              std::vector<float>(longest.begin(), longest.begin() + dim));
      }
    }
  }
}

TEST_CASE("Fill writes dim floats and no more") {
  for (const Distribution& d : Distributions()) {
    const Initializer initializer = MakeOrDie(d.kind, d.a, d.b);
    for (int dim : {0, 1, 7, 64, 100}) {
      std::vector<float> out(dim + 1, 99.0f);
      initializer.Fill(1, out.data(), dim);
      CHECK(out[dim] == 99.0f);
      CHECK(std::count(out.begin(), out.end(), 99.0f) == 1);
    }
  }
}

TEST_CASE("keys, seeds and groups each give rows of their own") {
  std::set<std::vector<float>> rows;
  size_t made = 0;
  for (uint64_t seed : {uint64_t{0}, uint64_t{1}, uint64_t{2}, ~uint64_t{0}}) {
    for (uint64_t group = 0; group < 256; ++group) {
      const Initializer initializer = MakeOrDie("uniform", -1, 1, seed, group);
      for (Key key : {Key{0}, Key{1}, Key{2}, Key{3}, kMinusOne, kMinusOne - 1, kInt64Min,
                      kInt64Min - 1, Key{1} << 32}) {
        rows.insert(Row(initializer, key, 4));
        ++made;
      }
    }
  }
  CHECK(rows.size() == made);
}

// Returns the correlation of two samples of mean 0.
double Correlation(const std::vector<double>& x, const std::vector<double>& y) {
  double xy = 0, xx = 0, yy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    xy += x[i] * y[i];
    xx += x[i] * x[i];
    yy += y[i] * y[i];
  }
  return xy / std::sqrt(xx * yy);
}

TEST_CASE("rows of neighbouring keys, seeds and groups, and elements of a row, do not correlate") {
  constexpr int kKeys = 20000, kDim = 8;
  auto sample = [](uint64_t seed, uint64_t group, Key first_key, Key stride, int first_element) {
    const Initializer initializer = MakeOrDie("normal", 0, 1, seed, group);
    std::vector<double> x;
    for (int k = 0; k < kKeys; ++k) {
      const std::vector<float> row =
          Row(initializer, first_key + static_cast<Key>(k) * stride, first_element + kDim);
      x.insert(x.end(), row.begin() + first_element, row.end());
    }
    return x;
  };
  const double bound = 4 / std::sqrt(static_cast<double>(kKeys * kDim));
  const std::vector<double> base = sample(1, 0, 0, 1, 0);
  CHECK(std::fabs(Correlation(base, sample(1, 0, 1, 1, 0))) < bound);
  CHECK(std::fabs(Correlation(base, sample(1, 0, kInt64Min, 1, 0))) < bound);
  CHECK(std::fabs(Correlation(base, sample(1, 0, kMinusOne, kMinusOne, 0))) < bound);
  CHECK(std::fabs(Correlation(base, sample(1, 0, 0, Key{1} << 40, 0))) < bound);
  CHECK(std::fabs(Correlation(base, sample(2, 0, 0, 1, 0))) < bound);
  CHECK(std::fabs(Correlation(base, sample(1, 1, 0, 1, 0))) < bound);
  CHECK(std::fabs(Correlation(base, sample(1, 0, 0, 1, 1))) < bound);
  CHECK(std::fabs(Correlation(base, sample(1, 0, 0, 1, 4))) < bound);
  CHECK(Correlation(base, sample(1, 0, 0, 1, 0)) == doctest::Approx(1.0));
}

TEST_CASE("an initializer that cannot be is an error that says why") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  auto message = [](const std::string& kind, double a, double b) {
    const Result<Initializer> made = Initializer::Make(kind, a, b, 0);
    REQUIRE(!made.ok());
    CHECK(made.status().code() == Code::kInvalidArgument);
    return made.status().message();
  };
  CHECK(message("glorot", 0, 1).find("constant, normal, truncated_normal, uniform") !=
        std::string::npos);
  CHECK(message("glorot", 0, 1).find("\"glorot\"") != std::string::npos);
  CHECK(message("uniform", 1, 0).find("minval <= maxval") != std::string::npos);
  CHECK(message("normal", 0, -1).find("stddev >= 0") != std::string::npos);
  CHECK(message("truncated_normal", 0, -1).find("stddev >= 0") != std::string::npos);
  CHECK(message("constant", nan, 0).find("finite") != std::string::npos);
  for (const char* kind : {"uniform", "normal", "truncated_normal"}) {
    CHECK(message(kind, nan, 1).find("finite") != std::string::npos);
    CHECK(message(kind, 0, infinity).find("finite") != std::string::npos);
    CHECK(message(kind, 0, 1e39).find("finite") != std::string::npos);  // infinite in float32
  }
}

}  // namespace
}  // namespace sok
