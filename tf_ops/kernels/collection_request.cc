// SokEmbed>CollectionRequest finds the distinct keys of each table over all features that share it,
// and writes the message by which this worker asks the others for rows. A request that was made
// ahead, of the same keys, is taken as it is.
#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status_macros.h"
#include "core/base/thread_pool.h"
#include "core/collection/key_messages.h"
#include "core/collection/requests_ahead.h"
#include "core/collection/row_messages.h"
#include "kernels/collection_resource.h"
#include "kernels/host_variant.h"
#include "kernels/register_kernel.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace sok {

namespace tf = tensorflow;

// The attribute `bags` has the kind of bags of each feature. 0: each key is a bag; 1: a bag is all
// keys at one index of the first dimension; 2: the next row splits in `splits` divide the keys into
// bags.
REGISTER_OP("SokEmbed>CollectionRequest")
    .Input("keys: Tkeys")
    .Input("splits: num_splits * int64")
    .Input("said: num_said * int64")  // for features whose table `says`: a number for each key
    .Output("message: int64")
    .Output("message_splits: int32")
    .Output("asked: variant")
    .Output("gradient_splits: int32")  // floats of each segment of the gradients of the rows
    .Attr("Tkeys: list({int32, int64, uint64}) >= 1")
    .Attr("num_splits: int >= 0")
    .Attr("num_said: int >= 0 = 0")
    .Attr("bags: list(int)")
    .Attr("feature_names: list(string)")
    .Attr("feature_tables: list(int)")
    .Attr("max_lengths: list(int)")  // (features) the most keys of a bag; 0: any number
    .Attr("table_names: list(string)")
    .Attr("dims: list(int)")
    .Attr("salts: list(int)")
    .Attr("key_limits: list(int)")
    .Attr("placements: list(int)")  // (tables) fields of TablePlacement, like the next two
    .Attr("holders: list(int)")
    .Attr("buckets: list(int) = []")  // empty: no table is kByBucket
    .Attr("pools: list(bool)")
    .Attr("combiners: list(int)")     // (features)
    .Attr("counts: list(bool) = []")  // (tables) true if it counts keys; empty: none does
    .Attr("says: list(bool) = []")    // (tables) CollectedTable::says; empty: false for all
    .Attr("trains: bool")
    .Attr("marks_unused: bool = true")  // see CollectionPlan
    .Attr("workers: int >= 1")
    .Attr("rank: int >= 0")
    .Attr("fingerprint: int")
    // Not 0: the request is kept for the step that asks with the same keys; so many are kept.
    .Attr("ahead: int >= 0 = 0")
    // (tables) true for tables on disk, whose owners hear of keys to come; empty: none is
    .Attr("on_disk: list(bool) = []")
    .SetIsStateful()  // otherwise TensorFlow would fold the op for constant keys
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      int workers;
      TF_RETURN_IF_ERROR(c->GetAttr("workers", &workers));
      c->set_output(0, c->Vector(c->UnknownDim()));
      c->set_output(1, c->Vector(workers));
      c->set_output(2, c->Scalar());
      c->set_output(3, c->Vector(workers));
      return absl::OkStatus();
    });

namespace {

// Returns all attributes that a request depends on. What TensorFlow notes, such as the shapes of
// outputs, begins with "_".
std::string SignatureOf(const tf::NodeDef& node) {
  std::string signature;
  for (const auto& [name, value] : std::map(node.attr().begin(), node.attr().end())) {
    if (name[0] != '_' && name != "ahead") signature += name + value.SerializeAsString() + "\n";
  }
  return signature;
}

}  // namespace

