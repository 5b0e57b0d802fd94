// SokEmbed>LookupOnGpu: a lookup whose keys and vectors are in the memory of the GPU that has the
// table's rows. SokEmbed>TableToken stands for the table. The rows of a saved model may lie
// elsewhere when it is loaded; then keys and vectors are copied.
#include <memory>
#include <string>
#include <utility>

#include "core/base/bfloat16.h"
#include "kernels/gpu_copies.h"
#include "kernels/gpu_rows_elsewhere.h"
#include "kernels/host_variant.h"
#include "kernels/lookup_kernel.h"
#include "kernels/receipt_on_gpu.h"
#include "kernels/register_kernel.h"
#include "kernels/table_resource.h"
#include "kernels/table_token.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "xla/stream_executor/stream.h"

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

// The anchor is not read, as in SokEmbed>Lookup.
REGISTER_OP("SokEmbed>LookupOnGpu")
    .Input("token: variant")
    .Input("keys: int64")
    .Input("anchor: float")
    .Output("embeddings: dtype")
    .Output("receipt: variant")
    .Attr("dtype: {float, bfloat16} = DT_FLOAT")
    .Attr("dim: int >= 1")
    .Attr("make_rows: bool")
    .Attr("number: int = 0")  // DepositOrder's call
    .SetIsStateful()
    .SetShapeFn(LookupShapes);

// With kOnGpu keys and vectors are in the memory of a GPU, else in the host's.
template <bool kOnGpu>
class LookupOnGpuOp : public tf::OpKernel {
 public:
  explicit LookupOnGpuOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dim", &dim_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("make_rows", &make_rows_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("number", &number_));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    std::shared_ptr<OpenTable> found;
    OP_REQUIRES_OK(ctx, GetTableOfToken(ctx, 0, &found));
    OpenTable& resource = *found;
    const tf::Tensor& keys = ctx->input(1);
    OP_REQUIRES(
        ctx, resource.table()->dim() == dim_ && keys.NumElements() < (int64_t{1} << 31) - 1,
        absl::InvalidArgumentError(
            "table '" + resource.name() + "' has dim " + std::to_string(resource.table()->dim()) +
            "; expected a lookup of that dim and of fewer than 2^31 keys, got dim " +
            std::to_string(dim_) + " and " + std::to_string(keys.NumElements()) + " keys"));
    tf::TensorShape shape = keys.shape();
    shape.AddDim(dim_);
    tf::Tensor *embeddings = nullptr, *receipt = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &embeddings));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, {}, &receipt));
    Receipt made;
    OP_REQUIRES_OK(ctx, Run(ctx, &resource, keys, embeddings, &made));
    receipt->scalar<tf::Variant>()() = std::move(made);
  }

 private:
  absl::Status Run(tf::OpKernelContext* ctx, OpenTable* resource, const tf::Tensor& keys,
                   tf::Tensor* embeddings, Receipt* receipt) const {
    if constexpr (kOnGpu) {
      // This is the stream on which TensorFlow queues the work of all ops of the device.
      void* const stream = ctx->op_device_context()->stream()->platform_specific_handle().stream;
      if (resource->table()->LooksUpOnGpu(stream)) {
        return LookUpOnGpu(stream, *resource, keys, embeddings, receipt);
      }
      LogCopies(*ctx->device(), resource);
      tf::Tensor keys_on_host, embeddings_on_host;
      TF_RETURN_IF_ERROR(CopyFromGpu(ctx, keys, &keys_on_host));
      TF_RETURN_IF_ERROR(
          AllocatePinned(ctx, embeddings->dtype(), embeddings->shape(), &embeddings_on_host));
      TF_RETURN_IF_ERROR(LookUpOnHost(ctx, *resource, keys_on_host, &embeddings_on_host, receipt));
      return CopyToGpu(ctx, embeddings_on_host, embeddings);
    } else {
      return LookUpOnHost(ctx, *resource, keys, embeddings, receipt);
    }
  }

  LookupKeys BatchOf(Table* table, const tf::Tensor& keys) const {
    LookupKeys batch = KeysOf(keys);
    batch.removals = table->removals();
    batch.order = {number_, table->NextLookup()};
    batch.rows_made = make_rows_;
    return batch;
  }

  absl::Status LookUpOnGpu(void* stream, const OpenTable& resource, const tf::Tensor& keys,
                           tf::Tensor* embeddings, Receipt* receipt) const {
    Table& table = *resource.table();
    LookupKeys batch = BatchOf(&table, keys);
    batch.on_gpu = true;
    batch.stream = stream;
    const Status status = table.LookupOnGpu(batch.keys, batch.n, make_rows_, embeddings->data(),
                                            embeddings->dtype() == tf::DT_BFLOAT16, batch.stream);
    const size_t n = batch.n;
    *receipt = ReceiptOnGpu(resource, n, std::move(batch));
    return ToAbsl(status, resource.name());
  }

  absl::Status LookUpOnHost(tf::OpKernelContext* ctx, const OpenTable& resource,
                            const tf::Tensor& keys, tf::Tensor* embeddings,
                            Receipt* receipt) const {
    Table& table = *resource.table();
    LookupKeys batch = BatchOf(&table, keys);
    if (make_rows_) {
      batch.claim = table.Claim(batch);
    } else {
      batch.counted = table.CountOnce();
    }
    const auto look_up = [&](auto* out) {
      return table.Lookup(batch.keys, batch.n, make_rows_, out, IntraOpPool(ctx));
    };
    const Status status = embeddings->dtype() == tf::DT_FLOAT
                              ? look_up(static_cast<float*>(embeddings->data()))
                              : look_up(static_cast<BFloat16*>(embeddings->data()));
    const size_t n = batch.n;
    *receipt = ReceiptOf(resource.table(), resource.name(), n, std::move(batch));
    return ToAbsl(status, resource.name());
  }

  int dim_;
  int64_t number_;
  bool make_rows_;
};

SOK_REGISTER_CPU_KERNEL("LookupOnGpu", LookupOnGpuOp<false>);
[[maybe_unused]] static const bool gpu_lookup =
    RegisterGpuKernel("SokEmbed>LookupOnGpu", "LookupOnGpuOp",
                      NewKernel<Guarded<LookupOnGpuOp<true>>>, {"token", "receipt"});

}  // namespace sok
