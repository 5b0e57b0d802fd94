// The gradients of lookups that pool on a GPU: those of rows of this worker, which are deposited,
// and SokEmbed>PooledGradients, which computes those of weights and of rows that workers have sent.
#include <string>
#include <utility>

#include "core/base/bfloat16.h"
#include "kernels/gpu_copies.h"
#include "kernels/pooled_on_gpu.h"
#include "kernels/pooled_on_host.h"
#include "kernels/pooled_upstream.h"
#include "kernels/register_kernel.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace sok {

namespace tf = tensorflow;
using tf::shape_inference::InferenceContext;

namespace {

// Computes the gradients of the keys of the features of a table that were used.
absl::Status OfTable(tf::OpKernelContext* ctx, const PooledCall& call, size_t table,
                     const std::vector<tf::Tensor>& upstream, CollectionKeys* deposited,
                     std::vector<tf::Tensor>* hold) {
  const std::string& name = call.trained.tables[table]->name();
  LookupKeys& keys = deposited->tables[table];
  std::vector<size_t> used;
  size_t n = 0;
  for (size_t feature = 0; feature < call.places.size(); ++feature) {
    if (call.plan->feature_tables[feature] != table) continue;
    if (upstream[call.places[feature].output].dtype() == tf::DT_INVALID) continue;
    used.push_back(feature);
    n += call.bags[feature].ids;
  }
  if (n == 0) {
    keys = {};
    return absl::OkStatus();
  }
  const gpu::DeviceRows& rows = call.rows_of(table);
  const int64_t dim = call.plan->tables[table].dim;
  hold->emplace_back();
  TF_RETURN_IF_ERROR(
      ctx->allocate_temp(tf::DT_FLOAT, {static_cast<int64_t>(n), dim}, &hold->back()));
  const gpu::DeviceAddress gradients = AddressOf(hold->back());
  const auto all_keys = reinterpret_cast<gpu::DeviceAddress>(keys.keys);
  gpu::DeviceAddress used_keys = 0;
  if (n < keys.n) {
    hold->emplace_back();
    TF_RETURN_IF_ERROR(ctx->allocate_temp(tf::DT_INT64, {static_cast<int64_t>(n)}, &hold->back()));
    used_keys = AddressOf(hold->back());
  }
  size_t at = 0;
  for (size_t feature : used) {
    const gpu::RowBags bags = WithUpstream(call, feature, upstream[call.places[feature].output]);
    const auto pool = [&](gpu::GpuTable& of_table) {
      return of_table.PoolGradient(bags, gradients + at * dim * sizeof(float), call.stream);
    };
    TF_RETURN_IF_ERROR(ToAbsl(rows.Compute(pool), name));
    if (used_keys != 0) {
      TF_RETURN_IF_ERROR(ToAbsl(rows.device().CopyWithin(used_keys + at * sizeof(Key),
                                                         all_keys + bags.first * sizeof(Key),
                                                         bags.ids * sizeof(Key), call.stream),
                                name));
    }
    at += bags.ids;
  }
  if (used_keys != 0) {
    keys.keys = reinterpret_cast<const Key*>(used_keys);
    keys.hold = std::make_shared<tf::Tensor>(hold->back());
    keys.n = n;
  }
  deposited->gradients[table] = reinterpret_cast<const float*>(gradients);
  return absl::OkStatus();
}

absl::Status DepositOnGpu(tf::OpKernelContext* ctx, const PooledCall& call,
                          const std::vector<tf::Tensor>& upstream, CollectionKeys deposited,
                          const AnchorGradient& anchor) {
  deposited.gradients.resize(call.keys.size(), nullptr);
  auto hold = std::make_shared<std::vector<tf::Tensor>>();
  for (size_t table = 0; table < call.keys.size(); ++table) {
    if (call.keys[table].n == 0) continue;
    TF_RETURN_IF_ERROR(OfTable(ctx, call, table, upstream, &deposited, hold.get()));
  }
  return ToAbsl(DepositGradients(call.trained, std::move(deposited), std::move(hold), anchor,
                                 IntraOpPool(ctx)));
}

absl::Status DepositOnHost(const PooledCall& call, const std::vector<tf::Tensor>& upstream,
                           CollectionKeys deposited, const AnchorGradient& anchor,
                           const ParallelFor& parallel_for) {
  auto rows = std::make_shared<std::vector<float>>(call.rows.size());
  PoolGradientOnHost(call, upstream, rows->data(), std::vector<float*>(call.places.size(), nullptr),
                     parallel_for);
  deposited.starts = call.request->row_starts();
  deposited.starts.pop_back();
  if (call.trained.collection == nullptr) {
    deposited.gradients = {rows->data()};
    return ToAbsl(DepositGradients(call.trained, std::move(deposited), std::move(rows), anchor,
                                   parallel_for));
  }
  deposited.shares.resize(call.keys.size(), 1.0);
  deposited.pooled.resize(call.keys.size());
  const float* const gradients = rows->data();
  call.trained.collection->Deposit(std::move(deposited), std::move(rows), gradients, anchor,
                                   parallel_for);
  return absl::OkStatus();
}

// Gradients of vectors that are rows, and need no computation.
Status DepositPlain(const PooledCall& call, const tf::Tensor& gradients, const DepositOrder& order,
                    const AnchorGradient& anchor, const ParallelFor& parallel_for) {
  LookupKeys keys;
  if (gradients.dtype() != tf::DT_INVALID) keys = call.keys[0];
  keys.order = order;
  const bool is_float = gradients.dtype() == tf::DT_FLOAT;
  return call.trained.tables[0]->table()->Deposit(
      std::move(keys), Hold(gradients),
      is_float ? static_cast<const float*>(gradients.data()) : nullptr,
      is_float ? nullptr : static_cast<const BFloat16*>(gradients.data()), anchor, parallel_for);
}

}  // namespace

