// SokEmbed>CollectionCommit applies the gradients that wait for the tables of a collection, once.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/tables/tickets.h"
#include "kernels/collection_resource.h"
#include "kernels/register_kernel.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace sok {

namespace tf = tensorflow;
using tf::shape_inference::InferenceContext;

// Tables are trained by one of several rules: table_rules has the number of each table's, -1 of one
// that is not trained. A rule has
// hyper_counts of the names and numbers that stand in a row for all rules.
REGISTER_OP("SokEmbed>CollectionCommit")
    .Input("queue: resource")
    .Input("tables: num_tables * resource")
    .Input("anchor: float")
    .Input("hypers: double")
    .Input("steps: int64")  // (rules)
    .Input("scale: float")
    .Input("redeemed: float")
    .Output("committed_anchor: float")
    .Attr("num_tables: int >= 1")
    .Attr("table_rules: list(int)")
    .Attr("rules: list(string) >= 1")
    .Attr("hyper_names: list(string) >= 0")
    .Attr("hyper_counts: list(int)")
    .Attr("optimizers: list(int)")
    .Attr("clip_values: list(float)")
    .Attr("first_step: int >= 1 = 1")
    .Attr("redeems: bool = false")
    .Attr("plain: bool = true")
    .Attr("clipped_to: float = 0.0")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->input(c->num_inputs() - 5));
      return absl::OkStatus();
    });

class CollectionCommitOp : public tf::OpKernel {
 public:
  explicit CollectionCommitOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    std::vector<std::string> rules, names;
    std::vector<int64_t> counts, optimizers;
    std::vector<float> clip_values;
    int64_t num_tables, first_step;
    float clipped_to;
    bool plain;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_tables", &num_tables));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("table_rules", &table_rules_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("rules", &rules));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("hyper_names", &names));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("hyper_counts", &counts));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("optimizers", &optimizers));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("clip_values", &clip_values));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("first_step", &first_step));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("redeems", &redeems_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("plain", &plain));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("clipped_to", &clipped_to));
    size_t all = 0;
    for (int64_t count : counts) all += static_cast<size_t>(count);
    OP_REQUIRES(ctx,
                counts.size() == rules.size() && optimizers.size() == rules.size() &&
                    clip_values.size() == rules.size() && all == names.size() &&
                    table_rules_.size() == static_cast<size_t>(num_tables),
                absl::InvalidArgumentError("expected one value a rule, a name and a table, got "
                                           "others"));
    for (int64_t rule : table_rules_) {
      OP_REQUIRES(
          ctx, rule >= -1 && rule < static_cast<int64_t>(rules.size()),
          absl::InvalidArgumentError("expected the number of a rule, got " + std::to_string(rule)));
    }
    size_t next = 0;
    for (size_t rule = 0; rule < rules.size(); ++rule) {
      CommitOptions options;
      options.rule = rules[rule];
      for (int64_t i = 0; i < counts[rule]; ++i) options.hypers.push_back({names[next++], 0.0});
      options.first_step = first_step;
      options.clip_value = clip_values[rule];
      options.optimizer = optimizers[rule];
      options.plain = plain;
      options.clipped_to = clipped_to;
      of_rules_.push_back(std::move(options));
    }
    hypers_ = all;
  }

  void Compute(tf::OpKernelContext* ctx) override {
    const int first = ctx->num_inputs() - 5;
    const tf::Tensor &anchor = ctx->input(first), &hypers = ctx->input(first + 1),
                     &steps = ctx->input(first + 2), &redeemed = ctx->input(first + 4);
    OP_REQUIRES_OK(ctx, ExpectScalar(ctx->input(first + 3), "scale"));
    OP_REQUIRES(ctx,
                hypers.NumElements() == static_cast<int64_t>(hypers_) &&
                    steps.NumElements() == static_cast<int64_t>(of_rules_.size()) &&
                    (!redeems_ || redeemed.NumElements() == kAnchorSize),
                absl::InvalidArgumentError(
                    "expected a number of each hyperparameter, a step of each rule and the "
                    "gradient of an anchor, got shapes " +
                    hypers.shape().DebugString() + ", " + steps.shape().DebugString() + ", " +
                    redeemed.shape().DebugString()));
    OpenCollection collection;
    OP_REQUIRES_OK(ctx, GetCollection(ctx, &collection));
    std::vector<CommitOptions> of_rules = of_rules_;
    const double* number = hypers.flat<double>().data();
    for (size_t rule = 0; rule < of_rules.size(); ++rule) {
      CommitOptions& options = of_rules[rule];
      for (Hyper& hyper : options.hypers) hyper.value = *number++;
      options.step = steps.flat<int64_t>()(static_cast<int64_t>(rule));
      options.scale = ctx->input(first + 3).scalar<float>()();
      options.redeemed = redeems_ ? redeemed.flat<float>().data() : nullptr;
    }
    std::vector<CommitOptions> of_tables;
    of_tables.reserve(table_rules_.size());
    for (int64_t rule : table_rules_) {
      // One that is not trained redeems with the others, and has no rule.
      of_tables.push_back(of_rules[static_cast<size_t>(std::max<int64_t>(rule, 0))]);
      if (rule < 0) of_tables.back().rule.clear();
    }
    const auto outcomes = collection.tables->Commit(of_tables, IntraOpPool(ctx));
    OP_REQUIRES_OK(ctx, ToAbsl(outcomes.status()));
    tf::Tensor* committed = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, anchor.shape(), &committed));
    committed->flat<float>().setZero();
    for (size_t table = 0; table < outcomes.value().size(); ++table) {
      const CommitOutcome& outcome = outcomes.value()[table];
      LogLeftOut(outcome, collection.tables->members()[table].name);
      if (!outcome.restarted) continue;
      LOG(INFO) << "table '" << collection.tables->members()[table].name
                << "': another optimizer takes over, rule '" << of_tables[table].rule << "' after '"
                << outcome.previous << "'; the slots of its rows start anew";
    }
  }

 private:
  std::vector<int64_t> table_rules_;
  std::vector<CommitOptions> of_rules_;
  size_t hypers_ = 0;
  bool redeems_;
};

SOK_REGISTER_KERNEL("CollectionCommit", CollectionCommitOp);

}  // namespace sok
