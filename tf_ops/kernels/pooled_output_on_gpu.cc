// SokEmbed>TrainedToken stands, on a GPU, for the tables of SokEmbed>LookupPooledOnGpu.
// SokEmbed>PooledOutputOnGpu takes the vectors of one output, so that a feature whose vectors are
// not used has no gradient; a single op with many outputs would receive zeros for it.
#include <utility>

#include "kernels/host_variant.h"
#include "kernels/output_op.h"
#include "kernels/pooled_on_gpu.h"
#include "kernels/register_kernel.h"
#include "kernels/trained.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace sok {

namespace tf = tensorflow;
using tf::shape_inference::InferenceContext;

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

Status DepositGradients(const TrainedToken& trained, CollectionKeys deposited,
                        std::shared_ptr<const void> hold, const AnchorGradient& anchor,
                        const ParallelFor& parallel_for) {
  if (trained.collection != nullptr) {
    return trained.collection->DepositByTable(std::move(deposited), std::move(hold), anchor,
                                              parallel_for);
  }
  Table& table = *trained.tables[0]->table();
  LookupKeys& keys = deposited.tables[0];
  const float* gradients = deposited.gradients[0];
  const BFloat16* none = nullptr;
  keys.order = deposited.order;
  // Norms are computed on the host.
  if (keys.on_gpu && anchor.gradient != nullptr && anchor.measures) {
    Status status = table.BringToHost(&keys, &hold, &gradients, &none);
    if (!status.ok()) return status.Within("table '" + trained.name + "': ");
  }
  table.Deposit(std::move(keys), std::move(hold), gradients, nullptr, anchor, parallel_for);
  return Status();
}

REGISTER_OP("SokEmbed>PooledOutputOnGpu")
    .Input("vectors: variant")
    .Input("receipt: variant")  // for the gradient
    .Output("output: dtype")
    .Attr("dtype: {float, bfloat16}")
    .Attr("index: int >= 0")
    .Attr("width: int >= 1")
    .SetShapeFn(OutputOp::SetShape);

SOK_REGISTER_CPU_KERNEL("PooledOutputOnGpu", OutputOp);
SOK_REGISTER_GPU_KERNEL("PooledOutputOnGpu", OutputOp, "vectors", "receipt");

// The receipt is an input so that TensorFlow does not fold the op if the gradient is constant.
REGISTER_OP("SokEmbed>PooledOutputGradientOnGpu")
    .Input("gradient: dtype")
    .Input("receipt: variant")
    .Output("gradients: variant")
    .Attr("dtype: {float, bfloat16}")
    .Attr("index: int >= 0")
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Scalar());
      return absl::OkStatus();
    });

template <bool kOnGpu>
class PooledOutputGradientOnGpuOp : public tf::OpKernel {
 public:
  explicit PooledOutputGradientOnGpuOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("index", &index_));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    std::shared_ptr<const PooledCall> call;
    OP_REQUIRES_OK(ctx, GetCall(ctx, &call));
    OP_REQUIRES(ctx, index_ < static_cast<int64_t>(call->outputs.size()),
                absl::InvalidArgumentError("expected the number of one of " +
                                           std::to_string(call->outputs.size()) + " outputs, got " +
                                           std::to_string(index_)));
    VectorsVariant gradients;
    gradients.on_gpu = kOnGpu;
    gradients.outputs.resize(call->outputs.size(), tf::Tensor(tf::DT_INVALID));
    gradients.outputs[static_cast<size_t>(index_)] = ctx->input(0);
    OP_REQUIRES_OK(ctx, PutVariant(ctx, 0, std::move(gradients)));
  }

 private:
  int64_t index_;
};

SOK_REGISTER_CPU_KERNEL("PooledOutputGradientOnGpu", PooledOutputGradientOnGpuOp<false>);
SOK_REGISTER_GPU_KERNEL("PooledOutputGradientOnGpu", PooledOutputGradientOnGpuOp<true>, "receipt",
                        "gradients");

}  // namespace sok
