// The properties of a table that a shard's index needs.
#pragma once

#include <cstdint>

namespace sok {

struct IndexConfig {
  int shard_bits = 5;
  // For DirectIndex only.
  uint64_t capacity = 0;  // positions in this process
  uint64_t owners = 1;    // processes that share the key range
  uint64_t owner = 0;     // this one
};

}  // namespace sok
