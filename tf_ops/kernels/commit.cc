// SokEmbed>Commit applies the gradients that wait for tables, once. SokEmbed>DropDeposits forgets
// them.
#include <algorithm>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "core/tables/tickets.h"
#include "kernels/host_variant.h"
#include "kernels/outputs.h"
#include "kernels/register_kernel.h"
#include "kernels/trained.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace sok {

namespace tf = tensorflow;
using tf::shape_inference::InferenceContext;
using tf::shape_inference::ShapeHandle;

namespace {

// Finds the slots of static rows. A variable that waits for a restore is made without a value.
absl::Status FindSlots(tf::OpKernelContext* ctx, const tf::OpInputList& handles,
                       std::shared_ptr<const SlotSources>* slots) {
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
  *slots = std::make_shared<const SlotSources>(std::move(sources));
  return absl::OkStatus();
}

constexpr char kOneValue[] = "one value a rule, a name and a table";

// The slots of static rows. They may be on a GPU, where TensorFlow runs every op that takes their
// handles, while the handle of the table is on the CPU. So one op puts them into this token, and
// another binds them.
struct SlotsToken {
  std::shared_ptr<const SlotSources> slots;

  std::string TypeName() const { return "sok_embed::SlotsToken"; }
  void Encode(tf::VariantTensorData*) const {}
  bool Decode(const tf::VariantTensorData&) { return false; }
  std::string DebugString() const { return "slots of static rows"; }
};
[[maybe_unused]] const bool slots_tokens = RegisterHostVariant<SlotsToken>();

}  // namespace

REGISTER_OP("SokEmbed>SlotsToken")
    .Input("slot_sources: num_slot_sources * resource")
    .Output("token: variant")
    .Attr("num_slot_sources: int >= 1")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::ScalarShape);

absl::Status PutSlotsToken(tf::OpKernelContext* ctx) {
  tf::OpInputList handles;
  TF_RETURN_IF_ERROR(ctx->input_list("slot_sources", &handles));
  SlotsToken found;
  TF_RETURN_IF_ERROR(FindSlots(ctx, handles, &found.slots));
  tf::Tensor* token = nullptr;
  TF_RETURN_IF_ERROR(ctx->allocate_output(0, {}, &token));
  token->scalar<tf::Variant>()() = std::move(found);
  return absl::OkStatus();
}
SOK_REGISTER_KERNEL("SlotsToken", FunctionKernel<PutSlotsToken>);

// Binds slots to a table as a commit does, for tables whose next lookup may come before their next
// commit.
REGISTER_OP("SokEmbed>BindSlots")
    .Input("table: resource")
    .Input("token: variant")
    .Output("bound: float")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::ScalarShape);

absl::Status RunBindSlots(tf::OpKernelContext* ctx, OpenTable& resource) {
  TF_RETURN_IF_ERROR(ExpectScalar(ctx->input(1), "token"));
  const auto* const token = ctx->input(1).scalar<tf::Variant>()().get<SlotsToken>();
  if (token == nullptr || token->slots == nullptr) {
    return absl::InvalidArgumentError("expected a token of slots of this process, got " +
                                      ctx->input(1).SummarizeValue(1));
  }
  resource.set_slot_sources(token->slots);
  tf::Tensor* bound = nullptr;
  TF_RETURN_IF_ERROR(ctx->allocate_output(0, {}, &bound));
  bound->scalar<float>()() = 0.0f;
  return absl::OkStatus();
}
SOK_REGISTER_KERNEL("BindSlots", FunctionKernel<OnTable<RunBindSlots>>);

REGISTER_OP("SokEmbed>DropDeposits")
    .SOK_TRAINED.Output("dropped: int64")
    .SetShapeFn(tf::shape_inference::ScalarShape);

absl::Status DropDeposits(tf::OpKernelContext* ctx) {
  Trained trained;
  TF_RETURN_IF_ERROR(GetTrained(ctx, &trained));
  return PutScalar(ctx, static_cast<int64_t>(trained.drop_deposits()));
}
SOK_REGISTER_KERNEL("DropDeposits", FunctionKernel<DropDeposits>);

