#include "core/base/initializer.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/base/hash.h"
#include "core/base/status_macros.h"

namespace sok {
namespace {

// The increment of SplitMix64: the odd integer nearest to 2^64 / golden ratio.
constexpr uint64_t kGolden = 0x9e3779b97f4a7c15ull;

// So many elements are made at a time, in arrays on the stack, so that the loops over them
// vectorise.
constexpr int kBlock = 64;

// Phi(2) - Phi(-2): the mass of a normal distribution within two standard deviations.
constexpr double kMassWithinTwo = 0.9544997361036416;

// Element j of a row comes from the j-th output of a SplitMix64 that starts at the row's state, so
// a longer row begins with the shorter one.
inline uint64_t Draw(uint64_t state, int j) {
  return Mix64(state + (static_cast<uint64_t>(j) + 1) * kGolden);
}

// Returns the double in [1, 2) with these 52 bits of mantissa. Unlike a conversion from int64, this
// has a vector form in AVX2.
inline double OneTo2(uint64_t mantissa) {
  const uint64_t bits = mantissa | 0x3ff0000000000000ull;
  double value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// Returns k / 2^24 for a k in [0, 2^24): with 24 bits the number is exact in float32 too.
inline double Unit24(uint64_t draw) { return OneTo2((draw >> 40) << 28) - 1.0; }

// Returns (k + 1/2) / 2^52 - 1/2 for a k in [0, 2^52): symmetric around 0, exact, and never +-1/2,
// where the quantile of the normal distribution is infinite.
inline double Centered52(uint64_t draw) { return (OneTo2(draw >> 12) - 1.5) + 0x1p-53; }

// Computes the quantile function of the standard normal distribution, as a function of q = p - 1/2.
// Algorithm AS 241, PPND16 (Wichura 1988, "The percentage points of the normal distribution",
// Applied Statistics 37(3)), has a relative accuracy of about 1e-16.
constexpr double kCentral = 0.425;  // CentralQuantile is valid for |q| up to here

inline double CentralQuantile(double q) {
  const double r = 0.180625 - q * q;
  const double numerator = (((((((2.5090809287301226727e+3 * r + 3.3430575583588128105e+4) * r +
                                 6.7265770927008700853e+4) *
                                    r +
                                4.5921953931549871457e+4) *
                                   r +
                               1.3731693765509461125e+4) *
                                  r +
                              1.9715909503065514427e+3) *
                                 r +
                             1.3314166789178437745e+2) *
                                r +
                            3.3871328727963666080e+0) *
                           q;
  const double denominator = ((((((5.2264952788528545610e+3 * r + 2.8729085735721942674e+4) * r +
                                  3.9307895800092710610e+4) *
                                     r +
                                 2.1213794301586595867e+4) *
                                    r +
                                5.3941960214247511077e+3) *
                                   r +
                               6.8718700749205790830e+2) *
                                  r +
                              4.2313330701600911252e+1) *
                                 r +
                             1.0;
  return numerator / denominator;
}

double TailQuantile(double q) {
  double r = std::sqrt(-std::log(0.5 - std::fabs(q)));
  double numerator, denominator;
  if (r <= 5.0) {
    r -= 1.6;
    numerator = ((((((7.74545014278341407640e-4 * r + 2.27238449892691845833e-2) * r +
                     2.41780725177450611770e-1) *
                        r +
                    1.27045825245236838258e+0) *
                       r +
                   3.64784832476320460504e+0) *
                      r +
                  5.76949722146069140550e+0) *
                     r +
                 4.63033784615654529590e+0) *
                    r +
                1.42343711074968357734e+0;
    denominator = ((((((1.05075007164441684324e-9 * r + 5.47593808499534494600e-4) * r +
                       1.51986665636164571966e-2) *
                          r +
                      1.48103976427480074590e-1) *
                         r +
                     6.89767334985100004550e-1) *
                        r +
                    1.67638483018380384940e+0) *
                       r +
                   2.05319162663775882187e+0) *
                      r +
                  1.0;
  } else {
    r -= 5.0;
    numerator = ((((((2.01033439929228813265e-7 * r + 2.71155556874348757815e-5) * r +
                     1.24266094738807843860e-3) *
                        r +
                    2.65321895265761230930e-2) *
                       r +
                   2.96560571828504891230e-1) *
                      r +
                  1.78482653991729133580e+0) *
                     r +
                 5.46378491116411436990e+0) *
                    r +
                6.65790464350110377720e+0;
    denominator = ((((((2.04426310338993978564e-15 * r + 1.42151175831644588870e-7) * r +
                       1.84631831751005468180e-5) *
                          r +
                      7.86869131145613259100e-4) *
                         r +
                     1.48753612908506148525e-2) *
                        r +
                    1.36929880922735805310e-1) *
                       r +
                   5.99832206555887937690e-1) *
                      r +
                  1.0;
  }
  return std::copysign(numerator / denominator, q);
}

// `mass` is the part of the distribution, around its mean, that is drawn from.
void FillNormal(double mean, double stddev, double mass, uint64_t state, float* out, int dim) {
  double q[kBlock];
  double z[kBlock];
  for (int begin = 0; begin < dim; begin += kBlock) {
    const int n = std::min(kBlock, dim - begin);
    for (int j = 0; j < n; ++j) q[j] = mass * Centered52(Draw(state, begin + j));
    for (int j = 0; j < n; ++j) z[j] = CentralQuantile(q[j]);
    for (int j = 0; j < n; ++j) {
      if (std::fabs(q[j]) > kCentral) z[j] = TailQuantile(q[j]);
    }
    for (int j = 0; j < n; ++j) out[begin + j] = static_cast<float>(mean + stddev * z[j]);
  }
}

void FillUniform(double minval, double maxval, uint64_t state, float* out, int dim) {
  const double range = maxval - minval;
  // Rounding to float32 may reach maxval, which does not belong to the interval.
  const float last = std::nextafter(static_cast<float>(maxval), static_cast<float>(minval));
  for (int j = 0; j < dim; ++j) {
    out[j] = std::min(static_cast<float>(minval + range * Unit24(Draw(state, j))), last);
  }
}

Status CheckFinite(const std::string& kind, const char* name, double value) {
  if (std::isfinite(static_cast<float>(value))) return Status();
  return InvalidArgument("Initializer \"" + kind + "\": expected " + name +
                         " to be a finite float32. Received: " + std::to_string(value) + ".");
}

}  // namespace

Result<Initializer> Initializer::Make(const std::string& kind, double a, double b, uint64_t seed,
                                      uint64_t group) {
  const uint64_t stream = Mix64(Mix64(seed + kGolden) + group);
  if (kind == "constant") {
    SOK_RETURN_IF_ERROR(CheckFinite(kind, "the value", a));
    return Initializer(Kind::kConstant, a, b, stream);
  }
  if (kind == "uniform") {
    SOK_RETURN_IF_ERROR(CheckFinite(kind, "minval", a));
    SOK_RETURN_IF_ERROR(CheckFinite(kind, "maxval", b));
    if (a > b) {
      return InvalidArgument(
          "Initializer \"uniform\": expected minval <= maxval. Received: minval " +
          std::to_string(a) + ", maxval " + std::to_string(b) + ".");
    }
    return Initializer(Kind::kUniform, a, b, stream);
  }
  if (kind == "normal" || kind == "truncated_normal") {
    SOK_RETURN_IF_ERROR(CheckFinite(kind, "mean", a));
    SOK_RETURN_IF_ERROR(CheckFinite(kind, "stddev", b));
    if (b < 0) {
      return InvalidArgument("Initializer \"" + kind +
                             "\": expected stddev >= 0. Received: " + std::to_string(b) + ".");
    }
    return Initializer(kind == "normal" ? Kind::kNormal : Kind::kTruncatedNormal, a, b, stream);
  }
  return InvalidArgument(
      "Expected an initializer of constant, normal, truncated_normal, uniform. Received: \"" +
      kind + "\".");
}

void Initializer::Fill(Key key, float* out, int dim) const {
  const uint64_t state = Mix64(stream_ + Mix64(key));
  switch (kind_) {
    case Kind::kConstant:
      std::fill(out, out + std::max(dim, 0), static_cast<float>(a_));
      return;
    case Kind::kUniform:
      return FillUniform(a_, b_, state, out, dim);
    case Kind::kNormal:
      return FillNormal(a_, b_, 1.0, state, out, dim);
    case Kind::kTruncatedNormal:
      return FillNormal(a_, b_, kMassWithinTwo, state, out, dim);
  }
}

}  // namespace sok
