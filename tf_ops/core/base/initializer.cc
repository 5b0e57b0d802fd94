#include "core/base/initializer.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/base/hash.h"
#include "core/base/status_macros.h"

namespace sok {
namespace {

// The number of elements that are made at a time, in arrays on the stack, so that the loops over
// them vectorise.
constexpr int kBlock = 64;

void FillNormal(const StartVector& start, uint64_t state, float* out, int dim) {
  const double mass = start.Mass();
  double q[kBlock];
  double z[kBlock];
  for (int begin = 0; begin < dim; begin += kBlock) {
    const int n = std::min(kBlock, dim - begin);
    for (int j = 0; j < n; ++j) q[j] = mass * Centered52(Draw(state, begin + j));
    for (int j = 0; j < n; ++j) z[j] = CentralQuantile(q[j]);
    for (int j = 0; j < n; ++j) {
      if (std::fabs(q[j]) > kCentral) z[j] = TailQuantile(q[j]);
    }
    for (int j = 0; j < n; ++j) out[begin + j] = start.NormalElement(z[j]);
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
    return Initializer({StartKind::kConstant, a, b, stream, 0.0f});
  }
  if (kind == "uniform") {
    SOK_RETURN_IF_ERROR(CheckFinite(kind, "minval", a));
    SOK_RETURN_IF_ERROR(CheckFinite(kind, "maxval", b));
    if (a > b) {
      return InvalidArgument(
          "Initializer \"uniform\": expected minval <= maxval. Received: minval " +
          std::to_string(a) + ", maxval " + std::to_string(b) + ".");
    }
    const float last = std::nextafter(static_cast<float>(b), static_cast<float>(a));
    return Initializer({StartKind::kUniform, a, b, stream, last});
  }
  if (kind == "normal" || kind == "truncated_normal") {
    SOK_RETURN_IF_ERROR(CheckFinite(kind, "mean", a));
    SOK_RETURN_IF_ERROR(CheckFinite(kind, "stddev", b));
    if (b < 0) {
      return InvalidArgument("Initializer \"" + kind +
                             "\": expected stddev >= 0. Received: " + std::to_string(b) + ".");
    }
    return Initializer(
        {kind == "normal" ? StartKind::kNormal : StartKind::kTruncatedNormal, a, b, stream, 0.0f});
  }
  return InvalidArgument(
      "Expected an initializer of constant, normal, truncated_normal, uniform. Received: \"" +
      kind + "\".");
}

void Initializer::Fill(Key key, float* out, int dim) const {
  const StartVector start = start_;
  const uint64_t state = start.State(key);
  switch (start.kind) {
    case StartKind::kConstant:
      std::fill(out, out + std::max(dim, 0), static_cast<float>(start.a));
      return;
    case StartKind::kUniform:
      for (int j = 0; j < dim; ++j) out[j] = start.UniformElement(state, j);
      return;
    case StartKind::kNormal:
    case StartKind::kTruncatedNormal:
      return FillNormal(start, state, out, dim);
  }
}

}  // namespace sok
