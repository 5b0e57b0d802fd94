// The gradients of SokEmbed>LookupPooledOnGpu. SokEmbed>DepositPooledOnGpu computes gradients of
// rows from gradients of vectors, and keeps them for a commit, as SokEmbed>DepositOnGpu does.
// SokEmbed>PooledWeightGradientsOnGpu computes gradients of weights.
#include <string>
#include <utility>

#include "core/base/bfloat16.h"
#include "core/gpu/gpu_store.h"
#include "core/tables/tickets.h"
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

// Not stateful, as SokEmbed>Deposit.
REGISTER_OP("SokEmbed>DepositPooledOnGpu")
    .Input("gradients: variant")
    .Input("receipt: variant")
    .Output("anchor_gradient: float")
    .Attr("number: int = 0")
    .Attr("marks: bool = false")
    .Attr("measures: bool = true")
    .SetShapeFn([](InferenceContext* c) {
      bool marks;
      TF_RETURN_IF_ERROR(c->GetAttr("marks", &marks));
      c->set_output(0, marks ? c->Vector(kAnchorSize) : c->Scalar());
      return absl::OkStatus();
    });

REGISTER_OP("SokEmbed>PooledWeightGradientsOnGpu")
    .Input("gradients: variant")
    .Input("receipt: variant")
    .Output("weight_gradients: num_weights * float")
    .Attr("num_weights: int >= 1")
    .Attr("weighted: list(int)")  // the features that have weights
    .SetShapeFn([](InferenceContext* c) {
      for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, c->UnknownShape());
      return absl::OkStatus();
    });

