// Eviction of the least often updated rows, of equally often updated ones the least recently
// updated.
#pragma once

#include <cstdint>
#include <memory>

#include "core/policies/eviction.h"

namespace sok {

class LfuEviction final : public Eviction {
 public:
  static Result<std::unique_ptr<Eviction>> Make(const EvictionConfig& config) {
    return std::unique_ptr<Eviction>(std::make_unique<LfuEviction>(config));
  }
  using Eviction::Eviction;

  bool needs_full_table() const override { return true; }
  uint64_t Rank(const RowMeta& meta, const float*, int, uint32_t now) const override {
    return uint64_t{meta.update_num} << 32 | TimeOf(meta, now);
  }
  uint64_t Limit(uint32_t) const override { return UINT64_MAX; }
};

}  // namespace sok
