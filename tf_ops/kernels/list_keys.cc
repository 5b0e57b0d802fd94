// SokEmbed>ListKeys: the keys of a part of a table in memory.
#include <algorithm>
#include <vector>

#include "kernels/register_kernel.h"
#include "kernels/table_resource.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace sok {

namespace tf = tensorflow;

REGISTER_OP("SokEmbed>ListKeys")
    .Input("table: resource")
    .Input("part: int64")
    .Output("keys: int64")
    .Output("parts: int64")
    .SetIsStateful()
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      tf::shape_inference::ShapeHandle unused;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 0, &unused));
      c->set_output(0, c->Vector(c->UnknownDim()));
      c->set_output(1, c->Scalar());
      return absl::OkStatus();
    });

namespace {

absl::Status ListKeys(tf::OpKernelContext* ctx, OpenTable& resource) {
  TF_RETURN_IF_ERROR(ExpectScalar(ctx->input(1), "part"));
  const auto listed = resource.table()->ListKeys(ctx->input(1).scalar<int64_t>()());
  TF_RETURN_IF_ERROR(ToAbsl(listed.status(), resource.name()));
  const std::vector<Key>& keys = listed.value();
  tf::Tensor *out, *parts;
  TF_RETURN_IF_ERROR(ctx->allocate_output(0, {static_cast<int64_t>(keys.size())}, &out));
  TF_RETURN_IF_ERROR(ctx->allocate_output(1, {}, &parts));
  std::copy(keys.begin(), keys.end(), out->flat<int64_t>().data());
  parts->scalar<int64_t>()() = resource.table()->parts();
  return absl::OkStatus();
}
SOK_REGISTER_KERNEL("ListKeys", FunctionKernel<OnTable<ListKeys>>);

}  // namespace

}  // namespace sok
