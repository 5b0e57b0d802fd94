// SokEmbed>Evict: removes rows by age and by norm.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/policies/eviction.h"
#include "kernels/register_kernel.h"
#include "kernels/table_resource.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace sok {

namespace tf = tensorflow;
using tf::shape_inference::InferenceContext;

// The value of `after` is not read: ops that make it run before this one.
REGISTER_OP("SokEmbed>Evict")
    .Input("table: resource")
    .Input("after: float")
    .Output("keys: int64")
    .Output("embeddings: float")
    .Attr("dim: int >= 1")
    .Attr("max_age: int >= 0 = 0")
    .Attr("min_l2: float = 0.0")
    .Attr("every: int >= 1 = 1")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      int64_t dim;
      TF_RETURN_IF_ERROR(c->GetAttr("dim", &dim));
      c->set_output(0, c->Vector(c->UnknownDim()));
      c->set_output(1, c->Matrix(c->UnknownDim(), dim));
      return absl::OkStatus();
    });

class EvictOp : public tf::OpKernel {
 public:
  explicit EvictOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    int64_t max_age;
    EvictionConfig by_age, by_norm;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dim", &dim_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("max_age", &max_age));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("min_l2", &by_norm.min_l2));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("every", &every_));
    by_age.kind = "max_age";
    by_age.max_age = static_cast<uint32_t>(std::min<int64_t>(max_age, UINT32_MAX));
    by_norm.kind = "min_norm";
    if (by_age.max_age > 0) OP_REQUIRES_OK(ctx, Add(by_age));
    if (by_norm.min_l2 > 0) OP_REQUIRES_OK(ctx, Add(by_norm));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    std::shared_ptr<OpenTable> resource;
    OP_REQUIRES_OK(ctx, GetTable(ctx, &resource));
    Table& table = *resource->table();
    OP_REQUIRES(ctx, table.dim() == dim_,
                absl::InvalidArgumentError("table '" + resource->name() + "' has dim " +
                                           std::to_string(table.dim()) +
                                           ", the eviction expected " + std::to_string(dim_)));
    EvictedRows rows;
    if (resource->BeginsStep(table.steps(), every_)) {
      std::vector<const Eviction*> policies;
      for (const auto& policy : policies_) policies.push_back(policy.get());
      auto evicted = table.Evict(policies, IntraOpPool(ctx));
      OP_REQUIRES_OK(ctx, ToAbsl(evicted.status(), resource->name()));
      rows = std::move(evicted.value());
    }
    const auto n = static_cast<int64_t>(rows.keys.size());
    tf::Tensor *keys, *embeddings;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, {n}, &keys));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, {n, table.dim()}, &embeddings));
    std::copy(rows.keys.begin(), rows.keys.end(), static_cast<Key*>(keys->data()));
    std::copy(rows.embeddings.begin(), rows.embeddings.end(), embeddings->flat<float>().data());
  }

 private:
  absl::Status Add(const EvictionConfig& config) {
    auto policy = MakeEviction(config);
    if (policy.ok()) policies_.push_back(std::move(policy.value()));
    return ToAbsl(policy.status());
  }

  int dim_;
  std::vector<std::unique_ptr<Eviction>> policies_;  // a row is removed if one of them chooses it
  int64_t every_;
};

SOK_REGISTER_KERNEL("Evict", EvictOp);

}  // namespace sok
