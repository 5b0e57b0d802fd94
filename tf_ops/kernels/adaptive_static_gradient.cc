// SokEmbed>AdaptiveStaticGradient returns the part of a lookup's gradients that belongs to the
// static variable.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "core/base/bfloat16.h"
#include "core/gpu/device_rows.h"
#include "core/partition/partition.h"
#include "kernels/gpu_copies.h"
#include "kernels/pooled_on_gpu.h"
#include "kernels/register_kernel.h"
#include "kernels/table_resource.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace sok {

namespace tf = tensorflow;
using tf::shape_inference::InferenceContext;

// Indices are distinct: optimizers that square a gradient must square the sum. After a lookup on a
// GPU there is the token of its table.
REGISTER_OP("SokEmbed>AdaptiveStaticGradient")
    .Input("own: bool")
    .Input("buckets: int64")
    .Input("gradients: dtype")
    .Input("tokens: num_tokens * variant")
    .Output("values: float")
    .Output("indices: int64")
    .Attr("num_tokens: int >= 0 = 0")
    .Attr("dtype: {float, bfloat16}")
    .Attr("dim: int >= 1")
    .Attr("static_rows: int >= 0 = 0")  // with a token
    .SetShapeFn([](InferenceContext* c) {
      int64_t dim;
      TF_RETURN_IF_ERROR(c->GetAttr("dim", &dim));
      c->set_output(0, c->Matrix(c->UnknownDim(), dim));
      c->set_output(1, c->Vector(c->UnknownDim()));
      return absl::OkStatus();
    });

class AdaptiveStaticGradientOp : public tf::OpKernel {
 public:
  explicit AdaptiveStaticGradientOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dim", &dim_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("static_rows", &static_rows_));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    tf::Tensor own = ctx->input(0), buckets = ctx->input(1), gradients = ctx->input(2);
    const int64_t n = own.NumElements();
    OP_REQUIRES(ctx, buckets.NumElements() == n && gradients.NumElements() == n * dim_,
                absl::InvalidArgumentError(
                    "expected a bucket and a gradient of " + std::to_string(dim_) +
                    " for each of " + std::to_string(n) + " positions, got shapes " +
                    buckets.shape().DebugString() + " and " + gradients.shape().DebugString()));
    if (RunsOnGpu(ctx)) {
      if (ctx->num_inputs() > 3) {
        OP_REQUIRES_OK(ctx, OnGpu(ctx));
        return;
      }
      // The lookup has run on the host.
      OP_REQUIRES_OK(ctx, CopyFromGpu(ctx, ctx->input(0), &own));
      OP_REQUIRES_OK(ctx, CopyFromGpu(ctx, ctx->input(1), &buckets));
      OP_REQUIRES_OK(ctx, CopyFromGpu(ctx, ctx->input(2), &gradients));
    }
    if (gradients.dtype() == tf::DT_FLOAT) {
      OP_REQUIRES_OK(ctx, OnHost(ctx, own, buckets, static_cast<const float*>(gradients.data())));
    } else {
      OP_REQUIRES_OK(ctx,
                     OnHost(ctx, own, buckets, static_cast<const BFloat16*>(gradients.data())));
    }
  }

 private:
  template <typename T>
  absl::Status OnHost(tf::OpKernelContext* ctx, const tf::Tensor& own_rows,
                      const tf::Tensor& buckets, const T* gradients) const {
    const auto own = own_rows.flat<bool>();
    const int64_t* bucket = buckets.flat<int64_t>().data();
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
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, {rows, dim_}, &values));
    TF_RETURN_IF_ERROR(ctx->allocate_output(1, {rows}, &indices));
    tf::Tensor sums = *values, numbers = *indices;
    if (RunsOnGpu(ctx)) {
      TF_RETURN_IF_ERROR(AllocatePinned(ctx, tf::DT_FLOAT, values->shape(), &sums));
      TF_RETURN_IF_ERROR(AllocatePinned(ctx, tf::DT_INT64, indices->shape(), &numbers));
    }
    std::copy(distinct.begin(), distinct.end(), numbers.flat<int64_t>().data());
    SumByRow(theirs.data(), inverse.data(), statics.size(), distinct.size(), dim_,
             sums.flat<float>().data(), parallel_for);
    if (!RunsOnGpu(ctx)) return absl::OkStatus();
    TF_RETURN_IF_ERROR(CopyToGpu(ctx, sums, values));
    return CopyToGpu(ctx, numbers, indices);
  }

  absl::Status OnGpu(tf::OpKernelContext* ctx) const {
    const tf::Tensor &own = ctx->input(0), &buckets = ctx->input(1), &gradients = ctx->input(2);
    std::shared_ptr<OpenTable> resource;
    TF_RETURN_IF_ERROR(GetTableOfToken(ctx, 3, &resource));
    void* const stream = StreamOf(ctx);
    const gpu::DeviceRows* const device_rows = resource->table()->device_rows(stream);
    if (device_rows == nullptr) {
      return absl::FailedPreconditionError(
          "table '" + resource->name() + "': expected rows in the memory of " +
          ctx->device()->name() +
          ", on which their gradients are, got rows elsewhere. Train where the model finds the "
          "GPUs, driver and NVRTC that it was made with, or with device=\"cpu\"");
    }
    const auto make = [&](uint64_t rows, gpu::DeviceAddress* indices,
                          gpu::DeviceAddress* sums) -> Status {
      tf::Tensor *values_out = nullptr, *indices_out = nullptr;
      const auto distinct = static_cast<int64_t>(rows);
      absl::Status status = ctx->allocate_output(0, {distinct, dim_}, &values_out);
      if (status.ok()) status = ctx->allocate_output(1, {distinct}, &indices_out);
      if (!status.ok()) return Status(Code::kResourceExhausted, std::string(status.message()));
      *indices = AddressOf(*indices_out);
      *sums = AddressOf(*values_out);
      return Status();
    };
    const auto element =
        gradients.dtype() == tf::DT_FLOAT ? gpu::Element::kFloat32 : gpu::Element::kBFloat16;
    const auto sum = [&](gpu::GpuTable& table) {
      return table.StaticGradient(AddressOf(own), AddressOf(buckets), AddressOf(gradients), element,
                                  static_cast<uint64_t>(own.NumElements()),
                                  static_cast<uint64_t>(static_rows_), make, stream);
    };
    return ToAbsl(device_rows->Compute(sum), resource->name());
  }

  int dim_;
  int64_t static_rows_;
};

SOK_REGISTER_KERNEL("AdaptiveStaticGradient", AdaptiveStaticGradientOp);
SOK_REGISTER_GPU_KERNEL("AdaptiveStaticGradient", AdaptiveStaticGradientOp, "tokens");

}  // namespace sok
