// Eviction: which rows of a table go.
//
//   lru       in a full table: the rows whose last update is longest ago
//   lfu       in a full table: the rows that were updated least often; of equal ones those of lru
//   max_age   the rows that were not updated for so long
//   min_norm  the rows that are nearly zero
//
// A policy gives every row a rank, and says below which rank rows go. Rows go in the order of their
// ranks, of equal ranks in the order of their keys. Nothing is stored for that beside the counters
// that a row has anyway: how many updates it had, and when it had the last one, or was made.
//
// An object is for one table. Due and Passed are for one caller at a time, the rest is thread-safe.
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

  // Of max_age, which needs it: a row goes so many ticks of the table's clock (seconds or steps)
  // after its last update. At least 1.
  // Default: 0
  uint32_t max_age = 0;

  // Of min_norm, which needs it: rows of a smaller L2 norm go. Above 0.
  // Default: 0
  float min_l2 = 0.0f;

  // Of min_norm: all rows are looked through in every so many steps. At least 1.
  // Default: 100
  uint32_t every = 100;
};

// Returns true if two configs mean the same: numbers of other kinds do not count.
bool SameEviction(const EvictionConfig& a, const EvictionConfig& b);

class Eviction {
 public:
  explicit Eviction(const EvictionConfig& config) : config_(config) {}
  virtual ~Eviction() = default;

  const EvictionConfig& config() const { return config_; }

  // Returns true if a row's rank is computed from its embedding. Such a rank may rise and fall.
  // Other ranks come from the row's counters alone, and only rise as long as the row lives.
  virtual bool reads_embedding() const { return false; }
  // The rank of a row at a time of the table's clock. embedding (dim) is null where the policy does
  // not read it.
  virtual uint64_t Rank(const RowMeta& meta, const float* embedding, int dim,
                        uint32_t now) const = 0;
  // Rows of a rank below this one go.
  virtual uint64_t Limit(uint32_t now) const = 0;

  // Returns true if rows are evicted only where new rows need their room, so that the table must
  // have a limit.
  virtual bool needs_full_table() const { return false; }
  // Returns true if step number `step` must look through all rows and evict those below the limit,
  // even in a table that is not full. One step runs at a time.
  virtual bool Due(int64_t /*step*/, uint32_t /*now*/) { return false; }
  // Says that this has been done.
  virtual void Passed(uint32_t /*now*/) {}

 private:
  const EvictionConfig config_;
};

// A row's last update. One that lies ahead of the clock, which may have been set back since, counts
// as now: ranks must not fall.
inline uint32_t TimeOf(const RowMeta& meta, uint32_t now) {
  return meta.update_time < now ? meta.update_time : now;
}

// Errors: kInvalidArgument for an unknown kind and for a value out of its range.
Result<std::unique_ptr<Eviction>> MakeEviction(const EvictionConfig& config);

}  // namespace sok
