// SokEmbed>AdaptiveStaticGradient, or …OnGpu, returns the part of a lookup's gradients that belongs
// to the static variable.
#include <algorithm>
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

// Indices are distinct: optimizers that square a gradient must square the sum. The second op has
// its tensors on the device of its kernel, a GPU or the host: see adaptive_gather_on_gpu.cc.
#define SOK_STATIC_GRADIENT(name)                          \
  REGISTER_OP(name)                                        \
      .Input("own: bool")                                  \
      .Input("buckets: int64")                             \
      .Input("gradients: dtype")                           \
      .Output("values: float")                             \
      .Output("indices: int64")                            \
      .Attr("dtype: {float, bfloat16}")                    \
      .Attr("dim: int >= 1")                               \
      .SetShapeFn([](InferenceContext* c) {                \
        int64_t dim;                                       \
        TF_RETURN_IF_ERROR(c->GetAttr("dim", &dim));       \
        c->set_output(0, c->Matrix(c->UnknownDim(), dim)); \
        c->set_output(1, c->Vector(c->UnknownDim()));      \
        return absl::OkStatus();                           \
      })

SOK_STATIC_GRADIENT("SokEmbed>AdaptiveStaticGradient");
SOK_STATIC_GRADIENT("SokEmbed>AdaptiveStaticGradientOnGpu")
    .Input("token: variant")
    .Attr("static_rows: int >= 1");

namespace {

class AdaptiveStaticGradientOp : public tf::OpKernel {
 public:
  explicit AdaptiveStaticGradientOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dim", &dim_));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    const tf::Tensor &own = ctx->input(0), &buckets = ctx->input(1), &gradients = ctx->input(2);
    const int64_t n = own.NumElements();
    OP_REQUIRES(ctx, buckets.NumElements() == n && gradients.NumElements() == n * dim_,
                absl::InvalidArgumentError(
                    "expected a bucket and a gradient of " + std::to_string(dim_) +
                    " for each of " + std::to_string(n) + " positions, got shapes " +
                    buckets.shape().DebugString() + " and " + gradients.shape().DebugString()));
    if (gradients.dtype() == tf::DT_FLOAT) {
      Run(ctx, static_cast<const float*>(gradients.data()));
    } else {
      Run(ctx, static_cast<const BFloat16*>(gradients.data()));
    }
  }

 private:
  template <typename T>
  void Run(tf::OpKernelContext* ctx, const T* gradients) {
    const auto own = ctx->input(0).flat<bool>();
    const int64_t* bucket = ctx->input(1).flat<int64_t>().data();
    std::vector<Key> statics;
    std::vector<T> theirs;  // (statics, dim)
    for (int64_t i = 0; i < own.size(); ++i) {
      if (own(i)) continue;
      statics.push_back(static_cast<Key>(bucket[i]));
      theirs.insert(theirs.end(), gradients + i * dim_, gradients + (i + 1) * dim_);
    }
    std::vector<int32_t> inverse(statics.size());
    const ParallelFor parallel_for = IntraOpPool(ctx);
    const std::vector<Key> distinct =
        UniqueAndPartition(statics.data(), statics.size(), 1, inverse.data(), parallel_for).keys;
    const auto rows = static_cast<int64_t>(distinct.size());
    tf::Tensor *values, *indices;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, {rows, dim_}, &values));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, {rows}, &indices));
    std::copy(distinct.begin(), distinct.end(), indices->flat<int64_t>().data());
    SumByRow(theirs.data(), inverse.data(), statics.size(), distinct.size(), dim_,
             values->flat<float>().data(), parallel_for);
  }

  int dim_;
};

SOK_REGISTER_KERNEL("AdaptiveStaticGradient", AdaptiveStaticGradientOp);
SOK_REGISTER_CPU_KERNEL("AdaptiveStaticGradientOnGpu", AdaptiveStaticGradientOp);

}  // namespace

}  // namespace sok
