// The objects that the ops which serve rows of a GPU to workers hand to each other.
#pragma once

#include <memory>
#include <vector>

#include "core/collection/key_messages.h"
#include "core/collection/message_parts.h"
#include "kernels/pooled_on_gpu.h"

namespace sok {

// The keys that workers have asked this one for.
struct AskedKeysVariant : ProcessVariant<AskedKeysVariant> {
  static constexpr char kName[] = "sok_embed::AskedKeys";
  std::shared_ptr<const AskedKeys> asked;
  std::vector<bool> on_all;  // (tables) whether each lies on all workers
};

// A lookup of these keys on the GPU, kept for the gradients of the rows.
struct ServedCall {
  TrainedToken trained;
  std::shared_ptr<const AskedKeys> asked;
  std::vector<LookupKeys> keys;  // (tables) of the deposit; n is 0 where the table is not trained
  std::vector<std::vector<gpu::RowBags>> bags;  // (tables) the bags that it pools, without vectors
  std::vector<tensorflow::Tensor> held;         // tensors whose addresses are in `bags`
  std::vector<double> shares;                   // (tables) see CollectionKeys
  DepositOrder order = {};
  void* stream = nullptr;

  gpu::DeviceRows& rows_of(size_t table) const {
    return *trained.tables[table]->table()->device_rows(stream);
  }
};

struct ServedReceipt : ProcessVariant<ServedReceipt> {
  static constexpr char kName[] = "sok_embed::ServedReceipt";
  std::shared_ptr<const ServedCall> call;
};

// Keeps the gradients of rows that were served, which are input 1 of an op, for a commit. `number`
// is DepositOrder's gradient.
absl::Status DepositServed(tensorflow::OpKernelContext* ctx, const ServedCall& call, int64_t number,
                           const AnchorGradient& anchor);

}  // namespace sok
