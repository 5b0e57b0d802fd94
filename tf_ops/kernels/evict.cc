// SokEmbed>Evict: removes rows by age and by norm.
#include <algorithm>
#include <string>

#include "kernels/guarded_kernel.h"
#include "kernels/table_resource.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace sok {

namespace tf = tensorflow;
using tf::shape_inference::InferenceContext;

// `after` is not read: what must have happened before.
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
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dim", &dim_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("max_age", &max_age));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("min_l2", &options_.min_l2));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("every", &every_));
    options_.max_age = static_cast<uint32_t>(std::min<int64_t>(max_age, UINT32_MAX));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    tf::core::RefCountPtr<TableResource> resource;
    OP_REQUIRES_OK(ctx, GetTable(ctx, &resource));
    Table& table = *resource->table();
    OP_REQUIRES(ctx, table.dim() == dim_,
                absl::InvalidArgumentError("table '" + resource->name() + "' has dim " +
                                           std::to_string(table.dim()) +
                                           ", the eviction expected " + std::to_string(dim_)));
    EvictedRows rows;
    if (resource->BeginsStep(table.steps(), every_)) {
      auto evicted = table.Evict(options_, IntraOpPool(ctx));
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
  int dim_;
  EvictOptions options_;
  int64_t every_;
};

SOK_REGISTER_KERNEL("Evict", EvictOp);

}  // namespace sok
