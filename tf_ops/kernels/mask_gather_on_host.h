// The host's part of SokEmbed>AdaptiveMaskGather and SokEmbed>AdaptiveMaskGatherOnGpu.
#pragma once

#include <atomic>
#include <string>

#include "core/adaptive/mask_gather.h"
#include "kernels/receipt.h"
#include "kernels/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_var.h"

namespace sok {

struct MaskGatherOptions {
  int dim;
  bool make_rows;
  bool copy_slots;
  bool own_gradient;  // false: the receipt takes no deposit
  DepositOrder order;
};

// Returns an error for static rows without a value, or of another type or width. The caller holds
// their lock.
absl::Status CheckStaticRows(tensorflow::Var& variable, int dim);

// Reads `keys` as `lookup` says, from rows in the host's memory or, by copies, on a GPU. The mask,
// buckets and outputs of `lookup` must be set. `copied` has the static rows of a variable on a GPU,
// and slots are not copied then; null: static rows are read in place. `own` is the tensor of
// lookup.own.
absl::Status MaskGatherOnHost(tensorflow::OpKernelContext* ctx, const OpenTable& resource,
                              tensorflow::Var& variable, const tensorflow::Tensor* copied,
                              MaskedLookup lookup, const tensorflow::Tensor& keys,
                              const tensorflow::Tensor& own, const MaskGatherOptions& options,
                              tensorflow::Tensor* embeddings, Receipt* receipt);

// Logs, once for each table, that gradients of keys which asked for an own row were not counted.
void LogUncounted(std::atomic<bool>* told, const std::string& table_name);

}  // namespace sok
