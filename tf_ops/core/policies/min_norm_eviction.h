// Eviction of rows whose L2 norm is small, the smallest first.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

#include "core/policies/eviction.h"

namespace sok {

class MinNormEviction final : public Eviction {
 public:
  static Result<std::unique_ptr<Eviction>> Make(const EvictionConfig& config) {
    if (!(config.min_l2 > 0)) {
      return InvalidArgument(
          "Expected min_l2 above 0: no row has a norm below 0, and so none would ever go. "
          "Received: " +
          std::to_string(config.min_l2) + ".");
    }
    if (config.every < 1) {
      return InvalidArgument("Expected every to be at least 1 step. Received: 0.");
    }
    return std::unique_ptr<Eviction>(std::make_unique<MinNormEviction>(config));
  }
  using Eviction::Eviction;

  bool reads_embedding() const override { return true; }
  uint64_t Rank(const RowMeta&, const float* embedding, int dim, uint32_t) const override {
    double square = 0;
    for (int j = 0; j < dim; ++j) square += double{embedding[j]} * embedding[j];
    return RankOf(std::sqrt(square));
  }
  uint64_t Limit(uint32_t) const override { return RankOf(config().min_l2); }

  bool Due(int64_t step, uint32_t) override { return step > 0 && step % config().every == 0; }

 private:
  // Numbers of at least 0 are ordered as their bits are. NaN, of either sign, is above all of them.
  static uint64_t RankOf(double norm) {
    if (std::isnan(norm)) return UINT64_MAX;
    uint64_t bits;
    std::memcpy(&bits, &norm, sizeof(bits));
    return bits;
  }
};

}  // namespace sok
