// SokEmbed>TableToken stands for a table, whose handle stays on the CPU, on a GPU.
#include "kernels/table_token.h"

#include <memory>
#include <utility>

#include "kernels/host_variant.h"
#include "kernels/register_kernel.h"
#include "kernels/table_resource.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace sok {

namespace tf = tensorflow;

[[maybe_unused]] static const bool table_tokens = RegisterHostVariant<TableToken>();

REGISTER_OP("SokEmbed>TableToken")
    .Input("table: resource")
    .Output("token: variant")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::ScalarShape);

absl::Status PutTableToken(tf::OpKernelContext* ctx) {
  std::shared_ptr<OpenTable> table;
  TF_RETURN_IF_ERROR(GetTable(ctx, &table));
  tf::Tensor* token = nullptr;
  TF_RETURN_IF_ERROR(ctx->allocate_output(0, {}, &token));
  token->scalar<tf::Variant>()() = TableToken{std::move(table)};
  return absl::OkStatus();
}
SOK_REGISTER_KERNEL("TableToken", FunctionKernel<PutTableToken>);

}  // namespace sok
