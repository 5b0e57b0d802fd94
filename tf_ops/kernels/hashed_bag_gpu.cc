// The kernels of hashed bags for GPUs. Weight, ids, offsets, vectors and gradients are in the
// memory of the GPU; they launch on TensorFlow's stream, and wait only for the size of a sparse
// gradient.
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "core/gpu/gpu_bags.h"
#include "kernels/hashed_bag_kernel.h"
#include "kernels/register_kernel.h"
#include "xla/stream_executor/stream.h"
#include "xla/stream_executor/stream_executor.h"

namespace sok {

namespace tf = tensorflow;

namespace {

gpu::DeviceAddress AddressOf(const tf::Tensor& tensor) {
  return reinterpret_cast<gpu::DeviceAddress>(tensor.data());
}

gpu::GpuFloats FloatsOf(const tf::Tensor& tensor) {
  switch (tensor.dtype()) {
    case tf::DT_BFLOAT16:
      return {AddressOf(tensor), gpu::Element::kBFloat16};
    case tf::DT_HALF:
      return {AddressOf(tensor), gpu::Element::kFloat16};
    case tf::DT_DOUBLE:
      return {AddressOf(tensor), gpu::Element::kFloat64};
    default:
      return {AddressOf(tensor), gpu::Element::kFloat32};
  }
}

// The base of these kernels.
class GpuHashedBagKernel : public HashedBagKernel {
 public:
  using HashedBagKernel::HashedBagKernel;

 protected:
  // One run of a kernel.
  struct Call {
    explicit Call(tf::OpKernelContext* of) : ctx(of) {}

    // Returns a function that allocates memory by TensorFlow. After the call TensorFlow may give
    // the memory to later work of the stream.
    gpu::TakeMemory Take() {
      return [this](uint64_t bytes) -> Result<gpu::DeviceAddress> {
        tf::Tensor tensor;
        const absl::Status status = ctx->allocate_temp(
            tf::DT_INT8, tf::TensorShape({static_cast<int64_t>(bytes)}), &tensor);
        if (!status.ok()) {
          return Status(Code::kResourceExhausted, std::string(status.message()));
        }
        held.push_back(tensor);
        return AddressOf(tensor);
      };
    }

    tf::OpKernelContext* const ctx;
    gpu::GpuBags* bags = nullptr;
    gpu::Stream stream = nullptr;
    std::optional<PositionMap> positions;
    std::optional<gpu::GpuBatch> batch;
    std::vector<tf::Tensor> held;
  };

  static absl::Status FindGpu(Call* call) {
    auto* const stream = call->ctx->op_device_context()->stream();
    // Pluggable devices do not report their number.
    const int ordinal = std::max(stream->parent()->device_ordinal(), 0);
    const auto found = gpu::GpuBags::Of(ordinal);
    if (!found.ok()) {
      return ToAbsl(found.status().Within(
          "hashed bags whose weight is on a GPU: ",
          " A hashed layer that is made under tf.device(\"CPU:0\") has its weight on the host."));
    }
    call->bags = found.value();
    call->stream = stream->platform_specific_handle().stream;
    if (call->bags->HasStream(call->stream)) return absl::OkStatus();
    return absl::InternalError("expected the stream of " + call->ctx->device()->name() +
                               " to be one of NVIDIA's GPU " + std::to_string(ordinal) +
                               ", got the stream of another GPU. Make the hashed layer under "
                               "tf.device(\"CPU:0\")");
  }

  // Reads the inputs 1 to 3, and finds the GPU.
  absl::Status Begin(int64_t size, Call* call) const {
    tf::OpKernelContext* const ctx = call->ctx;
    const tf::Tensor &ids = ctx->input(1), &offsets = ctx->input(2), &scales = ctx->input(3);
    TF_RETURN_IF_ERROR(MakePositions(size, &call->positions));
    TF_RETURN_IF_ERROR(CheckForm(ids, offsets));
    TF_RETURN_IF_ERROR(CheckScales(scales, ids));
    const int64_t n = ids.NumElements(), starts = offsets.NumElements();
    const bool is_flat = ids.dims() == 1;
    const int64_t bags = is_flat ? starts - (ends_ && starts > 0) : ids.dim_size(0);
    if (is_flat && ends_ && starts == 0) {
      return absl::InvalidArgumentError(
          "expected at least one offset with include_last_offset, got none");
    }
    if (is_flat && bags == 0 && n > 0) {
      return absl::InvalidArgumentError("expected offsets that cover " + std::to_string(n) +
                                        " ids, got none");
    }
    TF_RETURN_IF_ERROR(FindGpu(call));
    call->batch.emplace(gpu::GpuBatch{
        *call->positions, mode_, static_cast<uint64_t>(options_.num_embeddings), padding_,
        AddressOf(ids), ids.dtype() == tf::DT_INT64, static_cast<uint64_t>(n),
        static_cast<uint64_t>(bags), is_flat ? 0 : static_cast<uint64_t>(ids.dim_size(1)),
        is_flat ? AddressOf(offsets) : 0, offsets.dtype() == tf::DT_INT64, ends_,
        scaled_ ? AddressOf(scales) : 0});
    return absl::OkStatus();
  }

  // Reads all inputs of a gradient except the last.
  absl::Status BeginGradient(int64_t size, Call* call) const {
    TF_RETURN_IF_ERROR(Begin(size, call));
    return CheckUpstream(call->ctx->input(0), static_cast<int64_t>(call->batch->bags));
  }