absl::Status DepositPooled(tf::OpKernelContext* ctx, const PooledCall& call, int64_t number,
                           const AnchorGradient& anchor) {
  std::vector<tf::Tensor> upstream;
  TF_RETURN_IF_ERROR(GetUpstream(ctx, 1, call, &upstream));
  CollectionKeys deposited;
  deposited.tables = call.keys;
  deposited.order = call.order;
  deposited.order.gradient = number;
  if (call.is_plain) {
    const Status status =
        DepositPlain(call, upstream[0], deposited.order, anchor, IntraOpPool(ctx));
    return ToAbsl(status, call.trained.name);
  }
  if (call.on_gpu) return DepositOnGpu(ctx, call, upstream, std::move(deposited), anchor);
  return DepositOnHost(call, upstream, std::move(deposited), anchor, IntraOpPool(ctx));
}

REGISTER_OP("SokEmbed>PooledGradients")
    .Input("gradients: variant")
    .Input("receipt: variant")
    .Output("row_gradients: num_messages * float")
    .Output("weight_gradients: num_weights * float")
    .Attr("num_messages: int >= 0")  // 1: the gradients of rows that workers have sent
    .Attr("num_weights: int >= 0")
    .Attr("weighted: list(int)")  // the features that have weights
    .SetShapeFn([](InferenceContext* c) {
      int weights;
      TF_RETURN_IF_ERROR(c->GetAttr("num_weights", &weights));
      for (int i = 0; i < c->num_outputs(); ++i) {
        const bool is_message = i < c->num_outputs() - weights;
        c->set_output(i, is_message ? c->Vector(c->UnknownDim()) : c->UnknownShape());
      }
      return absl::OkStatus();
    });

class PooledGradientsOp : public tf::OpKernel {
 public:
  explicit PooledGradientsOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    int64_t messages;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("weighted", &weighted_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_messages", &messages));
    OP_REQUIRES(
        ctx,
        ctx->num_outputs() == messages + static_cast<int64_t>(weighted_.size()) && messages <= 1,
        UnfitAttributes(ctx->def(), "at most one message, and a weight a feature"));
    messages_ = static_cast<int>(messages);
  }

