#include "core/tables/resting_keys.h"

#include <memory>
#include <utility>
#include <vector>

namespace sok {

LookupKeys WithoutResting(const LookupKeys& keys, const float* gradients, int dim) {
  size_t first = 0;
  while (first < keys.n && !IsUnused(gradients + first * dim)) ++first;
  if (first == keys.n) return keys;
  struct Kept {
    std::vector<Key> keys;
    std::vector<uint32_t> positions;
    std::vector<int64_t> counts;
  };
  auto kept = std::make_shared<Kept>();
  for (size_t i = 0; i < keys.n; ++i) {
    if (IsUnused(gradients + i * dim)) continue;
    kept->keys.push_back(keys.keys[i]);
    if (keys.counts != nullptr) kept->counts.push_back(keys.counts[i]);
    kept->positions.push_back(static_cast<uint32_t>(i));
  }
  LookupKeys left = keys;
  left.keys = kept->keys.data();
  left.found = nullptr;  // it has the rows of all keys
  left.positions = kept->positions.data();
  if (keys.counts != nullptr) left.counts = kept->counts.data();
  left.n = kept->keys.size();
  left.hold = std::move(kept);
  return left;
}

}  // namespace sok
