// The parts that ops which pool rows on a GPU share, and SokEmbed>TrainedToken, which stands there
// for their tables.
#include "kernels/pooled_on_gpu.h"

#include <utility>

#include "kernels/host_variant.h"
#include "kernels/register_kernel.h"
#include "kernels/trained.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace sok {

namespace tf = tensorflow;

[[maybe_unused]] static const bool trained_tokens = RegisterHostVariant<TrainedToken>();
[[maybe_unused]] static const bool pooled_receipts = RegisterHostVariant<PooledReceipt>();

REGISTER_OP("SokEmbed>TrainedToken")
    .SOK_TRAINED.Output("token: variant")
    .Attr("reports: bool = false")  // true if an error is put into the token
    .SetShapeFn(tf::shape_inference::ScalarShape);

namespace {

absl::Status FindTables(tf::OpKernelContext* ctx, TrainedToken* found) {
  TrainedToken token;
  tf::OpInputList queues, handles;
  TF_RETURN_IF_ERROR(ctx->input_list("queue", &queues));
  TF_RETURN_IF_ERROR(ctx->input_list("tables", &handles));
  for (const tf::Tensor& handle : handles) {
    TF_RETURN_IF_ERROR(ExpectScalar(handle, "a table"));
    std::shared_ptr<OpenTable> table;
    TF_RETURN_IF_ERROR(GetContent(ctx, handle.scalar<tf::ResourceHandle>()(), &table));
    TF_RETURN_IF_ERROR(table->CheckProcess());
    token.tables.push_back(std::move(table));
  }
  if (queues.size() == 1) {
    OpenCollection collection;
    TF_RETURN_IF_ERROR(GetCollection(ctx, &collection));
    token.collection = std::move(collection.tables);
    token.name = std::move(collection.name);
  } else if (queues.size() > 1 || handles.size() != 1) {
    return absl::InvalidArgumentError("expected one table, or tables with one queue, got " +
                                      std::to_string(handles.size()) + " tables and " +
                                      std::to_string(queues.size()) + " queues");
  } else {
    token.name = token.tables[0]->name();
  }
  *found = std::move(token);
  return absl::OkStatus();
}

}  // namespace

class TrainedTokenOp : public tf::OpKernel {
 public:
  explicit TrainedTokenOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("reports", &reports_));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    TrainedToken token;
    token.failure = FindTables(ctx, &token);
    if (!reports_) OP_REQUIRES_OK(ctx, token.failure);
    OP_REQUIRES_OK(ctx, PutVariant(ctx, 0, std::move(token)));
  }

 private:
  bool reports_;
};
SOK_REGISTER_KERNEL("TrainedToken", TrainedTokenOp);

absl::Status PlaceVectors(const std::vector<FeatureBags>& bags, bool concat, PooledCall* call) {
  size_t width = 0;
  for (size_t feature = 0; feature < bags.size(); ++feature) {
    const auto dim = static_cast<size_t>(call->dim_of(feature));
    const auto examples = static_cast<int64_t>(bags[feature].bags);
    if (!concat) {
      call->places.push_back({feature, 0, dim});
      call->outputs.push_back({examples, call->dim_of(feature)});
      continue;
    }
    if (bags[feature].bags != bags[0].bags) {
      return absl::InvalidArgumentError(
          "expected as many examples of every feature, got " + std::to_string(bags[0].bags) +
          " of feature '" + call->plan->features[0] + "' and " + std::to_string(examples) +
          " of feature '" + call->plan->features[feature] + "'");
    }
    call->places.push_back({0, width, 0});
    width += dim;
  }
  if (!concat) return absl::OkStatus();
  for (VectorPlace& place : call->places) place.stride = width;
  call->outputs.push_back({static_cast<int64_t>(bags[0].bags), static_cast<int64_t>(width)});
  return absl::OkStatus();
}

Status DepositGradients(const TrainedToken& trained, CollectionKeys deposited,
                        std::shared_ptr<const void> hold, const AnchorGradient& anchor,
                        const ParallelFor& parallel_for) {
  if (trained.collection != nullptr) {
    return trained.collection->DepositByTable(std::move(deposited), std::move(hold), anchor,
                                              parallel_for);
  }
  LookupKeys& keys = deposited.tables[0];
  keys.order = deposited.order;
  const Status status = trained.tables[0]->table()->Deposit(
      std::move(keys), std::move(hold), deposited.gradients[0], nullptr, anchor, parallel_for);
  return status.ok() ? status : status.Within("table '" + trained.name + "': ");
}

}  // namespace sok