// Each table is trained by one of several rules: table_rules has the number of its rule, -1 if it
// is not trained. hyper_counts has the number of hyperparameters of each rule; their names and
// values stand in the order of the rules.
REGISTER_OP("SokEmbed>Commit")
    .SOK_TRAINED.Input("anchor: float")
    .Input("hypers: num_hypers * double")
    .Input("steps: num_rules * int64")
    .Input("scale: float")
    .Input("redeemed: num_redeemed * float")
    .Input("slot_sources: num_slot_sources * resource")
    .Output("committed_anchor: float")
    .Output("keys: num_lists * int64")
    .Attr("num_hypers: int >= 0")
    .Attr("num_rules: int >= 1")
    .Attr("num_redeemed: int >= 0")  // 0 or 1; 0: all gradients that wait are applied
    .Attr("num_slot_sources: int >= 0")
    .Attr("table_rules: list(int)")
    .Attr("rules: list(string)")
    .Attr("hyper_names: list(string)")
    .Attr("hyper_counts: list(int)")
    .Attr("optimizers: list(int)")
    .Attr("first_steps: list(int)")
    .Attr("clip_values: list(float)")
    .Attr("plain: bool")
    .Attr("clipped_to: float")
    // The tables whose changed keys are listed, and the number of all their lists: an adaptive
    // table has two, for own rows and for static rows.
    .Attr("listed: list(int) = []")
    .Attr("num_lists: int >= 0 = 0")
    .SetShapeFn([](InferenceContext* c) {
      std::vector<ShapeHandle> anchor;
      TF_RETURN_IF_ERROR(c->input("anchor", &anchor));
      c->set_output(0, anchor[0]);
      for (int i = 1; i < c->num_outputs(); ++i) c->set_output(i, c->UnknownShapeOfRank(1));
      return absl::OkStatus();
    });

