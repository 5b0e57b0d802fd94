// SokEmbed>HashedBag, on a weight that is a tensor, and SokEmbed>ResourceHashedBag, on a variable.
// Their kernels for GPUs are in hashed_bag_gpu.cc.
#include <optional>
#include <string>

#include "core/bags/forward.h"
#include "kernels/hashed_bag_kernel.h"
#include "kernels/register_kernel.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace sok {

namespace tf = tensorflow;
using tf::shape_inference::DimensionHandle;
using tf::shape_inference::InferenceContext;
using tf::shape_inference::ShapeHandle;

namespace {

class HashedBagOp : public HashedBagKernel {
 public:
  using HashedBagKernel::HashedBagKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    WithWeight(ctx, [&](const tf::Tensor& weight) { Forward(ctx, weight); });
  }

 private:
  void Forward(tf::OpKernelContext* ctx, const tf::Tensor& weight) {
    OP_REQUIRES(ctx, weight.dims() == 1,
                absl::InvalidArgumentError("expected a weight of one dimension, got shape " +
                                           weight.shape().DebugString()));
    std::optional<PositionMap> positions;
    InputBags read;
    OP_REQUIRES_OK(ctx, MakePositions(weight.NumElements(), &positions));
    OP_REQUIRES_OK(ctx, ReadBags(ctx, ctx->input(1), ctx->input(2), &read));
    OP_REQUIRES_OK(ctx, CheckScales(ctx->input(3), ctx->input(1)));
    tf::TensorShape shape;
    OP_REQUIRES_OK(ctx, tf::TensorShape::BuildTensorShape({read.bags.bags, options_.dim}, &shape));
    tf::Tensor *out, *winners;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &out));
    const bool max = mode_ == BagMode::kMax;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, max ? shape : tf::TensorShape({0, 0}), &winners));
    WithTypes(weight_type_, out_type_, [&](auto t, auto o) {
      using T = decltype(t);
      using Out = decltype(o);
      const WideFloats<typename SumOf<T>::type> scales(ctx->input(3));
      HashedBagForward(*positions, read.bags, mode_, Elements<const T>(weight),
                       scaled_ ? scales.data() : nullptr, Elements<Out>(*out),
                       max ? winners->flat<int64_t>().data() : nullptr, IntraOpPool(ctx));
    });
  }
};

absl::Status ForwardShape(InferenceContext* c) {
  ShapeHandle ids, offsets;
  TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(1), 1, &ids));
  TF_RETURN_IF_ERROR(c->WithRankAtMost(ids, 2, &ids));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 1, &offsets));
  int64_t dim;
  bool ends;
  std::string mode;
  TF_RETURN_IF_ERROR(c->GetAttr("embedding_dim", &dim));
  TF_RETURN_IF_ERROR(c->GetAttr("include_last_offset", &ends));
  TF_RETURN_IF_ERROR(c->GetAttr("mode", &mode));
  DimensionHandle bags = c->UnknownDim();
  if (c->RankKnown(ids)) {
    bags = c->Rank(ids) == 2 ? c->Dim(ids, 0) : c->Dim(offsets, 0);
    if (c->Rank(ids) == 1 && ends) TF_RETURN_IF_ERROR(c->Subtract(bags, 1, &bags));
  }
  c->set_output(0, c->Matrix(bags, dim));
  c->set_output(1, mode == "max" ? c->Matrix(bags, dim) : c->Matrix(0, 0));
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("SokEmbed>HashedBag")
    .Input("weight: T")
    .SOK_HASHED_BAG_INPUTS.Output("bags: Tout")
    .Output("winners: int64")
    .SOK_HASHED_BAG_ATTRS.Attr("gradient: {'auto', 'dense', 'sparse'}")
    .Attr("wide_shape: bool")
    .SetShapeFn(ForwardShape);
SOK_REGISTER_KERNEL("HashedBag", HashedBagOp);

REGISTER_OP("SokEmbed>ResourceHashedBag")
    .Input("weight: resource")
    .SOK_HASHED_BAG_INPUTS.Output("bags: Tout")
    .Output("winners: int64")
    .SOK_HASHED_BAG_ATTRS.Attr("gradient: {'auto', 'dense', 'sparse'}")
    .Attr("wide_shape: bool")
    .SetShapeFn(ForwardShape);
SOK_REGISTER_CPU_KERNEL("ResourceHashedBag", HashedBagOp);

}  // namespace sok