  absl::Status BeginWeightGradient(Call* call) const {
    int64_t size;
    TF_RETURN_IF_ERROR(ReadSize(call->ctx, &size));
    TF_RETURN_IF_ERROR(BeginGradient(size, call));
    const tf::Tensor& winners = call->ctx->input(4);
    if (mode_ != BagMode::kMax ||
        winners.NumElements() == static_cast<int64_t>(call->batch->bags) * options_.dim) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError("expected the winners of the forward pass, got shape " +
                                      winners.shape().DebugString());
  }
};

class GpuHashedBagOp : public GpuHashedBagKernel {
 public:
  using GpuHashedBagKernel::GpuHashedBagKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    WithWeight(ctx, [&](const tf::Tensor& weight) { Forward(ctx, weight); });
  }

 private:
  void Forward(tf::OpKernelContext* ctx, const tf::Tensor& weight) const {
    OP_REQUIRES(ctx, weight.dims() == 1,
                absl::InvalidArgumentError("expected a weight of one dimension, got shape " +
                                           weight.shape().DebugString()));
    Call call(ctx);
    OP_REQUIRES_OK(ctx, Begin(weight.NumElements(), &call));
    tf::TensorShape shape;
    OP_REQUIRES_OK(ctx, tf::TensorShape::BuildTensorShape(
                            {static_cast<int64_t>(call.batch->bags), options_.dim}, &shape));
    tf::Tensor *out, *winners;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &out));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(
                            1, mode_ == BagMode::kMax ? shape : tf::TensorShape({0, 0}), &winners));
    OP_REQUIRES_OK(ctx, ToAbsl(call.bags->Forward(*call.batch, FloatsOf(weight), FloatsOf(*out),
                                                  AddressOf(*winners), call.stream)));
  }
};

class GpuDenseHashedBagGradientOp : public GpuHashedBagKernel {
 public:
  using GpuHashedBagKernel::GpuHashedBagKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    Call call(ctx);
    OP_REQUIRES_OK(ctx, BeginWeightGradient(&call));
    tf::Tensor* gradient;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, {call.positions->size()}, &gradient));
    OP_REQUIRES_OK(ctx, ToAbsl(call.bags->DenseGradient(
                            *call.batch, FloatsOf(ctx->input(0)), AddressOf(ctx->input(4)),
                            FloatsOf(*gradient), call.Take(), call.stream)));
  }
};

class GpuSparseHashedBagGradientOp : public GpuHashedBagKernel {
 public:
  using GpuHashedBagKernel::GpuHashedBagKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    Call call(ctx);
    OP_REQUIRES_OK(ctx, BeginWeightGradient(&call));
    const auto make = [&](uint64_t n, gpu::DeviceAddress* positions,
                          gpu::GpuFloats* sums) -> Status {
      tf::Tensor *positions_out = nullptr, *sums_out = nullptr;
      absl::Status status = ctx->allocate_output(0, {static_cast<int64_t>(n)}, &positions_out);
      if (status.ok()) status = ctx->allocate_output(1, {static_cast<int64_t>(n)}, &sums_out);
      if (!status.ok()) return Status(Code::kResourceExhausted, std::string(status.message()));
      *positions = AddressOf(*positions_out);
      *sums = FloatsOf(*sums_out);
      return Status();
    };
    OP_REQUIRES_OK(ctx, ToAbsl(call.bags->SparseGradient(*call.batch, FloatsOf(ctx->input(0)),
                                                         AddressOf(ctx->input(4)), make,
                                                         call.Take(), call.stream)));
  }
};

class GpuHashedBagScaleGradientOp : public GpuHashedBagKernel {
 public:
  using GpuHashedBagKernel::GpuHashedBagKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    const tf::Tensor& weight = ctx->input(4);
    OP_REQUIRES(ctx, weight.dims() == 1 && mode_ == BagMode::kSum,
                absl::InvalidArgumentError(
                    "expected the mode sum and a weight of one dimension, got shape " +
                    weight.shape().DebugString()));
    OP_REQUIRES(ctx, scaled_, absl::InvalidArgumentError("expected per_sample_weights, got none"));
    Call call(ctx);
    OP_REQUIRES_OK(ctx, BeginGradient(weight.NumElements(), &call));
    tf::Tensor* factors;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, ctx->input(3).shape(), &factors));
    OP_REQUIRES_OK(
        ctx, ToAbsl(call.bags->ScaleGradient(*call.batch, FloatsOf(weight), FloatsOf(ctx->input(0)),
                                             AddressOf(*factors), call.stream)));
  }
};

}  // namespace

SOK_REGISTER_GPU_KERNEL("HashedBag", GpuHashedBagOp);
SOK_REGISTER_GPU_KERNEL("ResourceHashedBag", GpuHashedBagOp, "weight");
SOK_REGISTER_GPU_KERNEL("HashedBagGradient", GpuDenseHashedBagGradientOp, "size");
SOK_REGISTER_GPU_KERNEL("HashedBagSparseGradient", GpuSparseHashedBagGradientOp, "size");
SOK_REGISTER_GPU_KERNEL("HashedBagScaleGradient", GpuHashedBagScaleGradientOp);

}  // namespace sok
