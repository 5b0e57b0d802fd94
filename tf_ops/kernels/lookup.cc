// SokEmbed>Lookup returns embeddings of keys, and the receipt for their gradients.
#include <string>

#include "core/base/bfloat16.h"
#include "kernels/host_variant.h"
#include "kernels/lookup_kernel.h"
#include "kernels/register_kernel.h"
#include "kernels/table_resource.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace sok {

namespace tf = tensorflow;

// The anchor is an input only so that the embeddings have a gradient; its value is not read.
REGISTER_OP("SokEmbed>Lookup")
    .Input("table: resource")
    .Input("keys: Tkeys")
    .Input("anchor: float")
    .Input("counts: num_counts * int64")  // 0 or 1: how many keys of the batch each key stands for
    .Output("embeddings: dtype")
    .Output("receipt: variant")
    .Attr("Tkeys: {int32, int64, uint64}")
    .Attr("dtype: {float, bfloat16} = DT_FLOAT")
    .Attr("dim: int >= 1")
    .Attr("make_rows: bool")
    .Attr("number: int = 0")  // DepositOrder's call
    .Attr("num_counts: int >= 0 = 0")
    .Attr("reports: bool = false")  // true: an error goes into the receipt
    .SetIsStateful()
    .SetShapeFn(LookupShapes);

class LookupOp : public LookupKernel {
 public:
  explicit LookupOp(tf::OpKernelConstruction* ctx) : LookupKernel(ctx, 1, 32) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("make_rows", &make_rows_));
  }

 protected:
  absl::Status Read(tf::OpKernelContext* ctx, const tf::Tensor& keys, tf::Tensor* embeddings,
                    Receipt* receipt) const override {
    std::shared_ptr<OpenTable> resource;
    TF_RETURN_IF_ERROR(GetTable(ctx, &resource));
    Table& table = *resource->table();
    if (table.dim() != dim_) {
      return absl::InvalidArgumentError("table '" + resource->name() + "' has dim " +
                                        std::to_string(table.dim()) + ", the lookup expected " +
                                        std::to_string(dim_));
    }
    LookupKeys batch = KeysOf(keys);
    TF_RETURN_IF_ERROR(CountsOf(ctx, 3, keys, &batch.counts));
    if (batch.counts != nullptr) {
      batch.hold = std::make_shared<const std::pair<std::shared_ptr<const void>, tf::Tensor>>(
          std::move(batch.hold), ctx->input(3));
    }
    if (!make_rows_) batch.counted = table.CountOnce();
    batch.removals = table.removals();
    batch.order = {number_, table.NextLookup()};
    if (make_rows_) batch.claim = table.Claim(batch);
    Status status;
    if (embeddings->dtype() == tf::DT_FLOAT) {
      status =
          table.Lookup(batch.keys, batch.n, make_rows_, static_cast<float*>(embeddings->data()),
                       IntraOpPool(ctx), nullptr, batch.counts);
    } else {
      status =
          table.Lookup(batch.keys, batch.n, make_rows_, static_cast<BFloat16*>(embeddings->data()),
                       IntraOpPool(ctx), nullptr, batch.counts);
    }
    TF_RETURN_IF_ERROR(ToAbsl(status, resource->name()));
    batch.rows_made = make_rows_;
    const size_t n = batch.n;
    *receipt = ReceiptOf(resource->table(), resource->name(), n, std::move(batch));
    return absl::OkStatus();
  }

 private:
  bool make_rows_;
};

SOK_REGISTER_KERNEL("Lookup", LookupOp);

[[maybe_unused]] static const bool receipts = RegisterHostVariant<Receipt>();

}  // namespace sok
