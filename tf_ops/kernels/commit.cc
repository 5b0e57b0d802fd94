// SokEmbed>Commit applies the gradients that wait in a table, once.
#include <string>
#include <utility>
#include <vector>

#include "core/tables/tickets.h"
#include "kernels/commit_kernel.h"
#include "kernels/register_kernel.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/resource_var.h"

namespace sok {

namespace tf = tensorflow;
using tf::shape_inference::InferenceContext;
using tf::shape_inference::ShapeHandle;

absl::Status CommitShape(InferenceContext* c) {
  ShapeHandle unused;
  std::vector<std::string> names;
  TF_RETURN_IF_ERROR(c->GetAttr("hyper_names", &names));
  TF_RETURN_IF_ERROR(c->Merge(c->input(2), c->Vector(static_cast<int64_t>(names.size())), &unused));
  for (int i = 3; i < 5; ++i) TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 0, &unused));
  c->set_output(0, c->input(1));
  return absl::OkStatus();
}

CommitKernel::CommitKernel(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
  OP_REQUIRES_OK(ctx, ctx->GetAttr("rule", &rule_));
  OP_REQUIRES_OK(ctx, ctx->GetAttr("hyper_names", &hyper_names_));
  OP_REQUIRES_OK(ctx, ctx->GetAttr("optimizer", &optimizer_));
  OP_REQUIRES_OK(ctx, ctx->GetAttr("redeems", &redeems_));
  OP_REQUIRES_OK(ctx, ctx->GetAttr("plain", &plain_));
  OP_REQUIRES_OK(ctx, ctx->GetAttr("clipped_to", &clipped_to_));
  OP_REQUIRES_OK(ctx, ctx->GetAttr("first_step", &first_step_));
  OP_REQUIRES_OK(ctx, ctx->GetAttr("clip_value", &clip_value_));
}

void CommitKernel::Compute(tf::OpKernelContext* ctx) {
  OP_REQUIRES_OK(ctx, ExpectScalar(ctx->input(3), "step"));
  OP_REQUIRES_OK(ctx, ExpectScalar(ctx->input(4), "scale"));
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
  options.first_step = first_step_;
  options.clip_value = clip_value_;
  options.optimizer = optimizer_;
  options.plain = plain_;
  options.clipped_to = clipped_to_;
  if (redeems_) {
    const tf::Tensor& redeemed = ctx->input(5);
    OP_REQUIRES(ctx, redeemed.NumElements() == kAnchorSize,
                absl::InvalidArgumentError("expected the gradient of an anchor, a vector of " +
                                           std::to_string(kAnchorSize) + ", got shape " +
                                           redeemed.shape().DebugString()));
    options.redeemed = redeemed.flat<float>().data();
  }
  CommitOutcome outcome;
  std::string name;
  OP_REQUIRES_OK(ctx, Run(ctx, options, &outcome, &name));
  // The new value is zero, whatever the optimizer has made of the anchor: Ftrl without an initial
  // accumulator makes 0 / 0 of it.
  tf::Tensor* anchor = nullptr;
  OP_REQUIRES_OK(ctx, ctx->allocate_output(0, ctx->input(1).shape(), &anchor));
  anchor->flat<float>().setZero();
  LogLeftOut(outcome, name);
  if (outcome.restarted) {
    LOG(INFO) << "table '" << name << "': another optimizer takes over, rule '" << rule_
              << "' after '" << outcome.previous << "'; the slots of its rows start anew";
  }
}

namespace {

// Tells the table where the slots of its static rows are. Variables that are to be restored yet
// are made, without a value.
absl::Status BindSlots(tf::OpKernelContext* ctx, const tf::OpInputList& handles,
                       OpenTable* resource) {
  SlotSources sources;
  for (int i = 0; i < handles.size(); ++i) {
    TF_RETURN_IF_ERROR(ExpectScalar(handles[i], "a slot source"));
    tf::core::RefCountPtr<tf::Var> variable;
    TF_RETURN_IF_ERROR(tf::LookupOrCreateResource<tf::Var>(
        ctx, handles[i].scalar<tf::ResourceHandle>()(), &variable, [](tf::Var** made) {
          *made = new tf::Var(tf::DT_FLOAT);
          return absl::OkStatus();
        }));
    sources.push_back(std::move(variable));
  }
  resource->set_slot_sources(std::make_shared<const SlotSources>(std::move(sources)));
  return absl::OkStatus();
}

}  // namespace

// Binds slots as a commit does on its way, for tables whose next lookup comes before their next
// commit.
REGISTER_OP("SokEmbed>BindSlots")
    .Input("table: resource")
    .Input("slot_sources: num_slot_sources * resource")
    .Output("bound: float")
    .Attr("num_slot_sources: int >= 1")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Scalar());
      return absl::OkStatus();
    });

class BindSlotsOp : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    std::shared_ptr<OpenTable> resource;
    OP_REQUIRES_OK(ctx, GetTable(ctx, &resource));
    tf::OpInputList handles;
    OP_REQUIRES_OK(ctx, ctx->input_list("slot_sources", &handles));
    OP_REQUIRES_OK(ctx, BindSlots(ctx, handles, resource.get()));
    tf::Tensor* bound = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, {}, &bound));
    bound->scalar<float>()() = 0.0f;
  }
};

SOK_REGISTER_KERNEL("BindSlots", BindSlotsOp);

REGISTER_OP("SokEmbed>Commit")
    .Input("table: resource")
    .SOK_COMMIT_SIGNATURE.Input("slot_sources: num_slot_sources * resource")
    .Attr("num_slot_sources: int >= 0 = 0")
    .SetIsStateful()
    .SetShapeFn(CommitShape);

class CommitOp : public CommitKernel {
 public:
  using CommitKernel::CommitKernel;

 protected:
  absl::Status Run(tf::OpKernelContext* ctx, const CommitOptions& options, CommitOutcome* outcome,
                   std::string* name) override {
    std::shared_ptr<OpenTable> resource;
    TF_RETURN_IF_ERROR(GetTable(ctx, &resource));
    *name = resource->name();
    tf::OpInputList handles;
    TF_RETURN_IF_ERROR(ctx->input_list("slot_sources", &handles));
    if (handles.size() > 0) TF_RETURN_IF_ERROR(BindSlots(ctx, handles, resource.get()));
    auto committed = resource->table()->Commit(options, IntraOpPool(ctx));
    if (committed.ok()) *outcome = committed.value();
    return ToAbsl(committed.status(), resource->name());
  }
};

SOK_REGISTER_KERNEL("Commit", CommitOp);

}  // namespace sok
