// Runs random batches of hashed bags on a GPU and on the host, and compares them.
#pragma once

#include <cstdint>
#include <memory>

#include "core/base/status.h"
#include "core/gpu/device.h"

namespace sok::gpu {

// Runs one batch: its mode, hash, sizes, dtypes, forms of ids and offsets, signs, blocks, padding
// and factors follow from the seed. Returns an error that describes the difference. It compares:
//   - vectors, winners, gradients of factors: the bits of HashedBagForward and ScaleGradient
//   - sparse gradients: the positions of SparseWeightGradient, and its bits where up to 32 values
//     go to a position; else up to rounding
//   - dense gradients: those of DenseWeightGradient, up to rounding
//   - a second run: the same bits in all of them
// `most_entries` is the largest number of ids.
Status RunRandomBags(const std::shared_ptr<Device>& device, uint64_t seed, uint64_t most_entries);

}  // namespace sok::gpu
