// Eviction of rows that were not updated for max_age ticks, the oldest first.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "core/policies/eviction.h"

namespace sok {

class MaxAgeEviction final : public Eviction {
 public:
  static Result<std::unique_ptr<Eviction>> Make(const EvictionConfig& config) {
    if (config.max_age < 1) {
      return InvalidArgument(
          "Expected max_age of at least 1, in ticks of the table's clock. Received: 0.");
    }
    return std::unique_ptr<Eviction>(std::make_unique<MaxAgeEviction>(config));
  }
  using Eviction::Eviction;

  uint64_t Rank(const RowMeta& meta, const float*, int, uint32_t now) const override {
    return TimeOf(meta, now);
  }
  uint64_t Limit(uint32_t now) const override {
    return now < config().max_age ? 0 : uint64_t{now} - config().max_age + 1;
  }

  // Rows are checked at most 16 times in max_age, so a row may stay a sixteenth longer. They are
  // checked at the first step too, since it is not known when an earlier process has checked them.
  bool Due(int64_t, uint32_t now) override {
    const bool knows = passed_ > 0 && passed_ <= now;
    return !knows || now - passed_ >= std::max<uint32_t>(1, config().max_age / 16);
  }
  void Passed(uint32_t now) override { passed_ = now; }

 private:
  uint32_t passed_ = 0;  // when rows were last checked; 0: never
};

}  // namespace sok
