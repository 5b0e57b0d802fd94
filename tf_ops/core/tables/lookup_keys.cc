#include "core/tables/lookup_keys.h"

#include <memory>
#include <utility>
#include <vector>

#include "core/base/status_macros.h"

namespace sok {

LookupKeys WithoutUnused(const LookupKeys& keys, const float* gradients, int dim) {
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

Status ToHost(int dim, LookupKeys* keys, std::shared_ptr<const void>* hold, const float** gradients,
              const BFloat16** gradients_bf16) {
  if (!keys->device.has_value()) return Status();
  const DeviceBatch device = *keys->device;
  struct Copies {
    std::vector<Key> keys;
    std::vector<uint32_t> positions;
    std::vector<float> floats;
    std::vector<BFloat16> halves;
  };
  auto copies = std::make_shared<Copies>();
  const auto copy = [&](auto* to, size_t n, auto* from) -> Status {
    if (*from == nullptr) return Status();
    to->resize(n);
    SOK_RETURN_IF_ERROR(
        device.memory->Read(to->data(), *from, n * sizeof(to->front()), device.stream));
    *from = to->data();
    return Status();
  };
  const size_t rows = keys->positions == nullptr ? keys->n : device.gradients;
  SOK_RETURN_IF_ERROR(copy(&copies->keys, keys->n, &keys->keys));
  SOK_RETURN_IF_ERROR(copy(&copies->positions, keys->n, &keys->positions));
  SOK_RETURN_IF_ERROR(copy(&copies->floats, rows * dim, gradients));
  SOK_RETURN_IF_ERROR(copy(&copies->halves, rows * dim, gradients_bf16));
  keys->device.reset();
  keys->hold = copies;
  if (device.skips_marked) *keys = WithoutUnused(*keys, *gradients, dim);
  *hold = std::move(copies);
  return Status();
}

}  // namespace sok