class CommitOp : public tf::OpKernel {
 public:
  explicit CommitOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    std::vector<std::string> rules, names;
    std::vector<int64_t> counts, optimizers, first_steps;
    std::vector<float> clip_values;
    int64_t num_hypers, num_rules;
    float clipped_to;
    bool plain;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_hypers", &num_hypers));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_rules", &num_rules));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("table_rules", &table_rules_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("rules", &rules));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("hyper_names", &names));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("hyper_counts", &counts));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("optimizers", &optimizers));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("first_steps", &first_steps));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("clip_values", &clip_values));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("plain", &plain));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("clipped_to", &clipped_to));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("listed", &listed_));
    for (int64_t table : listed_) {
      OP_REQUIRES(ctx, table >= 0 && static_cast<size_t>(table) < table_rules_.size(),
                  absl::InvalidArgumentError("expected the number of a table, got " +
                                             std::to_string(table)));
    }
    const auto n = static_cast<size_t>(num_rules);
    int64_t all = 0;
    for (int64_t count : counts) all += count;
    OP_REQUIRES(ctx,
                rules.size() == n && counts.size() == n && optimizers.size() == n &&
                    first_steps.size() == n && clip_values.size() == n && all == num_hypers &&
                    names.size() == static_cast<size_t>(num_hypers),
                UnfitAttributes(ctx->def(), kOneValue));
    for (int64_t rule : table_rules_) {
      OP_REQUIRES(
          ctx, rule >= -1 && rule < num_rules,
          absl::InvalidArgumentError("expected the number of a rule, got " + std::to_string(rule)));
    }
    auto name = names.begin();
    for (size_t rule = 0; rule < n; ++rule) {
      CommitOptions options;
      options.rule = rules[rule];
      for (int64_t i = 0; i < counts[rule]; ++i) options.hypers.push_back({*name++, 0.0});
      options.optimizer = optimizers[rule];
      options.first_step = first_steps[rule];
      options.clip_value = clip_values[rule];
      options.plain = plain;
      options.clipped_to = clipped_to;
      of_rules_.push_back(std::move(options));
    }
  }

  void Compute(tf::OpKernelContext* ctx) override {
    std::vector<CommitOptions> of_rules;
    OP_REQUIRES_OK(ctx, ReadRules(ctx, &of_rules));
    Trained trained;
    OP_REQUIRES_OK(ctx, GetTrained(ctx, &trained));
    OP_REQUIRES(ctx, table_rules_.size() == trained.names.size(),
                UnfitAttributes(def(), kOneValue));
    tf::OpInputList slot_sources;
    OP_REQUIRES_OK(ctx, ctx->input_list("slot_sources", &slot_sources));
    if (slot_sources.size() > 0) {
      OP_REQUIRES(ctx, trained.keeps_slot_sources != nullptr,
                  absl::InvalidArgumentError("expected slot sources of one table alone, got those "
                                             "of an adaptive table or a collection"));
      std::shared_ptr<const SlotSources> slots;
      OP_REQUIRES_OK(ctx, FindSlots(ctx, slot_sources, &slots));
      trained.keeps_slot_sources->set_slot_sources(std::move(slots));
    }
    std::vector<const CommitOptions*> of_tables;
    for (int64_t rule : table_rules_) of_tables.push_back(rule < 0 ? nullptr : &of_rules[rule]);
    std::deque<CommitOptions> that_list;  // a deque, whose elements do not move
    for (int64_t table : listed_) {
      if (of_tables[table] == nullptr) continue;
      that_list.push_back(*of_tables[table]);
      that_list.back().lists_keys = true;
      of_tables[table] = &that_list.back();
    }
    const auto outcomes = trained.commit(of_rules[0], of_tables, IntraOpPool(ctx));
    OP_REQUIRES_OK(ctx, ToAbsl(outcomes.status(), trained.name));
    // The new value of the anchor is zero, even if the optimizer would make NaN of it, as Ftrl does
    // without an initial accumulator.
    const tf::Tensor* anchor = nullptr;
    tf::Tensor* committed = nullptr;
    OP_REQUIRES_OK(ctx, ctx->input("anchor", &anchor));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, anchor->shape(), &committed));
    committed->flat<float>().setZero();
    OP_REQUIRES_OK(ctx, PutKeys(ctx, outcomes.value()));
    for (size_t table = 0; table < outcomes.value().size(); ++table) {
      const CommitOutcome& outcome = outcomes.value()[table];
      LogLeftOut(outcome, trained.names[table]);
      if (!outcome.restarted) continue;
      LOG(INFO) << "table '" << trained.names[table] << "': another optimizer takes over, rule '"
                << of_tables[table]->rule << "' after '" << outcome.previous
                << "'; the slots of its rows start anew";
    }
  }

 private:
  // Reads the options of each rule from attributes and inputs.
  absl::Status ReadRules(tf::OpKernelContext* ctx, std::vector<CommitOptions>* of_rules) const {
    tf::OpInputList hypers, steps, redeemed;
    const tf::Tensor* scale = nullptr;
    TF_RETURN_IF_ERROR(ctx->input_list("hypers", &hypers));
    TF_RETURN_IF_ERROR(ctx->input_list("steps", &steps));
    TF_RETURN_IF_ERROR(ctx->input_list("redeemed", &redeemed));
    TF_RETURN_IF_ERROR(ctx->input("scale", &scale));
    TF_RETURN_IF_ERROR(ExpectScalar(*scale, "scale"));
    for (const tf::Tensor& gradient : redeemed) {
      if (gradient.NumElements() == kAnchorSize) continue;
      return absl::InvalidArgumentError("expected the gradient of an anchor, a vector of " +
                                        std::to_string(kAnchorSize) + ", got shape " +
                                        gradient.shape().DebugString());
    }
    *of_rules = of_rules_;
    int next = 0;
    for (size_t rule = 0; rule < of_rules->size(); ++rule) {
      CommitOptions& options = (*of_rules)[rule];
      for (Hyper& hyper : options.hypers) {
        TF_RETURN_IF_ERROR(ExpectScalar(hypers[next], hyper.name.c_str()));
        hyper.value = hypers[next++].scalar<double>()();
      }
      const tf::Tensor& step = steps[static_cast<int>(rule)];
      TF_RETURN_IF_ERROR(ExpectScalar(step, "step"));
      options.step = step.scalar<int64_t>()();
      options.scale = scale->scalar<float>()();
      options.redeemed = redeemed.size() > 0 ? redeemed[0].flat<float>().data() : nullptr;
    }
    return absl::OkStatus();
  }

  // Sets the lists of keys of the tables in listed_.
  absl::Status PutKeys(tf::OpKernelContext* ctx, const std::vector<CommitOutcome>& outcomes) const {
    std::vector<const std::vector<Key>*> made;
    for (int64_t table : listed_) {
      for (const auto& keys : outcomes[static_cast<size_t>(table)].keys) made.push_back(&keys);
    }
    tf::OpOutputList lists;
    TF_RETURN_IF_ERROR(ctx->output_list("keys", &lists));
    if (static_cast<size_t>(lists.size()) != made.size()) {
      return absl::InvalidArgumentError("expected num_lists of " + std::to_string(made.size()) +
                                        ", got " + std::to_string(lists.size()));
    }
    for (int i = 0; i < lists.size(); ++i) {
      const std::vector<Key>& keys = *made[static_cast<size_t>(i)];
      tf::Tensor* list = nullptr;
      TF_RETURN_IF_ERROR(lists.allocate(i, {static_cast<int64_t>(keys.size())}, &list));
      std::transform(keys.begin(), keys.end(), list->flat<int64_t>().data(),
                     [](Key key) { return static_cast<int64_t>(key); });
    }
    return absl::OkStatus();
  }

  std::vector<int64_t> table_rules_, listed_;
  std::vector<CommitOptions> of_rules_;
};

SOK_REGISTER_KERNEL("Commit", CommitOp);

}  // namespace sok
