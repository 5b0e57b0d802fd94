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
  bool own_gradient;  // else the receipt takes no deposit
  DepositOrder order;
};

// Returns an error for static rows without a value, or of another type or width. Their lock is
// held.
absl::Status CheckStaticRows(tensorflow::Var& variable, int dim);

// Reads `keys` as `lookup` says, whose mask, buckets and outputs are set, from rows in the host's
// memory or on a GPU that the host asks. `copied` has static rows of a variable on a GPU, whose
// slots are not copied then; null: they are read in place. `own` is the tensor of lookup.own.
absl::Status MaskGatherOnHost(tensorflow::OpKernelContext* ctx, const OpenTable& resource,
                              tensorflow::Var& variable, const tensorflow::Tensor* copied,
                              MaskedLookup lookup, const tensorflow::Tensor& keys,
                              const tensorflow::Tensor& own, const MaskGatherOptions& options,
                              tensorflow::Tensor* embeddings, Receipt* receipt);

// Tells, once for a table, of gradients of keys that asked for an own row and were not counted.
void LogUncounted(std::atomic<bool>* told, const std::string& table_name);

}  // namespace sok
