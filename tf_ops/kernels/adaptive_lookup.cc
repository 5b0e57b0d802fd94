// SokEmbed>AdaptiveLookup and SokEmbed>AdaptiveBuckets.
#include <array>
#include <memory>
#include <string>
#include <utility>

#include "core/base/adaptive_bucket.h"
#include "kernels/adaptive_resource.h"
#include "kernels/lookup_kernel.h"
#include "kernels/register_kernel.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace sok {

namespace tf = tensorflow;

// Without counts each key counts once, and without a mask it is -1 everywhere. The anchor is an
// input only so that the embeddings have a gradient; its value is not read.
REGISTER_OP("SokEmbed>AdaptiveLookup")
    .Input("table: resource")
    .Input("keys: int64")
    .Input("counts: int64")
    .Input("mask: int32")
    .Input("anchor: float")
    .Output("embeddings: dtype")
    .Output("receipt: variant")
    .Attr("dtype: {float, bfloat16} = DT_FLOAT")
    .Attr("dim: int >= 1")
    .Attr("training: bool")
    .Attr("has_counts: bool")
    .Attr("has_mask: bool")
    .Attr("number: int = 0")        // DepositOrder's call
    .Attr("reports: bool = false")  // an error is in the receipt
    .SetIsStateful()
    .SetShapeFn(LookupShapes);

class AdaptiveLookupOp : public LookupKernel {
 public:
  explicit AdaptiveLookupOp(tf::OpKernelConstruction* ctx) : LookupKernel(ctx, 1, 31) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("training", &training_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("has_counts", &has_counts_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("has_mask", &has_mask_));
  }

 protected:
  absl::Status Read(tf::OpKernelContext* ctx, const tf::Tensor& keys, tf::Tensor* embeddings,
                    Receipt* receipt) const override {
    std::shared_ptr<OpenAdaptiveTable> resource;
    TF_RETURN_IF_ERROR(GetAdaptive(ctx, &resource));
    const std::shared_ptr<AdaptiveTable>& table = resource->table();
    const std::string& name = resource->name();
    const tf::Tensor &counts = ctx->input(2), &mask = ctx->input(3);
    if (table->dim() != dim_) {
      return absl::InvalidArgumentError("table '" + name + "' has dim " +
                                        std::to_string(table->dim()) + ", the lookup expected " +
                                        std::to_string(dim_));
    }
    if ((has_counts_ && counts.shape() != keys.shape()) ||
        (has_mask_ && mask.shape() != keys.shape())) {
      return absl::InvalidArgumentError(
          "table '" + name + "': expected counts and a mask of the shape of the keys, " +
          keys.shape().DebugString() + ", got shapes " + counts.shape().DebugString() + " and " +
          mask.shape().DebugString());
    }
    AdaptiveKeys batch;
    batch.hold = std::make_shared<const std::array<tf::Tensor, 3>>(
        std::array<tf::Tensor, 3>{keys, counts, mask});
    batch.keys = static_cast<const Key*>(keys.data());
    if (has_counts_) batch.counts = counts.flat<int64_t>().data();
    if (has_mask_) batch.mask = mask.flat<int32_t>().data();
    batch.n = static_cast<size_t>(keys.NumElements());
    if (!training_) batch.counted = std::make_shared<std::atomic<bool>>(false);
    batch.order = {number_, table->NextLookup()};
    const Status status =
        embeddings->dtype() == tf::DT_FLOAT
            ? table->Lookup(batch, training_, static_cast<float*>(embeddings->data()),
                            IntraOpPool(ctx))
            : table->Lookup(batch, training_, static_cast<BFloat16*>(embeddings->data()),
                            IntraOpPool(ctx));
    TF_RETURN_IF_ERROR(ToAbsl(status, name));
    *receipt = {name, batch.n, dim_,
                [table, batch](int64_t number, std::shared_ptr<const void> hold,
                               const float* gradients, const BFloat16* gradients_bf16,
                               const AnchorGradient& anchor, const ParallelFor& parallel_for) {
                  AdaptiveKeys deposited = batch;
                  deposited.order.gradient = number;
                  return table->Deposit(std::move(deposited), std::move(hold), gradients,
                                        gradients_bf16, anchor, parallel_for);
                }};
    return absl::OkStatus();
  }

 private:
  bool training_, has_counts_, has_mask_;
};

SOK_REGISTER_KERNEL("AdaptiveLookup", AdaptiveLookupOp);

REGISTER_OP("SokEmbed>AdaptiveBuckets")
    .Input("keys: int64")
    .Output("buckets: int64")
    .Attr("num_buckets: int >= 1")
    .SetShapeFn(tf::shape_inference::UnchangedShape);

class AdaptiveBucketsOp : public tf::OpKernel {
 public:
  explicit AdaptiveBucketsOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_buckets", &buckets_));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    const tf::Tensor& keys = ctx->input(0);
    tf::Tensor* buckets = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, keys.shape(), &buckets));
    const auto* key = static_cast<const Key*>(keys.data());
    int64_t* out = buckets->flat<int64_t>().data();
    IntraOpPool(ctx)(keys.NumElements(), 3, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        out[i] = static_cast<int64_t>(AdaptiveBucket(key[i], static_cast<uint64_t>(buckets_)));
      }
    });
  }

 private:
  int64_t buckets_;
};

SOK_REGISTER_KERNEL("AdaptiveBuckets", AdaptiveBucketsOp);

}  // namespace sok
