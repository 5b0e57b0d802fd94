// Where the rows of a table of a collection lie, and how its bags become vectors.
#pragma once

#include <cstdint>

namespace sok {

enum class Combiner { kSum, kMean, kSqrtN, kMax };

struct TablePlacement {
  enum Kind {
    kByKey,     // spread over all workers, by a hash of table and key
    kOnWorker,  // all of them on one worker
    kOnAll,     // all of them on every worker
    kByModulo,  // spread over all workers, by the key itself
    kByBucket,  // spread over all workers, by the AdaptiveBucket of the key
  };
  Kind kind = kByKey;
  uint32_t worker = 0;   // of kOnWorker
  bool pools = false;    // of kOnWorker: it is sent bags, and sends back a vector of each
  uint64_t buckets = 0;  // of kByBucket

  friend bool operator==(const TablePlacement& a, const TablePlacement& b) {
    return a.kind == b.kind && a.worker == b.worker && a.pools == b.pools && a.buckets == b.buckets;
  }
};

}  // namespace sok