class CollectionRequestOp : public tf::OpKernel {
 public:
  explicit CollectionRequestOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    auto plan = std::make_shared<CollectionPlan>();
    std::vector<std::string> table_names;
    std::vector<int64_t> feature_tables, max_lengths, dims, salts, key_limits, combiners;
    std::vector<TablePlacement> placements;
    std::vector<bool> counts, says;
    int64_t workers, rank;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("says", &says));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("counts", &counts));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("bags", &bags_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("feature_names", &plan->features));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("feature_tables", &feature_tables));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("max_lengths", &max_lengths));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("table_names", &table_names));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dims", &dims));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("salts", &salts));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("key_limits", &key_limits));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("combiners", &combiners));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("trains", &plan->trains));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("marks_unused", &plan->marks_unused));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("workers", &workers));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("rank", &rank));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("fingerprint", &plan->fingerprint));
    const size_t tables = table_names.size(), features = plan->features.size();
    OP_REQUIRES(
        ctx,
        dims.size() == tables && salts.size() == tables && key_limits.size() == tables &&
            bags_.size() == features && feature_tables.size() == features &&
            combiners.size() == features && max_lengths.size() == features &&
            (counts.empty() || counts.size() == tables) &&
            (says.empty() || says.size() == tables) && ctx->input_type(0) != tf::DT_INVALID &&
            workers <= int64_t{1} << 16 && rank < workers,
        UnfitAttributes(ctx->def(), "one value a table and a feature, and at most 65536 workers"));
    OP_REQUIRES_OK(ctx, ReadPlacements(ctx, true, tables, workers, &placements));
    for (size_t table = 0; table < tables; ++table) {
      OP_REQUIRES(
          ctx, dims[table] >= 1 && dims[table] <= Table::kMostDim && key_limits[table] >= 0,
          absl::InvalidArgumentError("expected a dim of at least 1 and a limit of keys of "
                                     "at least 0 for table '" +
                                     table_names[table] + "', got " + std::to_string(dims[table]) +
                                     " and " + std::to_string(key_limits[table])));
      plan->tables.push_back({table_names[table], static_cast<int>(dims[table]),
                              static_cast<uint64_t>(salts[table]),
                              static_cast<uint64_t>(key_limits[table]), placements[table],
                              !counts.empty() && counts[table], !says.empty() && says[table]});
    }
    for (int64_t combiner : combiners) {
      OP_REQUIRES(ctx, combiner >= 0 && combiner <= static_cast<int64_t>(Combiner::kMax),
                  absl::InvalidArgumentError("expected the number of a combiner, got " +
                                             std::to_string(combiner)));
      plan->combiners.push_back(static_cast<Combiner>(combiner));
    }
    for (int64_t table : feature_tables) {
      OP_REQUIRES(ctx, table >= 0 && table < static_cast<int64_t>(tables),
                  absl::InvalidArgumentError("expected the number of a table, got " +
                                             std::to_string(table)));
      plan->feature_tables.push_back(static_cast<uint32_t>(table));
    }
    for (int64_t length : max_lengths) {
      OP_REQUIRES(ctx, length >= 0,
                  absl::InvalidArgumentError("expected a number of keys of at least 0, got " +
                                             std::to_string(length)));
      plan->max_lengths.push_back(static_cast<uint64_t>(length));
    }
    plan->workers = static_cast<uint32_t>(workers);
    plan->rank = static_cast<uint32_t>(rank);
    plan_ = std::move(plan);
    int64_t most_ahead;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("ahead", &most_ahead));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("on_disk", &on_disk_));
    OP_REQUIRES(ctx, on_disk_.empty() || on_disk_.size() == tables,
                UnfitAttributes(ctx->def(), "on_disk of each table"));
    signature_ = SignatureOf(def());
    if (most_ahead > 0) {
      ahead_ = std::make_unique<RequestsAhead>(signature_, static_cast<size_t>(most_ahead));
    }
  }

  void Compute(tf::OpKernelContext* ctx) override {
    std::shared_ptr<const CollectionRequest> request;
    KeysToCome to_come;
    std::vector<int32_t> keys, gradients(plan_->workers, 0);
    const Status status =
        OrNoMemory([&] { return Ask(ctx, &request, &to_come, &keys, &gradients); });
    KeyMessage failure;
    if (!status.ok()) {
      // The other workers wait for this one, and receive the error; and a request that cannot be
      // made ahead is an error of its step.
      OP_REQUIRES(ctx, plan_->workers > 1 || ahead_ != nullptr, ToAbsl(status));
      request = nullptr;
      failure = WriteFailure(*plan_, status);
      keys = failure.splits;
    }
    tf::Tensor *words = nullptr, *splits = nullptr, *gradient_splits = nullptr;
    const int64_t size = std::accumulate(keys.begin(), keys.end(), int64_t{0});
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, {size}, &words));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, {plan_->workers}, &splits));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(3, {plan_->workers}, &gradient_splits));
    int64_t* const message = words->flat<int64_t>().data();
    if (request != nullptr) {
      PutKeys(*request, message, to_come);
    } else {
      std::copy(failure.words.begin(), failure.words.end(), message);
    }
    std::copy(gradients.begin(), gradients.end(), gradient_splits->flat<int32_t>().data());
    std::copy(keys.begin(), keys.end(), splits->flat<int32_t>().data());
    AskedVariant asked;
    asked.request = std::move(request);
    OP_REQUIRES_OK(ctx, PutVariant(ctx, 2, std::move(asked)));
  }

 private:
  Status Ask(tf::OpKernelContext* ctx, std::shared_ptr<const CollectionRequest>* request,
             KeysToCome* to_come, std::vector<int32_t>* key_splits,
             std::vector<int32_t>* gradient_splits) {
    std::vector<FeatureBags> features;
    Status status = ReadFeatures(ctx, &features);
    if (!status.ok()) return status;
    std::shared_ptr<const CollectionRequest> made;
    if (ahead_ == nullptr) {
      RequestsAhead::Taken taken = RequestsAhead::Take(signature_, features);
      made = std::move(taken.request);
      if (!on_disk_.empty()) *to_come = {std::move(taken.to_come), on_disk_};
    }
    if (made == nullptr) {
      // TensorFlow's threads would lack in the step that runs meanwhile.
      const ParallelFor pool = ahead_ == nullptr ? IntraOpPool(ctx) : ProcessPool();
      SOK_ASSIGN_OR_RETURN(made, CollectionRequest::Make(plan_, features, pool));
    }
    Result<std::vector<int32_t>> splits = KeySplits(*made, *to_come);
    if (!splits.ok() && !to_come->requests.empty()) {
      to_come->requests.clear();  // they do not fit into the message, and the step needs them not
      splits = KeySplits(*made);
    }
    SOK_ASSIGN_OR_RETURN(*key_splits, std::move(splits));
    SOK_ASSIGN_OR_RETURN(*gradient_splits, GradientSegmentsOf(*made).Splits());
    if (ahead_ != nullptr) ahead_->Add(made, std::move(features));
    *request = std::move(made);
    return Status();
  }

  Status ReadFeatures(tf::OpKernelContext* ctx, std::vector<FeatureBags>* features) {
    tf::OpInputList keys, splits, said;
    const absl::Status listed = [&] {
      TF_RETURN_IF_ERROR(ctx->input_list("keys", &keys));
      TF_RETURN_IF_ERROR(ctx->input_list("splits", &splits));
      return ctx->input_list("said", &said);
    }();
    if (!listed.ok()) return InvalidArgument(std::string(listed.message()));
    if (static_cast<size_t>(keys.size()) != bags_.size()) {
      return InvalidArgument("expected keys of " + std::to_string(bags_.size()) +
                             " features, got " + std::to_string(keys.size()));
    }
    int next_splits = 0, next_said = 0;
    for (int i = 0; i < keys.size(); ++i) {
      const LookupKeys flat = KeysOf(keys[i]);
      FeatureBags bags{flat.hold, flat.keys, flat.n, flat.n, nullptr, 1};
      if (bags_[i] == 1) {
        if (keys[i].dims() == 0)
          return Refuse(i, "expected keys of one dimension or more, got one");
        bags.bags = static_cast<size_t>(keys[i].dim_size(0));
        bags.length = bags.bags == 0 ? 0 : flat.n / bags.bags;
      } else if (bags_[i] == 2) {
        if (next_splits >= splits.size() || splits[next_splits].dims() != 1 ||
            splits[next_splits].NumElements() == 0) {
          return Refuse(i, "expected a vector of row splits, which has at least one element");
        }
        const tf::Tensor& of_feature = splits[next_splits++];
        bags.bags = static_cast<size_t>(of_feature.NumElements()) - 1;
        bags.splits = of_feature.flat<int64_t>().data();
        bags.hold = std::make_shared<std::pair<std::shared_ptr<const void>, tf::Tensor>>(
            flat.hold, of_feature);
      }
      if (plan_->tables[plan_->feature_tables[i]].says) {
        if (next_said >= said.size() ||
            said[next_said].NumElements() != static_cast<int64_t>(flat.n)) {
          return Refuse(i, "expected a number of each key");
        }
        const tf::Tensor& of_feature = said[next_said++];
        bags.said = of_feature.flat<int64_t>().data();
        bags.hold = std::make_shared<std::pair<std::shared_ptr<const void>, tf::Tensor>>(
            bags.hold, of_feature);
      }
      features->push_back(std::move(bags));
    }
    return Status();
  }

  Status Refuse(int feature, const std::string& what) const {
    return InvalidArgument("feature '" + plan_->features[feature] + "': " + what);
  }

  std::vector<int64_t> bags_;
  std::shared_ptr<const CollectionPlan> plan_;
  std::string signature_;
  std::vector<bool> on_disk_;
  std::unique_ptr<RequestsAhead> ahead_;  // null: requests are for a step that runs
};

SOK_REGISTER_KERNEL("CollectionRequest", CollectionRequestOp);

[[maybe_unused]] static const bool asked_variants = RegisterHostVariant<AskedVariant>();

}  // namespace sok
