// SokEmbed>AdaptiveMaskGather: rows of a static variable and rows of a table, each into its place.
#include <memory>
#include <string>
#include <utility>

#include "core/adaptive/mask_gather.h"
#include "core/base/bfloat16.h"
#include "kernels/lookup_kernel.h"
#include "kernels/register_kernel.h"
#include "kernels/table_resource.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace sok {

namespace tf = tensorflow;
using tf::shape_inference::InferenceContext;
using tf::shape_inference::ShapeHandle;

// The anchor is not read: it is what the embeddings of own rows depend on, as far as gradients are
// concerned. `own` says which embeddings are of own rows: a key without one gets its static row,
// whatever its mask. With hash_keys `buckets` is not read: they are hashes of the keys' decimal
// digits, and put out where static rows were read. Without own_gradient the receipt takes no
// deposit.
REGISTER_OP("SokEmbed>AdaptiveMaskGather")
    .Input("table: resource")
    .Input("static_rows: resource")
    .Input("keys: int64")
    .Input("buckets: int64")
    .Input("mask: int32")
    .Input("anchor: float")
    .Input("counts: num_counts * int64")  // one: how many keys of the batch each stands for
    .Output("embeddings: dtype")
    .Output("receipt: variant")
    .Output("own: bool")
    .Output("hashed_buckets: int64")
    .Attr("dtype: {float, bfloat16} = DT_FLOAT")
    .Attr("dim: int >= 1")
    .Attr("make_rows: bool")
    .Attr("copy_slots: bool = true")
    .Attr("hash_keys: bool = false")
    .Attr("own_gradient: bool = true")
    .Attr("number: int = 0")  // DepositOrder's call
    .Attr("num_counts: int >= 0 = 0")
    .Attr("reports: bool = false")  // an error is in the receipt
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      int64_t dim;
      TF_RETURN_IF_ERROR(c->GetAttr("dim", &dim));
      bool hash_keys;
      TF_RETURN_IF_ERROR(c->GetAttr("hash_keys", &hash_keys));
      ShapeHandle keys, out;
      TF_RETURN_IF_ERROR(c->Merge(c->input(2), c->input(4), &keys));
      if (!hash_keys) TF_RETURN_IF_ERROR(c->Merge(keys, c->input(3), &keys));
      TF_RETURN_IF_ERROR(c->Concatenate(keys, c->Vector(dim), &out));
      c->set_output(0, out);
      c->set_output(1, c->Scalar());
      c->set_output(2, keys);
      c->set_output(3, hash_keys ? keys : c->Vector(0));
      return absl::OkStatus();
    });

namespace {

StaticRows RowsOf(const tf::Tensor& matrix) {
  return {matrix.flat<float>().data(), matrix.dim_size(0), matrix.dim_size(1)};
}

class AdaptiveMaskGatherOp : public LookupKernel {
 public:
  explicit AdaptiveMaskGatherOp(tf::OpKernelConstruction* ctx) : LookupKernel(ctx, 2, 31) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("make_rows", &make_rows_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("copy_slots", &copy_slots_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("hash_keys", &hash_keys_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("own_gradient", &own_gradient_));
  }

 protected:
  absl::Status Read(tf::OpKernelContext* ctx, const tf::Tensor& keys, tf::Tensor* embeddings,
                    Receipt* receipt) const override {
    Outputs outputs{embeddings, nullptr, nullptr};
    const tf::TensorShape hashed = hash_keys_ ? keys.shape() : tf::TensorShape({0});
    TF_RETURN_IF_ERROR(ctx->allocate_output(2, keys.shape(), &outputs.own));
    TF_RETURN_IF_ERROR(ctx->allocate_output(3, hashed, &outputs.hashed));
    std::shared_ptr<OpenTable> resource;
    absl::Status status = GetTable(ctx, &resource);
    if (status.ok()) {
      status = embeddings->dtype() == tf::DT_FLOAT
                   ? Run<float>(ctx, *resource, outputs, receipt)
                   : Run<BFloat16>(ctx, *resource, outputs, receipt);
      if (status.ok()) return status;
      status = absl::Status(status.code(),
                            absl::StrCat("table '", resource->name(), "': ", status.message()));
    }
    outputs.own->flat<bool>().setConstant(false);
    outputs.hashed->flat<int64_t>().setZero();
    return status;
  }

 private:
  struct Outputs {
    tf::Tensor *embeddings, *own, *hashed;
  };

  absl::Status CheckInputs(tf::OpKernelContext* ctx, const Table& table) const {
    const tf::Tensor &keys = ctx->input(2), &buckets = ctx->input(3), &mask = ctx->input(4);
    if (table.dim() != dim_) {
      return absl::InvalidArgumentError("it has dim " + std::to_string(table.dim()) +
                                        ", the lookup expected " + std::to_string(dim_));
    }
    if ((!hash_keys_ && keys.shape() != buckets.shape()) || keys.shape() != mask.shape()) {
      return absl::InvalidArgumentError(
          "expected keys, buckets and a mask of one shape, got shapes " +
          keys.shape().DebugString() + ", " + buckets.shape().DebugString() + " and " +
          mask.shape().DebugString());
    }
    return absl::OkStatus();
  }

  absl::Status CheckStatic(const tf::Var& variable) const {
    if (!variable.is_initialized) {
      return absl::FailedPreconditionError("expected initialized static rows");
    }
    const tf::Tensor& rows = *const_cast<tf::Var&>(variable).tensor();
    if (rows.dtype() == tf::DT_FLOAT && rows.dims() == 2 && rows.dim_size(1) == dim_) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        "expected static rows of float32 and shape [buckets, " + std::to_string(dim_) + "], got " +
        tf::DataTypeString(rows.dtype()) + " of shape " + rows.shape().DebugString());
  }

