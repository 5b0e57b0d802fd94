// The receipt of a lookup whose keys, vectors and gradients lie in the memory of a GPU.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "kernels/pooled_on_gpu.h"
#include "kernels/receipt.h"
#include "kernels/table_resource.h"

namespace sok {

// Makes the receipt of a lookup of n embeddings, which takes the gradients of `keys` there.
// `leave_out`, unless it is empty, removes keys that get no gradient, after keys were copied to the
// host.
inline Receipt ReceiptOnGpu(const OpenTable& resource, size_t n, LookupKeys keys,
                            std::function<Status(LookupKeys*)> leave_out = nullptr) {
  const std::shared_ptr<Table>& table = resource.table();
  Receipt receipt{resource.name(), n, table->dim(), nullptr};
  receipt.on_gpu = true;
  receipt.deposit = [table, keys = std::move(keys), leave_out = std::move(leave_out)](
                        int64_t number, std::shared_ptr<const void> hold, const float* gradients,
                        const BFloat16* gradients_bf16, const AnchorGradient& anchor,
                        const ParallelFor& parallel_for) {
    LookupKeys deposited = keys;
    deposited.order.gradient = number;
    if (leave_out != nullptr) {
      Status status = table->BringToHost(&deposited, &hold, &gradients, &gradients_bf16);
      if (status.ok()) status = leave_out(&deposited);
      if (!status.ok()) return status;
    }
    return DepositInTable(table.get(), std::move(deposited), std::move(hold), gradients,
                          gradients_bf16, anchor, parallel_for);
  };
  return receipt;
}

}  // namespace sok