template <bool kOnGpu>
class DepositPooledOnGpuOp : public tf::OpKernel {
 public:
  explicit DepositPooledOnGpuOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("number", &number_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("marks", &marks_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("measures", &measures_));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    std::shared_ptr<const PooledCall> call;
    std::vector<tf::Tensor> upstream;
    OP_REQUIRES_OK(ctx, GetCall(ctx, &call));
    OP_REQUIRES_OK(ctx, GetUpstream<kOnGpu>(ctx, *call, &upstream));
    tf::Tensor* anchor_gradient = nullptr;
    const tf::TensorShape shape = marks_ ? tf::TensorShape({kAnchorSize}) : tf::TensorShape();
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &anchor_gradient));
    auto gradient = anchor_gradient->flat<float>();
    gradient.setZero();
    const AnchorGradient anchor{marks_ ? gradient.data() : nullptr, measures_};
    OP_REQUIRES_OK(ctx, call->on_gpu ? DepositOnGpu(ctx, *call, upstream, anchor)
                                     : DepositOnHost(ctx, *call, upstream, anchor));
  }

 private:
  absl::Status DepositOnGpu(tf::OpKernelContext* ctx, const PooledCall& call,
                            const std::vector<tf::Tensor>& upstream,
                            const AnchorGradient& anchor) const {
    CollectionKeys deposited;
    deposited.tables = call.keys;
    deposited.gradients.resize(call.keys.size(), nullptr);
    auto hold = std::make_shared<std::vector<tf::Tensor>>();
    for (size_t table = 0; table < call.keys.size(); ++table) {
      if (call.keys[table].n == 0) continue;
      TF_RETURN_IF_ERROR(OfTable(ctx, call, table, upstream, &deposited, hold.get()));
    }
    return Keep(ctx, call, std::move(deposited), std::move(hold), anchor);
  }

  // Computes the gradients of the keys of the features of a table that were used.
  static absl::Status OfTable(tf::OpKernelContext* ctx, const PooledCall& call, size_t table,
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
    const gpu::GpuStore& store = *call.trained.tables[table]->table()->on_gpu();
    const int64_t dim = call.plan->tables[table].dim;
    hold->emplace_back();
    TF_RETURN_IF_ERROR(
        ctx->allocate_temp(tf::DT_FLOAT, {static_cast<int64_t>(n), dim}, &hold->back()));
    const gpu::DeviceAddress gradients = AddressOf(hold->back());
    const auto all_keys = reinterpret_cast<gpu::DeviceAddress>(keys.keys);
    gpu::DeviceAddress used_keys = 0;
    if (n < keys.n) {
      hold->emplace_back();
      TF_RETURN_IF_ERROR(
          ctx->allocate_temp(tf::DT_INT64, {static_cast<int64_t>(n)}, &hold->back()));
      used_keys = AddressOf(hold->back());
    }
    size_t at = 0;
    for (size_t feature : used) {
      const gpu::RowBags bags = WithUpstream(call, feature, upstream[call.places[feature].output]);
      TF_RETURN_IF_ERROR(ToAbsl(
          store.PoolGradient(bags, gradients + at * dim * sizeof(float), call.stream), name));
      if (used_keys != 0) {
        TF_RETURN_IF_ERROR(ToAbsl(
            store.CopyOnGpu(used_keys + at * sizeof(Key), all_keys + bags.first * sizeof(Key),
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

  absl::Status DepositOnHost(tf::OpKernelContext* ctx, const PooledCall& call,
                             const std::vector<tf::Tensor>& upstream,
                             const AnchorGradient& anchor) const {
    auto rows = std::make_shared<std::vector<float>>(call.rows.size());
    PoolGradientOnHost(call, upstream, rows->data(),
                       std::vector<float*>(call.places.size(), nullptr), IntraOpPool(ctx));
    CollectionKeys deposited;
    deposited.tables = call.keys;
    deposited.order = call.order;
    deposited.order.gradient = number_;
    deposited.starts = call.request->row_starts();
    deposited.starts.pop_back();
    if (call.trained.collection == nullptr) {
      deposited.gradients = {rows->data()};
      return Keep(ctx, call, std::move(deposited), std::move(rows), anchor);
    }
    deposited.shares.resize(call.keys.size(), 1.0);
    deposited.pooled.resize(call.keys.size());
    const float* const gradients = rows->data();
    call.trained.collection->Deposit(std::move(deposited), std::move(rows), gradients, anchor,
                                     IntraOpPool(ctx));
    return absl::OkStatus();
  }

  absl::Status Keep(tf::OpKernelContext* ctx, const PooledCall& call, CollectionKeys deposited,
                    std::shared_ptr<const void> hold, const AnchorGradient& anchor) const {
    deposited.order = call.order;
    deposited.order.gradient = number_;
    return ToAbsl(DepositGradients(call.trained, std::move(deposited), std::move(hold), anchor,
                                   IntraOpPool(ctx)));
  }

  int64_t number_;
  bool marks_, measures_;
};

SOK_REGISTER_CPU_KERNEL("DepositPooledOnGpu", DepositPooledOnGpuOp<false>);
SOK_REGISTER_GPU_KERNEL("DepositPooledOnGpu", DepositPooledOnGpuOp<true>, "gradients", "receipt",
                        "anchor_gradient");

template <bool kOnGpu>
class PooledWeightGradientsOnGpuOp : public tf::OpKernel {
 public:
  explicit PooledWeightGradientsOnGpuOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("weighted", &weighted_));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    std::shared_ptr<const PooledCall> call;
    std::vector<tf::Tensor> upstream;
    OP_REQUIRES_OK(ctx, GetCall(ctx, &call));
    OP_REQUIRES_OK(ctx, GetUpstream<kOnGpu>(ctx, *call, &upstream));
    std::vector<tf::Tensor*> outputs;
    for (int64_t feature : weighted_) {
      OP_REQUIRES(ctx, feature >= 0 && static_cast<size_t>(feature) < call->places.size(),
                  absl::InvalidArgumentError("expected the number of one of " +
                                             std::to_string(call->places.size()) +
                                             " features, got " + std::to_string(feature)));
      outputs.push_back(nullptr);
      OP_REQUIRES_OK(ctx, ctx->allocate_output(static_cast<int>(outputs.size()) - 1,
                                               call->weight_shapes[static_cast<size_t>(feature)],
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
      const gpu::GpuStore& store = *call.table_of(feature).on_gpu();
      const gpu::DeviceAddress to = AddressOf(*outputs[i]);
      const Status status =
          of_output.dtype() == tf::DT_INVALID
              ? store.ClearOnGpu(to, outputs[i]->TotalBytes(), call.stream)
              : store.WeightGradient(WithUpstream(call, feature, of_output), to, call.stream);
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
      if constexpr (kOnGpu) {
        TF_RETURN_IF_ERROR(AllocatePinned(ctx, tf::DT_FLOAT, outputs[i]->shape(), &on_host.back()));
      }
      weights[static_cast<size_t>(weighted_[i])] = on_host.back().flat<float>().data();
    }
    PoolGradientOnHost(call, upstream, rows.data(), weights, IntraOpPool(ctx));
    if constexpr (kOnGpu) {
      for (size_t i = 0; i < outputs.size(); ++i) {
        TF_RETURN_IF_ERROR(CopyToGpu(ctx, on_host[i], outputs[i]));
      }
    }
    return absl::OkStatus();
  }

  std::vector<int64_t> weighted_;
};

SOK_REGISTER_CPU_KERNEL("PooledWeightGradientsOnGpu", PooledWeightGradientsOnGpuOp<false>);
SOK_REGISTER_GPU_KERNEL("PooledWeightGradientsOnGpu", PooledWeightGradientsOnGpuOp<true>,
                        "gradients", "receipt");

}  // namespace sok