  // Copies the slots of the static rows, one lock at a time, since optimizers take them in another
  // order.
  static absl::Status CopySlots(const SlotSources& sources, MaskGather* gather) {
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
  absl::Status Gather(const OpenTable& resource, tf::Var& variable, const MaskedLookup& lookup,
                      T* embeddings, const ParallelFor& pool) const {
    MaskGather gather(resource.table().get(), lookup);
    {
      // Writers wait until the last row has been read.
      tf::tf_shared_lock lock(*variable.mu());
      TF_RETURN_IF_ERROR(CheckStatic(variable));
      const StaticRows rows = RowsOf(*variable.tensor());
      TF_RETURN_IF_ERROR(ToAbsl(gather.Read(rows, embeddings, pool)));
      if (make_rows_) TF_RETURN_IF_ERROR(ToAbsl(gather.Admit(rows)));
    }
    if (gather.admitted() == 0) return absl::OkStatus();
    const auto sources = copy_slots_ ? resource.slot_sources() : nullptr;
    if (sources != nullptr) TF_RETURN_IF_ERROR(CopySlots(*sources, &gather));
    return ToAbsl(gather.MakeRows(pool));
  }

  // Returns true if the lookup makes no row for a key that asks for its own and has none, so that
  // only its static row is trained, and this was not reported before.
  bool LeavesUncounted(const OpenTable& resource, const MaskedLookup& lookup) const {
    if (make_rows_ || !own_gradient_ || *resource.reported_uncounted()) return false;
    for (size_t i = 0; i < lookup.n; ++i) {
      if (lookup.mask[i] == 1 && !lookup.own[i]) return true;
    }
    return false;
  }

  static void LogUncounted(std::atomic<bool>* told, const std::string& table_name) {
    if (told->exchange(true)) return;
    LOG(WARNING) << "table '" << table_name
                 << "': expected training=True in calls whose gradients are applied. Received: a "
                    "call without, with ids of mask 1 that have no own row. They are not counted "
                    "for one, and get none. Pass training=True";
  }

  // Makes the receipt that takes the gradients of the whole batch, of which own rows get theirs.
  static Receipt::Deposit DepositInto(const std::shared_ptr<Table>& table, const tf::Tensor& keys,
                                      const tf::Tensor& own, DepositOrder order) {
    return
        [table, keys, own, order](int64_t number, std::shared_ptr<const void> hold,
                                  const float* gradients, const BFloat16* gradients_bf16,
                                  const AnchorGradient& anchor, const ParallelFor& parallel_for) {
          LookupKeys deposited =
              KeysOfOwnRows(static_cast<const Key*>(keys.data()), own.flat<bool>().data(),
                            static_cast<size_t>(keys.NumElements()));
          deposited.order = order;
          deposited.order.gradient = number;
          table->Deposit(std::move(deposited), std::move(hold), gradients, gradients_bf16, anchor,
                         parallel_for);
          return Status();
        };
  }

  template <typename T>
  absl::Status Run(tf::OpKernelContext* ctx, const OpenTable& resource, const Outputs& outputs,
                   Receipt* receipt) const {
    TF_RETURN_IF_ERROR(CheckInputs(ctx, *resource.table()));
    TF_RETURN_IF_ERROR(ExpectScalar(ctx->input(1), "static_rows"));
    const tf::Tensor &keys = ctx->input(2), &buckets = ctx->input(3), &mask = ctx->input(4);
    const DepositOrder order = {number_, resource.table()->NextLookup()};
    tf::core::RefCountPtr<tf::Var> variable;
    TF_RETURN_IF_ERROR(tf::LookupResource(ctx, tf::HandleFromInput(ctx, 1), &variable));
    MaskedLookup lookup;
    lookup.keys = static_cast<const Key*>(keys.data());
    lookup.mask = mask.flat<int32_t>().data();
    TF_RETURN_IF_ERROR(CountsOf(ctx, 6, keys, &lookup.counts));
    lookup.given = hash_keys_ ? nullptr : buckets.flat<int64_t>().data();
    lookup.hashed = outputs.hashed->flat<int64_t>().data();
    lookup.own = outputs.own->flat<bool>().data();
    lookup.n = static_cast<size_t>(keys.NumElements());
    lookup.stored = resource.stored();
    TF_RETURN_IF_ERROR(Gather(resource, *variable, lookup,
                              static_cast<T*>(outputs.embeddings->data()), IntraOpPool(ctx)));
    Receipt made{resource.name(), lookup.n, dim_, nullptr};
    if (own_gradient_) made.deposit = DepositInto(resource.table(), keys, *outputs.own, order);
    if (LeavesUncounted(resource, lookup)) {
      made.deposit = [deposit = std::move(made.deposit), told = resource.reported_uncounted(),
                      name = resource.name()](auto&&... arguments) {
        LogUncounted(told.get(), name);
        return deposit(std::forward<decltype(arguments)>(arguments)...);
      };
    }
    *receipt = std::move(made);
    return absl::OkStatus();
  }

  bool make_rows_, copy_slots_, hash_keys_, own_gradient_;
};

SOK_REGISTER_CPU_KERNEL("AdaptiveMaskGather", AdaptiveMaskGatherOp);

}  // namespace

}  // namespace sok
