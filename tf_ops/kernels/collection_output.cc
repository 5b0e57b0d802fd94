// SokEmbed>CollectionOutput takes the vectors of one output of a pooling lookup, without a copy if
// they are in the memory of the kernel's device. Since each output has an op of its own, a feature
// whose vectors are not used has no gradient; a single op with many outputs would receive zeros for
// it.
#include <string>
#include <utility>

#include "kernels/collection_resource.h"
#include "kernels/gpu_copies.h"
#include "kernels/pooled_on_gpu.h"
#include "kernels/register_kernel.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace sok {

namespace tf = tensorflow;

// `asked` is the request of a pooling on the host, or the receipt of a lookup on a GPU. The
// gradient reads it, as an input so that TensorFlow does not fold the op if the gradient is
// constant. Graphs of release 0.2.0 have none, and give their gradients the vectors instead.
REGISTER_OP("SokEmbed>CollectionOutput")
    .Input("vectors: variant")
    .Input("asked: num_asked * variant")
    .Output("output: dtype")
    .Attr("num_asked: int >= 0 = 0")
    .Attr("dtype: {float, bfloat16}")
    .Attr("index: int >= 0")
    .Attr("width: int >= 1")
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      int64_t width;
      TF_RETURN_IF_ERROR(c->GetAttr("width", &width));
      c->set_output(0, c->Matrix(c->UnknownDim(), width));
      return absl::OkStatus();
    });

REGISTER_OP("SokEmbed>CollectionOutputGradient")
    .Input("gradient: dtype")
    .Input("asked: variant")
    .Output("gradients: variant")
    .Attr("dtype: {float, bfloat16}")
    .Attr("index: int >= 0")
    .SetShapeFn(tf::shape_inference::ScalarShape);

class CollectionOutputOp : public tf::OpKernel {
 public:
  explicit CollectionOutputOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("index", &index_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dtype", &dtype_));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    const VectorsVariant* vectors = nullptr;
    OP_REQUIRES_OK(ctx, GetVariant(ctx, 0, "vectors", &vectors));
    const auto outputs = static_cast<int64_t>(vectors->outputs.size());
    OP_REQUIRES(
        ctx, index_ < outputs,
        absl::InvalidArgumentError("expected vectors of more than " + std::to_string(index_) +
                                   " outputs, got " + std::to_string(outputs)));
    const tf::Tensor& output = vectors->outputs[static_cast<size_t>(index_)];
    OP_REQUIRES(ctx, output.dtype() == dtype_,
                absl::InvalidArgumentError("expected vectors of " + tf::DataTypeString(dtype_) +
                                           ", got " + tf::DataTypeString(output.dtype())));
    OP_REQUIRES(ctx, RunsOnGpu(ctx) || !vectors->on_gpu,
                absl::InvalidArgumentError(
                    "expected the vectors of a lookup on the device that looked up, got an output "
                    "on another one"));
    if (RunsOnGpu(ctx) == vectors->on_gpu) {
      ctx->set_output(0, output);
      return;
    }
    tf::Tensor* copy = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, output.shape(), &copy));
    OP_REQUIRES_OK(ctx, CopyToGpu(ctx, output, copy));
  }

 private:
  int64_t index_;
  tf::DataType dtype_;
};

SOK_REGISTER_KERNEL("CollectionOutput", CollectionOutputOp);
SOK_REGISTER_GPU_KERNEL("CollectionOutput", CollectionOutputOp, "vectors", "asked");

// Puts the gradient into the memory where the lookup ran.
class CollectionOutputGradientOp : public tf::OpKernel {
 public:
  explicit CollectionOutputGradientOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("index", &index_));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    size_t outputs = 0;
    VectorsVariant gradients;
    OP_REQUIRES_OK(ctx, ExpectScalar(ctx->input(1), "asked"));
    const tf::Variant& variant = ctx->input(1).scalar<tf::Variant>()();
    const auto* const vectors = variant.get<VectorsVariant>();
    if (vectors != nullptr) {
      outputs = vectors->outputs.size();
    } else if (variant.get<PooledReceipt>() != nullptr) {
      std::shared_ptr<const PooledCall> call;
      OP_REQUIRES_OK(ctx, GetCall(ctx, &call));
      OP_REQUIRES(ctx, RunsOnGpu(ctx) || !call->on_gpu, RefuseOtherDevice(call->trained.name));
      outputs = call->outputs.size();
      gradients.on_gpu = call->on_gpu;
    } else {
      const AskedVariant* asked = nullptr;
      OP_REQUIRES_OK(ctx, GetVariant(ctx, 1, "asked", &asked));
      if (asked->request != nullptr) outputs = asked->request->plan().features.size();
    }
    OP_REQUIRES(
        ctx, index_ < static_cast<int64_t>(outputs),
        absl::InvalidArgumentError("expected the number of one of " + std::to_string(outputs) +
                                   " outputs, got " + std::to_string(index_)));
    tf::Tensor gradient = ctx->input(0);
    if (RunsOnGpu(ctx) && !gradients.on_gpu) {
      OP_REQUIRES_OK(ctx, CopyFromGpu(ctx, ctx->input(0), &gradient));
    }
    gradients.outputs.resize(outputs, tf::Tensor(tf::DT_INVALID));
    gradients.outputs[static_cast<size_t>(index_)] = std::move(gradient);
    OP_REQUIRES_OK(ctx, PutVariant(ctx, 0, std::move(gradients)));
  }

 private:
  int64_t index_;
};

SOK_REGISTER_KERNEL("CollectionOutputGradient", CollectionOutputGradientOp);
SOK_REGISTER_GPU_KERNEL("CollectionOutputGradient", CollectionOutputGradientOp, "asked",
                        "gradients");

}  // namespace sok
