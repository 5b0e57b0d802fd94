// Eviction decides which rows of a table are removed.
//
//   lru       in a full table: the rows whose last update is longest ago
//   lfu       in a full table: the rows that were updated least often; among equals as lru
//   max_age   the rows that were not updated for max_age ticks
//   min_norm  the rows that are nearly zero
//
// A policy gives every row a rank, and evicts rows whose rank is below a limit, in the order of
// their ranks; rows of equal rank go in the order of their keys. This needs no memory beyond the
// counters that each row has: its number of updates, and the time of the last one, or when it was
// made.
//
// Each table has an object of its own. Due and Passed must be called by one thread at a time; the
// other methods are thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/rows/row_slabs.h"

namespace sok {

struct EvictionConfig {
  // "lru", "lfu", "max_age" or "min_norm".
  // Default: "lru"
  std::string kind = "lru";

  // For max_age, which needs it: a row is evicted so many ticks of the table's clock (seconds or
  // steps) after its last update. At least 1.
  // Default: 0
  uint32_t max_age = 0;

  // For min_norm, which needs it: rows with a smaller L2 norm are evicted. Above 0.
  // Default: 0
  float min_l2 = 0.0f;

  // For min_norm: all rows are checked once in so many steps. At least 1.
  // Default: 100
  uint32_t every = 100;
};

// Returns true if two configs mean the same. It compares only the fields that the kind reads.
bool SameEviction(const EvictionConfig& a, const EvictionConfig& b);

class Eviction {
 public:
  explicit Eviction(const EvictionConfig& config) : config_(config) {}
  virtual ~Eviction() = default;

  const EvictionConfig& config() const { return config_; }

  // Returns true if a row's rank is computed from its embedding. Such a rank may rise and fall.
  // Other ranks come from the row's counters alone, and only rise as long as the row lives.
  virtual bool reads_embedding() const { return false; }
  // Returns the rank of a row at a time of the table's clock. embedding (dim) is null unless
  // reads_embedding().
  virtual uint64_t Rank(const RowMeta& meta, const float* embedding, int dim,
                        uint32_t now) const = 0;
  // Returns the rank below which rows are evicted.
  virtual uint64_t Limit(uint32_t now) const = 0;

  // Returns true if rows are evicted only to make room for new rows, so that the table must have a
  // limit.
  virtual bool needs_full_table() const { return false; }
  // Returns true if step number `step` must look through all rows and evict those below the limit,
  // even in a table that is not full. One step runs at a time.
  virtual bool Due(int64_t /*step*/, uint32_t /*now*/) { return false; }
  // Notes that all rows were checked.
  virtual void Passed(uint32_t /*now*/) {}

 private:
  const EvictionConfig config_;
};

// Returns the time of a row's last update. A time that lies ahead of the clock, which may have been
// set back, counts as now: ranks must not fall.
inline uint32_t TimeOf(const RowMeta& meta, uint32_t now) {
  return meta.update_time < now ? meta.update_time : now;
}

// Makes an eviction. Errors: kInvalidArgument for an unknown kind and for a value out of its range.
Result<std::unique_ptr<Eviction>> MakeEviction(const EvictionConfig& config);

}  // namespace sok
