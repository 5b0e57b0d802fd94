// The gradients of SokEmbed>HashedBag.
#include <algorithm>
#include <string>
#include <type_traits>
#include <vector>

#include "core/bags/gradient.h"
#include "kernels/hashed_bag_kernel.h"
#include "kernels/host_memory.h"
#include "kernels/outputs.h"
#include "kernels/register_kernel.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace sok {

namespace tf = tensorflow;
using tf::shape_inference::DimensionHandle;
using tf::shape_inference::InferenceContext;

namespace {

// The base of kernels for gradients of the weight. Kernel::Write<T>(ctx, gradient) writes the
// output.
template <typename Kernel>
class HashedBagGradientOp : public HashedBagKernel {
 public:
  using HashedBagKernel::HashedBagKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    int64_t size;
    GradientInputs inputs;
    OP_REQUIRES_OK(ctx, ReadSize(ctx, &size));
    OP_REQUIRES_OK(ctx, ReadGradientInputs(ctx, size, &inputs));
    OP_REQUIRES_OK(ctx, CheckWinners(ctx->input(4), inputs.read.bags));
    WithTypes(weight_type_, out_type_, [&](auto t, auto) {
      using T = decltype(t);
      using Sum = typename SumOf<T>::type;
      const WideFloats<Sum> upstream(ctx->input(0)), scales(ctx->input(3));
      Kernel::template Write<T>(
          ctx, BagGradient<Sum>{*inputs.positions, inputs.read.bags, mode_, upstream.data(),
                                scaled_ ? scales.data() : nullptr, Int64s(ctx->input(4))});
    });
  }
};

class DenseHashedBagGradientOp : public HashedBagGradientOp<DenseHashedBagGradientOp> {
 public:
  using HashedBagGradientOp::HashedBagGradientOp;

  template <typename T, typename Sum>
  static void Write(tf::OpKernelContext* ctx, const BagGradient<Sum>& gradient) {
    const int64_t size = gradient.positions.size();
    tf::Tensor* sums;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, {size}, &sums));
    auto* to = Elements<T>(*sums);
    if constexpr (std::is_same_v<T, Sum>) {
      DenseWeightGradient(gradient, to, IntraOpPool(ctx));
    } else {
      tf::Tensor wide;
      OP_REQUIRES_OK(ctx, AllocateOnHost(ctx, tf::DT_FLOAT, {size}, &wide));
      const auto* from = Elements<float>(wide);
      DenseWeightGradient(gradient, Elements<float>(wide), IntraOpPool(ctx));
      IntraOpPool(ctx)(size, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) to[i] = FromFloat<T>(from[i]);
      });
    }
  }
};

class SparseHashedBagGradientOp : public HashedBagGradientOp<SparseHashedBagGradientOp> {
 public:
  using HashedBagGradientOp::HashedBagGradientOp;

  template <typename T, typename Sum>
  static void Write(tf::OpKernelContext* ctx, const BagGradient<Sum>& gradient) {
    const SparseWeightGradient<Sum> sparse(gradient, IntraOpPool(ctx));
    tf::Tensor *positions, *sums;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, {sparse.size()}, &positions));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, {sparse.size()}, &sums));
    sparse.Write(positions->flat<int64_t>().data(), Elements<T>(*sums), IntraOpPool(ctx));
  }
};

class HashedBagScaleGradientOp : public HashedBagKernel {
 public:
  using HashedBagKernel::HashedBagKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    const tf::Tensor& weight = ctx->input(4);
    GradientInputs inputs;
    OP_REQUIRES(ctx, weight.dims() == 1 && mode_ == BagMode::kSum,
                absl::InvalidArgumentError(
                    "expected the mode sum and a weight of one dimension, got shape " +
                    weight.shape().DebugString()));
    OP_REQUIRES_OK(ctx, ReadGradientInputs(ctx, weight.NumElements(), &inputs));
    tf::Tensor* factors;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, ctx->input(3).shape(), &factors));
    OP_REQUIRES(ctx, scaled_, absl::InvalidArgumentError("expected per_sample_weights, got none"));
    WithTypes(weight_type_, out_type_, [&](auto t, auto o) {
      using T = decltype(t);
      using Out = decltype(o);
      using Sum = typename SumOf<T>::type;
      const WideFloats<Sum> upstream(ctx->input(0));
      std::vector<Sum> wide(factors->NumElements());
      ScaleGradient<T>(
          {*inputs.positions, inputs.read.bags, mode_, upstream.data(), nullptr, nullptr},
          Elements<const T>(weight), wide.data(), IntraOpPool(ctx));
      std::transform(wide.begin(), wide.end(), Elements<Out>(*factors),
                     [](Sum sum) { return Narrow<Out>(sum); });
    });
  }
};

absl::Status SizeShape(InferenceContext* c) {
  DimensionHandle size;
  TF_RETURN_IF_ERROR(c->MakeDimForScalarInput(5, &size));
  c->set_output(0, c->Vector(size));
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("SokEmbed>HashedBagGradient")
    .Input("upstream: Tout")
    .SOK_HASHED_BAG_INPUTS.Input("winners: int64")
    .Input("size: int64")
    .Output("gradient: T")
    .SOK_HASHED_BAG_ATTRS.SetShapeFn(SizeShape);
SOK_REGISTER_KERNEL("HashedBagGradient", DenseHashedBagGradientOp);

REGISTER_OP("SokEmbed>HashedBagSparseGradient")
    .Input("upstream: Tout")
    .SOK_HASHED_BAG_INPUTS.Input("winners: int64")
    .Input("size: int64")
    .Output("positions: int64")
    .Output("gradient: T")
    .SOK_HASHED_BAG_ATTRS.SetShapeFn(UnknownVectors);
SOK_REGISTER_KERNEL("HashedBagSparseGradient", SparseHashedBagGradientOp);

REGISTER_OP("SokEmbed>HashedBagScaleGradient")
    .Input("upstream: Tout")
    .SOK_HASHED_BAG_INPUTS.Input("weight: T")
    .Output("gradient: Tout")
    .SOK_HASHED_BAG_ATTRS.SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->input(3));
      return absl::OkStatus();
    });
SOK_REGISTER_KERNEL("HashedBagScaleGradient", HashedBagScaleGradientOp);

}  // namespace sok