  void Compute(tf::OpKernelContext* ctx) override {
    std::shared_ptr<const PooledCall> call;
    std::vector<tf::Tensor> upstream;
    OP_REQUIRES_OK(ctx, GetCall(ctx, &call));
    OP_REQUIRES_OK(ctx, GetUpstream(ctx, 0, *call, &upstream));
    if (messages_ == 1) OP_REQUIRES_OK(ctx, RowGradients(ctx, *call, upstream));
    if (weighted_.empty()) return;
    std::vector<tf::Tensor*> outputs;
    for (int64_t feature : weighted_) {
      OP_REQUIRES(ctx, feature >= 0 && static_cast<size_t>(feature) < call->places.size(),
                  absl::InvalidArgumentError("expected the number of one of " +
                                             std::to_string(call->places.size()) +
                                             " features, got " + std::to_string(feature)));
      const int output = messages_ + static_cast<int>(outputs.size());
      outputs.push_back(nullptr);
      OP_REQUIRES_OK(ctx,
                     ctx->allocate_output(output, call->weight_shapes[static_cast<size_t>(feature)],
                                          &outputs.back()));
    }
    if (call->on_gpu) {
      OP_REQUIRES_OK(ctx, OnGpu(*call, upstream, outputs));
    } else {
      OP_REQUIRES_OK(ctx, OnHost(ctx, *call, upstream, outputs));
    }
  }

 private:
  absl::Status OnGpu(const PooledCall& call, const std::vector<tf::Tensor>& upstream,
                     const std::vector<tf::Tensor*>& outputs) const {
    for (size_t i = 0; i < weighted_.size(); ++i) {
      const auto feature = static_cast<size_t>(weighted_[i]);
      const tf::Tensor& of_output = upstream[call.places[feature].output];
      const gpu::DeviceRows& rows = call.rows_of(call.plan->feature_tables[feature]);
      const gpu::DeviceAddress to = AddressOf(*outputs[i]);
      const auto differentiate = [&](gpu::GpuTable& table) {
        return table.WeightGradient(WithUpstream(call, feature, of_output), to, call.stream);
      };
      const Status status = of_output.dtype() == tf::DT_INVALID
                                ? rows.device().Fill(to, 0, outputs[i]->TotalBytes(), call.stream)
                                : rows.Compute(differentiate);
      TF_RETURN_IF_ERROR(ToAbsl(status, call.trained.name));
    }
    return absl::OkStatus();
  }

  absl::Status OnHost(tf::OpKernelContext* ctx, const PooledCall& call,
                      const std::vector<tf::Tensor>& upstream,
                      const std::vector<tf::Tensor*>& outputs) const {
    std::vector<float> rows(call.rows.size());
    std::vector<float*> weights(call.places.size(), nullptr);
    std::vector<tf::Tensor> on_host;
    for (size_t i = 0; i < weighted_.size(); ++i) {
      on_host.push_back(*outputs[i]);
      if (RunsOnGpu(ctx)) {
        TF_RETURN_IF_ERROR(AllocatePinned(ctx, tf::DT_FLOAT, outputs[i]->shape(), &on_host.back()));
      }
      weights[static_cast<size_t>(weighted_[i])] = on_host.back().flat<float>().data();
    }
    PoolGradientOnHost(call, upstream, rows.data(), weights, IntraOpPool(ctx));
    for (size_t i = 0; RunsOnGpu(ctx) && i < outputs.size(); ++i) {
      TF_RETURN_IF_ERROR(CopyToGpu(ctx, on_host[i], outputs[i]));
    }
    return absl::OkStatus();
  }

  std::vector<int64_t> weighted_;
  int messages_;
};

SOK_REGISTER_CPU_KERNEL("PooledGradients", PooledGradientsOp);
SOK_REGISTER_GPU_KERNEL("PooledGradients", PooledGradientsOp, "gradients", "receipt");

}  // namespace sok
