// Which static row a key shares.
#pragma once

#include <cstdint>

#include "core/base/hash.h"
#include "core/base/types.h"

namespace sok {

// In [0, buckets): the high bits of a hash times buckets.
inline uint64_t StaticBucket(Key key, uint64_t buckets) {
  const uint64_t hash = Mix64(key ^ 0x2545f4914f6cdd1dull);
  return static_cast<uint64_t>((static_cast<unsigned __int128>(hash) * buckets) >> 64);
}

}  // namespace sok
