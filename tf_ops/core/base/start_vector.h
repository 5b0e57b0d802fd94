// The elements of the vector that a key starts from, one by one, for the host and for a GPU.
//
// Fused multiply-adds are written out and not left to the compiler, so host and GPU compute the
// same bits. Beyond kCentral the quantile of the normal distribution needs a logarithm, whose last
// bit libraries round in different ways.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "core/base/hash.h"

namespace sok {

// The increment of SplitMix64: the odd integer nearest to 2^64 / golden ratio.
constexpr uint64_t kGolden = 0x9e3779b97f4a7c15ull;

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

// Computes a polynomial by Horner's rule, from the coefficient of the highest power on.
template <typename... Doubles>
inline double Polynomial(double x, double highest, Doubles... lower) {
  double value = highest;
  ((value = std::fma(value, x, lower)), ...);
  return value;
}

// Computes the quantile function of the standard normal distribution, as a function of q = p - 1/2.
// Algorithm AS 241, PPND16 (Wichura 1988, "The percentage points of the normal distribution",
// Applied Statistics 37(3)), has a relative accuracy of about 1e-16.
constexpr double kCentral = 0.425;  // CentralQuantile is valid for |q| up to here

inline double CentralQuantile(double q) {
  const double r = std::fma(-q, q, 0.180625);
  const double numerator =
      Polynomial(r, 2.5090809287301226727e+3, 3.3430575583588128105e+4, 6.7265770927008700853e+4,
                 4.5921953931549871457e+4, 1.3731693765509461125e+4, 1.9715909503065514427e+3,
                 1.3314166789178437745e+2, 3.3871328727963666080e+0) *
      q;
  const double denominator =
      Polynomial(r, 5.2264952788528545610e+3, 2.8729085735721942674e+4, 3.9307895800092710610e+4,
                 2.1213794301586595867e+4, 5.3941960214247511077e+3, 6.8718700749205790830e+2,
                 4.2313330701600911252e+1, 1.0);
  return numerator / denominator;
}

inline double TailQuantile(double q) {
  double r = std::sqrt(-std::log(0.5 - std::fabs(q)));
  double numerator, denominator;
  if (r <= 5.0) {
    r -= 1.6;
    numerator =
        Polynomial(r, 7.74545014278341407640e-4, 2.27238449892691845833e-2,
                   2.41780725177450611770e-1, 1.27045825245236838258e+0, 3.64784832476320460504e+0,
                   5.76949722146069140550e+0, 4.63033784615654529590e+0, 1.42343711074968357734e+0);
    denominator =
        Polynomial(r, 1.05075007164441684324e-9, 5.47593808499534494600e-4,
                   1.51986665636164571966e-2, 1.48103976427480074590e-1, 6.89767334985100004550e-1,
                   1.67638483018380384940e+0, 2.05319162663775882187e+0, 1.0);
  } else {
    r -= 5.0;
    numerator =
        Polynomial(r, 2.01033439929228813265e-7, 2.71155556874348757815e-5,
                   1.24266094738807843860e-3, 2.65321895265761230930e-2, 2.96560571828504891230e-1,
                   1.78482653991729133580e+0, 5.46378491116411436990e+0, 6.65790464350110377720e+0);
    denominator =
        Polynomial(r, 2.04426310337993978564e-15, 1.42151175831644588870e-7,
                   1.84631831751005468180e-5, 7.86869131145613259100e-4, 1.48753612908506148525e-2,
                   1.36929880922735805310e-1, 5.99832206555887937690e-1, 1.0);
  }
  return std::copysign(numerator / denominator, q);
}

// Phi(2) - Phi(-2): the mass of a normal distribution within two standard deviations.
constexpr double kMassWithinTwo = 0.9544997361036416;

enum class StartKind : int { kConstant, kUniform, kNormal, kTruncatedNormal };

// The distribution from which the vectors of all keys of a group are drawn.
struct StartVector {
  StartKind kind;
  double a, b;      // see Initializer::Make
  uint64_t stream;  // seed and group, mixed
  float last;       // the largest float32 below the end of a uniform distribution

  uint64_t State(uint64_t key) const { return Mix64(stream + Mix64(key)); }

  float UniformElement(uint64_t state, int j) const {
    const float x = static_cast<float>(std::fma(b - a, Unit24(Draw(state, j)), a));
    return x < last ? x
                    : last;  // rounding may reach the end, which does not belong to the interval
  }

  // The part of the distribution, around its mean, from which numbers are drawn.
  double Mass() const { return kind == StartKind::kTruncatedNormal ? kMassWithinTwo : 1.0; }

  float NormalElement(double quantile) const {
    return static_cast<float>(std::fma(b, quantile, a));
  }

  // Returns element j of the vector of a key with this state.
  float Element(uint64_t state, int j) const {
    if (kind == StartKind::kConstant) return static_cast<float>(a);
    if (kind == StartKind::kUniform) return UniformElement(state, j);
    const double q = Mass() * Centered52(Draw(state, j));
    return NormalElement(std::fabs(q) > kCentral ? TailQuantile(q) : CentralQuantile(q));
  }
};

}  // namespace sok
