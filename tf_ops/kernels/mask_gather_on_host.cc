#include "kernels/mask_gather_on_host.h"

#include <memory>
#include <utility>

#include "core/base/bfloat16.h"

namespace sok {

namespace tf = tensorflow;

namespace {

StaticRows RowsOf(const tf::Tensor& matrix) {
  return {matrix.flat<float>().data(), matrix.dim_size(0), matrix.dim_size(1)};
}

// Copies the slots of the static rows, one lock at a time, since optimizers take them in another
// order.
absl::Status CopySlots(const SlotSources& sources, MaskGather* gather) {
  for (const auto& source : sources) {
    tf::Var& variable = *source;
    tf::tf_shared_lock lock(*variable.mu());
    const tf::Tensor& slot = *variable.tensor();
    if (!variable.is_initialized || slot.dtype() != tf::DT_FLOAT || slot.dims() != 2) {
      gather->DropSlots();
      break;
    }
    TF_RETURN_IF_ERROR(ToAbsl(gather->CopySlots(RowsOf(slot))));
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status Gather(const OpenTable& resource, tf::Var& variable, const tf::Tensor* copied,
                    const MaskedLookup& lookup, const MaskGatherOptions& options, T* embeddings,
                    const ParallelFor& pool) {
  MaskGather gather(resource.table().get(), lookup);
  {
    // Writers wait until the last row has been read.
    tf::tf_shared_lock lock(*variable.mu());
    TF_RETURN_IF_ERROR(CheckStaticRows(variable, options.dim));
    const StaticRows rows = RowsOf(copied == nullptr ? *variable.tensor() : *copied);
    TF_RETURN_IF_ERROR(ToAbsl(gather.Read(rows, embeddings, pool)));
    if (options.make_rows) TF_RETURN_IF_ERROR(ToAbsl(gather.Admit(rows)));
  }
  if (gather.admitted() > 0) {
    const bool copies_slots = options.copy_slots && copied == nullptr;
    const auto sources = copies_slots ? resource.slot_sources() : nullptr;
    if (sources != nullptr) TF_RETURN_IF_ERROR(CopySlots(*sources, &gather));
    TF_RETURN_IF_ERROR(ToAbsl(gather.MakeRows(pool)));
  }
  gather.Count();
  return absl::OkStatus();
}

// Returns true, once for each table, if the lookup makes no rows and a key asks for an own row that
// it does not have, so that only its static row is trained.
bool LeavesUncounted(const OpenTable& resource, const MaskedLookup& lookup,
                     const MaskGatherOptions& options) {
  if (options.make_rows || !options.own_gradient || *resource.reported_uncounted()) return false;
  for (size_t i = 0; i < lookup.n; ++i) {
    if (lookup.mask[i] == 1 && !lookup.own[i]) return true;
  }
  return false;
}

// Makes the receipt that takes the gradients of the whole batch; own rows get their part of them.
Receipt::Deposit DepositInto(const std::shared_ptr<Table>& table, const tf::Tensor& keys,
                             const tf::Tensor& own, DepositOrder order) {
  return [table, keys, own, order](int64_t number, std::shared_ptr<const void> hold,
                                   const float* gradients, const BFloat16* gradients_bf16,
                                   const AnchorGradient& anchor, const ParallelFor& parallel_for) {
    LookupKeys deposited =
        KeysOfOwnRows(static_cast<const Key*>(keys.data()), own.flat<bool>().data(),
                      static_cast<size_t>(keys.NumElements()));
    deposited.order = order;
    deposited.order.gradient = number;
    return table->Deposit(std::move(deposited), std::move(hold), gradients, gradients_bf16, anchor,
                          parallel_for);
  };
}

}  // namespace

absl::Status CheckStaticRows(tf::Var& variable, int dim) {
  if (!variable.is_initialized) {
    return absl::FailedPreconditionError("expected initialized static rows");
  }
  const tf::Tensor& rows = *variable.tensor();
  if (rows.dtype() == tf::DT_FLOAT && rows.dims() == 2 && rows.dim_size(1) == dim) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "expected static rows of float32 and shape [buckets, " + std::to_string(dim) + "], got " +
      tf::DataTypeString(rows.dtype()) + " of shape " + rows.shape().DebugString());
}

absl::Status MaskGatherOnHost(tf::OpKernelContext* ctx, const OpenTable& resource,
                              tf::Var& variable, const tf::Tensor* copied, MaskedLookup lookup,
                              const tf::Tensor& keys, const tf::Tensor& own,
                              const MaskGatherOptions& options, tf::Tensor* embeddings,
                              Receipt* receipt) {
  lookup.keys = static_cast<const Key*>(keys.data());
  lookup.n = static_cast<size_t>(keys.NumElements());
  lookup.stored = resource.stored();
  const auto gather = [&](auto* out) {
    return Gather(resource, variable, copied, lookup, options, out, IntraOpPool(ctx));
  };
  TF_RETURN_IF_ERROR(embeddings->dtype() == tf::DT_FLOAT
                         ? gather(static_cast<float*>(embeddings->data()))
                         : gather(static_cast<BFloat16*>(embeddings->data())));
  Receipt made{resource.name(), lookup.n, options.dim, nullptr};
  if (options.own_gradient) {
    made.deposit = DepositInto(resource.table(), keys, own, options.order);
  }
  if (LeavesUncounted(resource, lookup, options)) {
    made.deposit = [deposit = std::move(made.deposit), told = resource.reported_uncounted(),
                    name = resource.name()](auto&&... arguments) {
      LogUncounted(told.get(), name);
      return deposit(std::forward<decltype(arguments)>(arguments)...);
    };
  }
  *receipt = std::move(made);
  return absl::OkStatus();
}

void LogUncounted(std::atomic<bool>* told, const std::string& table_name) {
  if (told->exchange(true)) return;
  LOG(WARNING) << "table '" << table_name
               << "': expected training=True in calls whose gradients are applied. Received: a "
                  "call without, with ids of mask 1 that have no own row. They are not counted "
                  "for one, and get none. Pass training=True";
}

}  // namespace sok
