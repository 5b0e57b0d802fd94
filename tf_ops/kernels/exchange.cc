// SokEmbed>UniqueAndPartition, SokEmbed>Expand and its gradient are the local half of an exchange.
#include <string>
#include <vector>

#include "core/base/bfloat16.h"
#include "core/partition/partition.h"
#include "kernels/register_kernel.h"
#include "kernels/table_resource.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace sok {

namespace tf = tensorflow;
using tf::shape_inference::InferenceContext;
using tf::shape_inference::ShapeHandle;

namespace {

absl::Status CheckInverse(const tf::Tensor& inverse, int64_t rows) {
  if (inverse.dims() != 1) {
    return absl::InvalidArgumentError("expected inverse of one dimension, got shape " +
                                      inverse.shape().DebugString());
  }
  const auto flat = inverse.flat<int32_t>();
  for (int64_t i = 0; i < flat.size(); ++i) {
    if (flat(i) < 0 || flat(i) >= rows) {
      return absl::InvalidArgumentError("expected inverse in [0, " + std::to_string(rows) +
                                        "), got " + std::to_string(flat(i)) + " at position " +
                                        std::to_string(i));
    }
  }
  return absl::OkStatus();
}

absl::Status ExpectMatrix(const char* what, const tf::Tensor& tensor) {
  if (tensor.dims() == 2) return absl::OkStatus();
  return absl::InvalidArgumentError(std::string("expected ") + what +
                                    " of two dimensions, got shape " +
                                    tensor.shape().DebugString());
}

}  // namespace

REGISTER_OP("SokEmbed>UniqueAndPartition")
    .Input("keys: Tkeys")
    .Output("unique_keys: Tkeys")
    .Output("splits: int32")
    .Output("inverse: int32")
    .Attr("Tkeys: {int32, int64, uint64}")
    .Attr("owners: int >= 1")
    .Attr("key_limit: int >= 0 = 0")
    .Attr("buckets: int >= 0 = 0")
    .SetShapeFn([](InferenceContext* c) {
      int64_t owners;
      TF_RETURN_IF_ERROR(c->GetAttr("owners", &owners));
      ShapeHandle keys;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &keys));
      c->set_output(0, c->Vector(c->UnknownDim()));
      c->set_output(1, c->Vector(owners));
      c->set_output(2, keys);
      return absl::OkStatus();
    });

class UniqueAndPartitionOp : public tf::OpKernel {
 public:
  explicit UniqueAndPartitionOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("owners", &owners_));
    OP_REQUIRES(ctx, owners_ <= static_cast<int>(kMostOwners),
                absl::InvalidArgumentError("expected at most " + std::to_string(kMostOwners) +
                                           " owners, got " + std::to_string(owners_) +
                                           "; give the number of workers"));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("key_limit", &key_limit_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("buckets", &buckets_));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    const tf::Tensor& keys = ctx->input(0);
    OP_REQUIRES(ctx, keys.dims() == 1 && keys.NumElements() <= int64_t{INT32_MAX},
                absl::InvalidArgumentError(
                    "expected keys of one dimension and fewer than 2^31, got shape " +
                    keys.shape().DebugString()));
    const LookupKeys wide = KeysOf(keys);
    tf::Tensor *unique, *splits, *inverse;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(2, keys.shape(), &inverse));
    const Partition partition = UniqueAndPartition(
        wide.keys, wide.n, static_cast<uint32_t>(owners_), inverse->flat<int32_t>().data(),
        IntraOpPool(ctx), static_cast<uint64_t>(buckets_));
    // Keys out of range are refused here, where they came from, and not by the worker that they
    // would go to.
    OP_REQUIRES_OK(ctx, ToAbsl(CheckKeysBelow(partition.keys.data(), partition.keys.size(),
                                              static_cast<uint64_t>(key_limit_))));
    const auto distinct = static_cast<int64_t>(partition.keys.size());
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, {distinct}, &unique));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, {owners_}, &splits));
    if (keys.dtype() == tf::DT_INT32) {
      std::copy(partition.keys.begin(), partition.keys.end(), unique->flat<int32_t>().data());
    } else {
      std::copy(partition.keys.begin(), partition.keys.end(), static_cast<Key*>(unique->data()));
    }
    std::copy(partition.splits.begin(), partition.splits.end(), splits->flat<int32_t>().data());
  }

 private:
  int owners_;
  int64_t key_limit_;
  int64_t buckets_;
};
SOK_REGISTER_KERNEL("UniqueAndPartition", UniqueAndPartitionOp);

