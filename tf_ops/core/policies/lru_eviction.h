// Eviction of the least recently updated rows.
#pragma once

#include <cstdint>
#include <memory>

#include "core/policies/eviction.h"

namespace sok {

class LruEviction final : public Eviction {
 public:
  static Result<std::unique_ptr<Eviction>> Make(const EvictionConfig& config) {
    return std::unique_ptr<Eviction>(std::make_unique<LruEviction>(config));
  }
  using Eviction::Eviction;

  bool needs_full_table() const override { return true; }
  uint64_t Rank(const RowMeta& meta, const float*, int, uint32_t now) const override {
    return TimeOf(meta, now);
  }
  uint64_t Limit(uint32_t) const override { return UINT64_MAX; }
};

}  // namespace sok
