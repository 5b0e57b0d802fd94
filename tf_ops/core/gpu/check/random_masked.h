// Compares lookups of a table on a GPU that read own and static rows, and the gradients of static
// rows, with a store in the host's memory and with sums in float64.
#pragma once

#include <memory>
#include <random>
#include <vector>

#include "core/base/status.h"
#include "core/base/types.h"
#include "core/gpu/device.h"
#include "core/gpu/gpu_table.h"
#include "core/rows/row_store.h"
#include "core/rules/row_optimizer.h"

namespace sok::gpu {

struct MaskedModel {
  RowStore* rows;  // what the table holds; new rows are made in it too
  std::vector<Slot> slots;
  uint32_t now;
};

// Looks keys up by a random mask, with static rows and slots drawn at random. Returns an error that
// describes the difference.
Status CheckMasked(const std::shared_ptr<Device>& device, GpuTable* table,
                   const std::vector<Key>& keys, const MaskedModel& model, std::mt19937_64* random);

}  // namespace sok::gpu