REGISTER_OP("SokEmbed>Expand")
    .Input("rows: dtype")
    .Input("inverse: int32")
    .Output("expanded: dtype")
    .Attr("dtype: {float, bfloat16}")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle rows, inverse;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &rows));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &inverse));
      c->set_output(0, c->Matrix(c->Dim(inverse, 0), c->Dim(rows, 1)));
      return absl::OkStatus();
    });

class ExpandOp : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    const tf::Tensor &rows = ctx->input(0), &inverse = ctx->input(1);
    OP_REQUIRES_OK(ctx, ExpectMatrix("rows", rows));
    OP_REQUIRES_OK(ctx, CheckInverse(inverse, rows.dim_size(0)));
    const int64_t n = inverse.NumElements(), dim = rows.dim_size(1);
    tf::Tensor* expanded = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, {n, dim}, &expanded));
    const int32_t* places = inverse.flat<int32_t>().data();
    if (rows.dtype() == tf::DT_FLOAT) {
      Expand(static_cast<const float*>(rows.data()), places, n, static_cast<int>(dim),
             static_cast<float*>(expanded->data()), IntraOpPool(ctx));
    } else {
      Expand(static_cast<const BFloat16*>(rows.data()), places, n, static_cast<int>(dim),
             static_cast<BFloat16*>(expanded->data()), IntraOpPool(ctx));
    }
  }
};
SOK_REGISTER_KERNEL("Expand", ExpandOp);

REGISTER_OP("SokEmbed>ExpandGradient")
    .Input("gradients: dtype")
    .Input("inverse: int32")
    .Input("distinct: int32")
    .Output("sums: float")
    .Attr("dtype: {float, bfloat16}")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle gradients;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &gradients));
      tf::shape_inference::DimensionHandle distinct;
      TF_RETURN_IF_ERROR(c->MakeDimForScalarInput(2, &distinct));
      c->set_output(0, c->Matrix(distinct, c->Dim(gradients, 1)));
      return absl::OkStatus();
    });

class ExpandGradientOp : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    const tf::Tensor &gradients = ctx->input(0), &inverse = ctx->input(1);
    OP_REQUIRES_OK(ctx, ExpectScalar(ctx->input(2), "distinct"));
    const int64_t distinct = ctx->input(2).scalar<int32_t>()();
    OP_REQUIRES_OK(ctx, ExpectMatrix("gradients", gradients));
    OP_REQUIRES(ctx, gradients.dim_size(0) == inverse.NumElements() && distinct >= 0,
                absl::InvalidArgumentError(
                    "expected one gradient a position of inverse, got shapes " +
                    gradients.shape().DebugString() + " and " + inverse.shape().DebugString()));
    OP_REQUIRES_OK(ctx, CheckInverse(inverse, distinct));
    const int64_t n = inverse.NumElements(), dim = gradients.dim_size(1);
    tf::Tensor* sums = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, {distinct, dim}, &sums));
    const int32_t* places = inverse.flat<int32_t>().data();
    auto* out = static_cast<float*>(sums->data());
    if (gradients.dtype() == tf::DT_FLOAT) {
      ExpandGradient(static_cast<const float*>(gradients.data()), places, n, distinct,
                     static_cast<int>(dim), out, IntraOpPool(ctx));
    } else {
      ExpandGradient(static_cast<const BFloat16*>(gradients.data()), places, n, distinct,
                     static_cast<int>(dim), out, IntraOpPool(ctx));
    }
  }
};
SOK_REGISTER_KERNEL("ExpandGradient", ExpandGradientOp);

}  // namespace sok
