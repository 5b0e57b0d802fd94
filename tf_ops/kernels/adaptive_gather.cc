// SokEmbed>AdaptiveMaskGather: rows of a static variable and rows of a table, each into its place.
#include <memory>
#include <string>
#include <utility>

#include "kernels/lookup_kernel.h"
#include "kernels/mask_gather_on_host.h"
#include "kernels/register_kernel.h"
#include "kernels/table_resource.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace sok {

namespace tf = tensorflow;
using tf::shape_inference::InferenceContext;
using tf::shape_inference::ShapeHandle;

// The anchor is an input only so that the embeddings of own rows have a gradient; its value is not
// read. `own` is true for each embedding of an own row: a key without a row gets its static row,
// even if its mask is 1. With hash_keys the input `buckets` is not read: buckets are hashes of the
// keys' decimal digits, and are an output for the keys whose static row was read. Without
// own_gradient the receipt takes no deposit.
REGISTER_OP("SokEmbed>AdaptiveMaskGather")
    .Input("table: resource")
    .Input("static_rows: resource")
    .Input("keys: int64")
    .Input("buckets: int64")
    .Input("mask: int32")
    .Input("anchor: float")
    .Input("counts: num_counts * int64")  // 0 or 1: how many keys of the batch each key stands for
    .Output("embeddings: dtype")
    .Output("receipt: variant")
    .Output("own: bool")
    .Output("hashed_buckets: int64")
    .Attr("dtype: {float, bfloat16} = DT_FLOAT")
    .Attr("dim: int >= 1")
    .Attr("make_rows: bool")
    .Attr("copy_slots: bool = true")
    .Attr("hash_keys: bool = false")
    .Attr("own_gradient: bool = true")
    .Attr("number: int = 0")  // DepositOrder's call
    .Attr("num_counts: int >= 0 = 0")
    .Attr("reports: bool = false")  // true: an error goes into the receipt
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      int64_t dim;
      TF_RETURN_IF_ERROR(c->GetAttr("dim", &dim));
      bool hash_keys;
      TF_RETURN_IF_ERROR(c->GetAttr("hash_keys", &hash_keys));
      ShapeHandle keys, out;
      TF_RETURN_IF_ERROR(c->Merge(c->input(2), c->input(4), &keys));
      if (!hash_keys) TF_RETURN_IF_ERROR(c->Merge(keys, c->input(3), &keys));
      TF_RETURN_IF_ERROR(c->Concatenate(keys, c->Vector(dim), &out));
      c->set_output(0, out);
      c->set_output(1, c->Scalar());
      c->set_output(2, keys);
      c->set_output(3, hash_keys ? keys : c->Vector(0));
      return absl::OkStatus();
    });

namespace {

class AdaptiveMaskGatherOp : public LookupKernel {
 public:
  explicit AdaptiveMaskGatherOp(tf::OpKernelConstruction* ctx) : LookupKernel(ctx, 2, 31) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("make_rows", &make_rows_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("copy_slots", &copy_slots_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("hash_keys", &hash_keys_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("own_gradient", &own_gradient_));
  }

 protected:
  absl::Status Read(tf::OpKernelContext* ctx, const tf::Tensor& keys, tf::Tensor* embeddings,
                    Receipt* receipt) const override {
    Outputs outputs{embeddings, nullptr, nullptr};
    const tf::TensorShape hashed = hash_keys_ ? keys.shape() : tf::TensorShape({0});
    TF_RETURN_IF_ERROR(ctx->allocate_output(2, keys.shape(), &outputs.own));
    TF_RETURN_IF_ERROR(ctx->allocate_output(3, hashed, &outputs.hashed));
    std::shared_ptr<OpenTable> resource;
    absl::Status status = GetTable(ctx, &resource);
    if (status.ok()) {
      status = Run(ctx, *resource, outputs, receipt);
      if (status.ok()) return status;
      status = absl::Status(status.code(),
                            absl::StrCat("table '", resource->name(), "': ", status.message()));
    }
    outputs.own->flat<bool>().setConstant(false);
    outputs.hashed->flat<int64_t>().setZero();
    return status;
  }

 private:
  struct Outputs {
    tf::Tensor *embeddings, *own, *hashed;
  };

  absl::Status CheckInputs(tf::OpKernelContext* ctx, const Table& table) const {
    const tf::Tensor &keys = ctx->input(2), &buckets = ctx->input(3), &mask = ctx->input(4);
    if (table.dim() != dim_) {
      return absl::InvalidArgumentError("it has dim " + std::to_string(table.dim()) +
                                        ", the lookup expected " + std::to_string(dim_));
    }
    if ((!hash_keys_ && keys.shape() != buckets.shape()) || keys.shape() != mask.shape()) {
      return absl::InvalidArgumentError(
          "expected keys, buckets and a mask of one shape, got shapes " +
          keys.shape().DebugString() + ", " + buckets.shape().DebugString() + " and " +
          mask.shape().DebugString());
    }
    return absl::OkStatus();
  }

  absl::Status Run(tf::OpKernelContext* ctx, const OpenTable& resource, const Outputs& outputs,
                   Receipt* receipt) const {
    TF_RETURN_IF_ERROR(CheckInputs(ctx, *resource.table()));
    TF_RETURN_IF_ERROR(ExpectScalar(ctx->input(1), "static_rows"));
    const tf::Tensor &keys = ctx->input(2), &buckets = ctx->input(3), &mask = ctx->input(4);
    const DepositOrder order = {number_, resource.table()->NextLookup()};
    tf::core::RefCountPtr<tf::Var> variable;
    TF_RETURN_IF_ERROR(tf::LookupResource(ctx, tf::HandleFromInput(ctx, 1), &variable));
    MaskedLookup lookup;
    lookup.mask = mask.flat<int32_t>().data();
    TF_RETURN_IF_ERROR(CountsOf(ctx, 6, keys, &lookup.counts));
    lookup.given = hash_keys_ ? nullptr : buckets.flat<int64_t>().data();
    lookup.hashed = outputs.hashed->flat<int64_t>().data();
    lookup.own = outputs.own->flat<bool>().data();
    return MaskGatherOnHost(ctx, resource, *variable, nullptr, lookup, keys, *outputs.own,
                            {dim_, make_rows_, copy_slots_, own_gradient_, order},
                            outputs.embeddings, receipt);
  }

  bool make_rows_, copy_slots_, hash_keys_, own_gradient_;
};

SOK_REGISTER_CPU_KERNEL("AdaptiveMaskGather", AdaptiveMaskGatherOp);

}  // namespace

}  // namespace sok
