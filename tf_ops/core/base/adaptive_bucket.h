// Says which bucket of an adaptive table a key is in. The keys of a bucket share a static row, and
// all belong to one owner.
#pragma once

#include <cstdint>

#include "core/base/hash.h"
#include "core/base/types.h"

namespace sok {

// Returns a number in [0, buckets): the high bits of a hash times buckets. The op StaticBuckets
// gives other buckets: it hashes as TensorFlow's feature columns do.
inline uint64_t AdaptiveBucket(Key key, uint64_t buckets) {
  const uint64_t hash = Mix64(key ^ 0x2545f4914f6cdd1dull);
  return static_cast<uint64_t>((static_cast<unsigned __int128>(hash) * buckets) >> 64);
}

}  // namespace sok
