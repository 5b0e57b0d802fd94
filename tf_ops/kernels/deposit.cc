// SokEmbed>Deposit keeps gradients for a commit. SokEmbed>DepositOnGpu does so for lookups of
// SokEmbed>LookupOnGpu, whose gradients lie where its kernel runs: on a GPU, or the host.
#include <string>

#include "core/base/bfloat16.h"
#include "core/tables/tickets.h"
#include "kernels/gpu_copies.h"
#include "kernels/receipt.h"
#include "kernels/register_kernel.h"
#include "kernels/table_resource.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace sok {

namespace tf = tensorflow;

// The op is not stateful, and has no resource among its inputs, on purpose: inside of a tf.function
// it then runs if, and only if, its output is used, the gradient of the layer's anchor. A gradient
// with respect to other variables leaves no deposit. Deposits of one graph have different numbers:
// TensorFlow would merge equal ops, and half the step would be lost.
#define SOK_DEPOSIT(name)                                                        \
  REGISTER_OP(name)                                                              \
      .Input("receipt: variant")                                                 \
      .Input("gradients: dtype")                                                 \
      .Output("anchor_gradient: float")                                          \
      .Attr("dtype: {float, bfloat16}")                                          \
      .Attr("number: int = 0")                                                   \
      .Attr("marks: bool = false")   /* the anchor is a vector of kAnchorSize */ \
      .Attr("measures: bool = true") /* true if the norm may be read */          \
      .SetShapeFn([](tf::shape_inference::InferenceContext* c) {                 \
        bool marks;                                                              \
        TF_RETURN_IF_ERROR(c->GetAttr("marks", &marks));                         \
        c->set_output(0, marks ? c->Vector(kAnchorSize) : c->Scalar());          \
        return absl::OkStatus();                                                 \
      })

SOK_DEPOSIT("SokEmbed>Deposit");
SOK_DEPOSIT("SokEmbed>DepositOnGpu");

// With kOnGpu the gradients are in the memory of a GPU.
template <bool kOnGpu>
class DepositOp : public tf::OpKernel {
 public:
  explicit DepositOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("number", &number_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("marks", &marks_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("measures", &measures_));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    OP_REQUIRES_OK(ctx, ExpectScalar(ctx->input(0), "receipt"));
    const Receipt* receipt = ctx->input(0).scalar<tf::Variant>()().get<Receipt>();
    OP_REQUIRES(ctx, receipt != nullptr && receipt->deposit,
                absl::InvalidArgumentError("expected the receipt of a lookup of this process, got "
                                           "another variant"));
    OP_REQUIRES(ctx, kOnGpu || !receipt->on_gpu,
                absl::InvalidArgumentError(
                    "table '" + receipt->table_name +
                    "': expected the gradients of a lookup on the device that looked up, got a "
                    "deposit on another one; take gradients under the scope of the same device"));
    tf::Tensor gradients = ctx->input(1);
    const size_t expected = receipt->n * receipt->dim;
    OP_REQUIRES(ctx, static_cast<size_t>(gradients.NumElements()) == expected,
                absl::InvalidArgumentError(
                    "table '" + receipt->table_name + "': expected gradients of " +
                    std::to_string(receipt->n) + " keys x " + std::to_string(receipt->dim) +
                    ", got shape " + gradients.shape().DebugString()));
    if (kOnGpu && !receipt->on_gpu) {  // the lookup has read rows in the host's memory
      tf::Tensor on_host;
      OP_REQUIRES_OK(ctx, CopyFromGpu(ctx, gradients, &on_host));
      gradients = on_host;
    }
    const bool is_float = gradients.dtype() == tf::DT_FLOAT;
    tf::Tensor* anchor_gradient = nullptr;
    const tf::TensorShape shape = marks_ ? tf::TensorShape({kAnchorSize}) : tf::TensorShape();
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &anchor_gradient));
    auto gradient = anchor_gradient->flat<float>();
    gradient.setZero();
    const Status status = receipt->deposit(
        number_, Hold(gradients), is_float ? static_cast<const float*>(gradients.data()) : nullptr,
        is_float ? nullptr : static_cast<const BFloat16*>(gradients.data()),
        {marks_ ? gradient.data() : nullptr, measures_}, IntraOpPool(ctx));
    OP_REQUIRES_OK(ctx, ToAbsl(status, receipt->table_name));
  }

 private:
  int64_t number_;
  bool marks_, measures_;
};

SOK_REGISTER_KERNEL("Deposit", DepositOp<false>);
SOK_REGISTER_CPU_KERNEL("DepositOnGpu", DepositOp<false>);
[[maybe_unused]] static const bool gpu_deposit =
    RegisterGpuKernel("SokEmbed>DepositOnGpu", "DepositOnGpuOp",
                      NewKernel<Guarded<DepositOp<true>>>, {"receipt", "anchor_gradient"});

}  // namespace sok
