// SokEmbed>CollectionAsked reads the keys that all workers have asked this one for.
// SokEmbed>CollectionAnswer makes the message of their rows, or of an error. In between an op of
// each table reads its rows.
#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "core/collection/key_messages.h"
#include "core/collection/row_messages.h"
#include "kernels/collection_resource.h"
#include "kernels/receipt.h"
#include "kernels/register_kernel.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace sok {

namespace tf = tensorflow;
using tf::shape_inference::InferenceContext;

REGISTER_OP("SokEmbed>CollectionAsked")
    .Input("message: int64")
    .Input("message_splits: int32")
    .Output("keys: num_tables * int64")
    .Output("counts: num_tables * int64")  // empty for a table that does not count
    .Output("said: num_tables * int64")    // empty unless the table `says`
    .Output("sizes: int32")                // (workers, tables) floats of the rows in the answer
    .Attr("num_tables: int >= 1")
    .Attr("dims: list(int)")
    .Attr("counts_keys: list(bool)")
    .Attr("says: list(bool)")
    .SetShapeFn([](InferenceContext* c) {
      for (int i = 0; i + 1 < c->num_outputs(); ++i) {
        c->set_output(i, c->Vector(c->UnknownDim()));
      }
      c->set_output(c->num_outputs() - 1, c->Matrix(c->UnknownDim(), c->num_outputs() / 3));
      return absl::OkStatus();
    });

class CollectionAskedOp : public tf::OpKernel {
 public:
  explicit CollectionAskedOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    std::vector<int64_t> dims;
    int64_t tables;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_tables", &tables));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dims", &dims));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("counts_keys", &served_.counts));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("says", &served_.says));
    const auto expected = static_cast<size_t>(tables);
    OP_REQUIRES(ctx,
                dims.size() == expected && served_.counts.size() == expected &&
                    served_.says.size() == expected,
                UnfitAttributes(ctx->def(), "one value a table"));
    for (int64_t dim : dims) {
      OP_REQUIRES(
          ctx, dim >= 1 && dim <= Table::kMostDim,
          absl::InvalidArgumentError("expected a dim of at least 1, got " + std::to_string(dim)));
      served_.dims.push_back(static_cast<int>(dim));
    }
    served_.placements.resize(expected);
  }

  void Compute(tf::OpKernelContext* ctx) override {
    const tf::Tensor &message = ctx->input(0), &splits = ctx->input(1);
    OP_REQUIRES(ctx, message.dims() == 1 && splits.dims() == 1 && splits.NumElements() > 0,
                absl::InvalidArgumentError("expected a message and splits of each worker, got "
                                           "shapes " +
                                           message.shape().DebugString() + " and " +
                                           splits.shape().DebugString()));
    const auto found = FindKeys(
        served_, message.flat<int64_t>().data(), static_cast<size_t>(message.NumElements()),
        splits.flat<int32_t>().data(), static_cast<size_t>(splits.NumElements()), Hold(message));
    OP_REQUIRES_OK(ctx, ToAbsl(found.status()));
    const AskedKeys& asked = found.value();
    const size_t tables = served_.dims.size();
    for (size_t table = 0; table < tables; ++table) {
      int64_t *keys, *counts, *said;
      OP_REQUIRES_OK(ctx, Allocate(ctx, table, asked, table, true, &keys));
      OP_REQUIRES_OK(ctx,
                     Allocate(ctx, tables + table, asked, table, served_.counts[table], &counts));
      OP_REQUIRES_OK(ctx,
                     Allocate(ctx, 2 * tables + table, asked, table, served_.says[table], &said));
      CopyKeys(served_, asked, table, reinterpret_cast<Key*>(keys), counts, said);
    }
    const RowSegments& rows = asked.answers;
    OP_REQUIRES_OK(ctx, ToAbsl(rows.Splits().status()));
    tf::Tensor* sizes = nullptr;
    const auto workers = static_cast<int64_t>(rows.workers());
    OP_REQUIRES_OK(ctx, ctx->allocate_output(static_cast<int>(3 * tables),
                                             {workers, static_cast<int64_t>(tables)}, &sizes));
    for (size_t i = 0; i < rows.workers() * tables; ++i) {
      const size_t floats = rows.count(i / tables, i % tables) * rows.dim(i % tables);
      sizes->flat<int32_t>()(static_cast<int64_t>(i)) = static_cast<int32_t>(floats);
    }
  }

 private:
  // Makes an output with an element for each key of a table, or an empty one.
  static absl::Status Allocate(tf::OpKernelContext* ctx, size_t output, const AskedKeys& asked,
                               size_t table, bool there, int64_t** place) {
    const auto n = there ? static_cast<int64_t>(asked.segments.rows(table)) : 0;
    tf::Tensor* to = nullptr;
    TF_RETURN_IF_ERROR(ctx->allocate_output(static_cast<int>(output), {n}, &to));
    *place = to->flat<int64_t>().data();
    return absl::OkStatus();
  }

  ServedTables served_;
};

SOK_REGISTER_KERNEL("CollectionAsked", CollectionAskedOp);

REGISTER_OP("SokEmbed>CollectionAnswer")
    .Input("rows: float")
    .Input("row_splits: int32")
    .Input("receipts: num_tables * variant")
    .Output("message: float")
    .Output("message_splits: int32")
    .Attr("num_tables: int >= 1")
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(c->UnknownDim()));
      c->set_output(1, c->input(1));
      return absl::OkStatus();
    });

class CollectionAnswerOp : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    const auto of_workers = ctx->input(1).flat<int32_t>();
    const std::vector<int32_t> splits(of_workers.data(), of_workers.data() + of_workers.size());
    const int64_t floats = std::accumulate(splits.begin(), splits.end(), int64_t{0});
    OP_REQUIRES(ctx, ctx->input(0).NumElements() == floats,
                absl::InvalidArgumentError("expected " + std::to_string(floats) +
                                           " floats of rows, got shape " +
                                           ctx->input(0).shape().DebugString()));
    Status failure;
    for (int input = ctx->num_inputs() - 1; input >= 2; --input) {
      const Receipt* receipt = nullptr;
      OP_REQUIRES_OK(ctx, GetVariant(ctx, input, "receipt", &receipt));
      if (!receipt->failure.ok()) failure = receipt->failure;
    }
    OP_REQUIRES_OK(ctx, PutAnswer(ctx, ctx->input(0), splits, failure));
  }
};

SOK_REGISTER_KERNEL("CollectionAnswer", CollectionAnswerOp);

}  // namespace sok
