// SokEmbed>Deposit keeps gradients for a commit. Its receipt says where: in a table whose keys were
// looked up, or in the tables of a lookup on a GPU that pooled, or that served workers.
#include <string>

#include "core/base/bfloat16.h"
#include "core/tables/tickets.h"
#include "kernels/gpu_copies.h"
#include "kernels/pooled_on_gpu.h"
#include "kernels/receipt.h"
#include "kernels/register_kernel.h"
#include "kernels/served_on_gpu.h"
#include "kernels/table_resource.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace sok {

namespace tf = tensorflow;

// The op is not stateful, and has no resource among its inputs, on purpose: inside of a tf.function
// it then runs if, and only if, its output is used, the gradient of the layer's anchor. A gradient
// with respect to other variables leaves no deposit. Deposits of one graph have different numbers:
// TensorFlow would merge equal ops, and half the step would be lost. Gradients of vectors that were
// pooled are a variant.
REGISTER_OP("SokEmbed>Deposit")
    .Input("receipt: variant")
    .Input("gradients: dtype")
    .Output("anchor_gradient: float")
    .Attr("dtype: {float, bfloat16, variant}")
    .Attr("number: int = 0")
    .Attr("marks: bool = false")    // the anchor is a vector of kAnchorSize
    .Attr("measures: bool = true")  // true if the norm may be read
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      bool marks;
      TF_RETURN_IF_ERROR(c->GetAttr("marks", &marks));
      c->set_output(0, marks ? c->Vector(kAnchorSize) : c->Scalar());
      return absl::OkStatus();
    });

namespace {

// Deposits the gradients of keys in their table.
absl::Status DepositKeys(tf::OpKernelContext* ctx, const Receipt& receipt, int64_t number,
                         const AnchorGradient& anchor) {
  tf::Tensor gradients = ctx->input(1);
  if (receipt.on_gpu && !RunsOnGpu(ctx)) return RefuseOtherDevice(receipt.table_name);
  if (static_cast<size_t>(gradients.NumElements()) != receipt.n * receipt.dim) {
    return absl::InvalidArgumentError("table '" + receipt.table_name + "': expected gradients of " +
                                      std::to_string(receipt.n) + " keys x " +
                                      std::to_string(receipt.dim) + ", got shape " +
                                      gradients.shape().DebugString());
  }
  if (RunsOnGpu(ctx) && !receipt.on_gpu) {  // the lookup has read rows in the host's memory
    TF_RETURN_IF_ERROR(CopyFromGpu(ctx, ctx->input(1), &gradients));
  }
  const bool is_float = gradients.dtype() == tf::DT_FLOAT;
  const Status status = receipt.deposit(
      number, Hold(gradients), is_float ? static_cast<const float*>(gradients.data()) : nullptr,
      is_float ? nullptr : static_cast<const BFloat16*>(gradients.data()), anchor,
      IntraOpPool(ctx));
  return ToAbsl(status, receipt.table_name);
}

}  // namespace

class DepositOp : public tf::OpKernel {
 public:
  explicit DepositOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("number", &number_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("marks", &marks_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("measures", &needs_norm_));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    OP_REQUIRES_OK(ctx, ExpectScalar(ctx->input(0), "receipt"));
    tf::Tensor* anchor_gradient = nullptr;
    const tf::TensorShape shape = marks_ ? tf::TensorShape({kAnchorSize}) : tf::TensorShape();
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &anchor_gradient));
    auto gradient = anchor_gradient->flat<float>();
    gradient.setZero();
    OP_REQUIRES_OK(ctx, Deposit(ctx, {marks_ ? gradient.data() : nullptr, needs_norm_}));
  }

 private:
  absl::Status Deposit(tf::OpKernelContext* ctx, const AnchorGradient& anchor) const {
    const tf::Variant& receipt = ctx->input(0).scalar<tf::Variant>()();
    const tf::DataType dtype = ctx->input(1).dtype();
    const auto* const of_keys = receipt.get<Receipt>();
    if (of_keys != nullptr && of_keys->deposit && dtype != tf::DT_VARIANT) {
      return DepositKeys(ctx, *of_keys, number_, anchor);
    }
    const auto* const pooled = receipt.get<PooledReceipt>();
    if (pooled != nullptr && pooled->call != nullptr && dtype == tf::DT_VARIANT) {
      return DepositPooled(ctx, *pooled->call, number_, anchor);
    }
    const auto* const served = receipt.get<ServedReceipt>();
    if (served != nullptr && served->call != nullptr && dtype == tf::DT_FLOAT) {
      return DepositServed(ctx, *served->call, number_, anchor);
    }
    return absl::InvalidArgumentError(
        "expected the receipt of a lookup of this process, got another variant");
  }

  int64_t number_;
  bool marks_, needs_norm_;
};

SOK_REGISTER_KERNEL("Deposit", DepositOp);
// Variants are in the host's memory.
[[maybe_unused]] static const bool gpu_deposit =
    RegisterGpuKernel("SokEmbed>Deposit", "DepositOp", NewKernel<Guarded<DepositOp>>,
                      {"receipt", "anchor_gradient"}, {tf::DT_FLOAT, tf::DT_BFLOAT16});

}  // namespace sok
