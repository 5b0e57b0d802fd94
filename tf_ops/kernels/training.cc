// SokEmbed>Deposit keeps gradients; SokEmbed>Commit applies them once.
#include <string>
#include <vector>

#include "core/bfloat16.h"
#include "kernels/receipt.h"
#include "kernels/table_resource.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace sok {

namespace tf = tensorflow;

// Not stateful, and without a resource among its inputs, on purpose: inside of a tf.function it
// then runs if, and only if, somebody uses its output, the gradient of the layer's anchor. A
// gradient that is taken for other variables leaves no deposit behind.
REGISTER_OP("SokEmbed>Deposit")
    .Input("receipt: variant")
    .Input("gradients: dtype")
    .Output("anchor_gradient: float")
    .Attr("dtype: {float, bfloat16}")
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      c->set_output(0, c->Scalar());
      return absl::OkStatus();
    });

class DepositOp : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    OP_REQUIRES_OK(ctx, ExpectScalar(ctx->input(0), "receipt"));
    const Receipt* receipt = ctx->input(0).scalar<tf::Variant>()().get<Receipt>();
    OP_REQUIRES(ctx, receipt != nullptr && receipt->table != nullptr,
                absl::InvalidArgumentError("expected the receipt of a SokEmbed>Lookup of this "
                                           "process, got another variant"));
    const tf::Tensor& gradients = ctx->input(1);
    const size_t expected = receipt->keys.n * receipt->table->dim();
    OP_REQUIRES(
        ctx, static_cast<size_t>(gradients.NumElements()) == expected,
        absl::InvalidArgumentError("table '" + receipt->table_name + "': expected gradients of " +
                                   std::to_string(receipt->keys.n) + " keys x " +
                                   std::to_string(receipt->table->dim()) + ", got shape " +
                                   gradients.shape().DebugString()));
    const bool is_float = gradients.dtype() == tf::DT_FLOAT;
    receipt->table->Deposit(receipt->keys, Hold(gradients),
                            is_float ? static_cast<const float*>(gradients.data()) : nullptr,
                            is_float ? nullptr : static_cast<const BFloat16*>(gradients.data()));
    tf::Tensor* zero = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, {}, &zero));
    zero->scalar<float>()() = 0.0f;
  }
};

REGISTER_KERNEL_BUILDER(Name("SokEmbed>Deposit").Device(tf::DEVICE_CPU), DepositOp);

REGISTER_OP("SokEmbed>Commit")
    .Input("table: resource")
    .Input("anchor: float")
    .Input("hypers: double")
    .Input("step: int64")
    .Input("scale: float")
    .Input("apply: bool")
    .Output("committed_anchor: float")
    .Attr("rule: string")
    .Attr("hyper_names: list(string) >= 0")
    .Attr("optimizer: int >= 0 = 0")
    .SetIsStateful()
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      tf::shape_inference::ShapeHandle unused;
      std::vector<std::string> names;
      TF_RETURN_IF_ERROR(c->GetAttr("hyper_names", &names));
      TF_RETURN_IF_ERROR(
          c->Merge(c->input(2), c->Vector(static_cast<int64_t>(names.size())), &unused));
      for (int i = 3; i < 6; ++i) TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 0, &unused));
      c->set_output(0, c->input(1));
      return absl::OkStatus();
    });

class CommitOp : public tf::OpKernel {
 public:
  explicit CommitOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("rule", &rule_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("hyper_names", &hyper_names_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("optimizer", &optimizer_));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    OP_REQUIRES_OK(ctx, ExpectScalar(ctx->input(3), "step"));
    OP_REQUIRES_OK(ctx, ExpectScalar(ctx->input(4), "scale"));
    OP_REQUIRES_OK(ctx, ExpectScalar(ctx->input(5), "apply"));
    tf::core::RefCountPtr<TableResource> resource;
    OP_REQUIRES_OK(ctx, GetTable(ctx, &resource));
    const tf::Tensor& hypers = ctx->input(2);
    OP_REQUIRES(ctx, hypers.NumElements() == static_cast<int64_t>(hyper_names_.size()),
                absl::InvalidArgumentError("expected " + std::to_string(hyper_names_.size()) +
                                           " hyperparameters, one a name, got " +
                                           std::to_string(hypers.NumElements())));
    CommitOptions options;
    options.rule = rule_;
    for (size_t i = 0; i < hyper_names_.size(); ++i) {
      options.hypers.push_back({hyper_names_[i], hypers.flat<double>()(i)});
    }
    options.step = ctx->input(3).scalar<int64_t>()();
    options.scale = ctx->input(4).scalar<float>()();
    options.apply = ctx->input(5).scalar<bool>()();
    options.optimizer = optimizer_;
    auto outcome = resource->table()->Commit(options, IntraOpPool(ctx));
    OP_REQUIRES_OK(ctx, ToAbsl(outcome.status(), resource->name()));
    // A zero, whatever the optimizer has made of the anchor: Ftrl without an initial accumulator
    // makes 0 / 0 of it.
    tf::Tensor* anchor = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, ctx->input(1).shape(), &anchor));
    anchor->flat<float>().setZero();
    if (outcome.value().restarted) {
      LOG(INFO) << "table '" << resource->name() << "': another optimizer takes over, rule '"
                << rule_ << "' after '" << outcome.value().previous
                << "'; the slots of its rows start anew";
    }
  }

 private:
  std::string rule_;
  std::vector<std::string> hyper_names_;
  int64_t optimizer_;
};

REGISTER_KERNEL_BUILDER(Name("SokEmbed>Commit").Device(tf::DEVICE_CPU), CommitOp);

}  // namespace sok
