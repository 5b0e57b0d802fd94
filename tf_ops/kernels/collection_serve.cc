// SokEmbed>CollectionServe reads the rows that all workers have asked this one for.
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "core/collection/key_messages.h"
#include "core/collection/row_messages.h"
#include "kernels/collection_resource.h"
#include "kernels/host_memory.h"
#include "kernels/receipt.h"
#include "kernels/register_kernel.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace sok {

namespace tf = tensorflow;

namespace {

// Makes the receipt that takes the gradients of rows in the layout of the message in which the rows
// were sent.
Receipt ReceiptOf(const OpenCollection& collection, const RowSegments& segments,
                  CollectionKeys keys) {
  return {collection.name, segments.floats(), 1,
          [tables = collection.tables, segments, keys = std::move(keys)](
              int64_t number, std::shared_ptr<const void> hold, const float* gradients,
              const BFloat16* gradients_bf16, const AnchorGradient& anchor,
              const ParallelFor& parallel_for) {
            if (gradients_bf16 != nullptr) return InvalidArgument("expected gradients of float32");
            CollectionKeys deposited = keys;
            deposited.order.gradient = number;
            auto copy = std::make_shared<std::vector<float>>();
            const float* rows = segments.ByTable(gradients, copy.get(), parallel_for);
            if (rows == copy->data()) hold = std::move(copy);
            tables->Deposit(std::move(deposited), std::move(hold), rows, anchor, parallel_for);
            return Status();
          }};
}

}  // namespace

REGISTER_OP("SokEmbed>CollectionServe")
    .Input("queue: resource")
    .Input("tables: num_tables * resource")
    .Input("message: int64")
    .Input("message_splits: int32")
    .Input("anchor: float")
    .Output("rows: float")
    .Output("row_splits: int32")
    .Output("receipt: variant")
    .Attr("num_tables: int >= 0")  // 0: the tables of the queue
    .Attr("make_rows: bool")
    .Attr("trainable: list(bool)")  // (tables)
    .Attr("placements: list(int)")  // (tables) of TablePlacement, like the next
    .Attr("pools: list(bool)")
    .Attr("rank: int >= 0")
    .Attr("packed: bool")           // rows go as bfloat16, two to a float
    .Attr("counted: bool = false")  // true: another lookup has counted the keys
    .Attr("number: int = 0")        // DepositOrder's call
    .SetIsStateful()
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      c->set_output(0, c->Vector(c->UnknownDim()));
      c->set_output(1, c->input(c->num_inputs() - 2));
      c->set_output(2, c->Scalar());
      return absl::OkStatus();
    });

class CollectionServeOp : public tf::OpKernel {
 public:
  explicit CollectionServeOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("make_rows", &make_rows_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("trainable", &trainable_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("number", &number_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("rank", &rank_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("packed", &packed_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("counted", &counted_));
    std::vector<int64_t> kinds;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("placements", &kinds));
    OP_REQUIRES_OK(ctx, ReadPlacements(ctx, false, kinds.size(), 1, &placements_));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    OpenCollection collection;
    OP_REQUIRES_OK(ctx, GetCollection(ctx, &collection, placements_, static_cast<size_t>(rank_)));
    OP_REQUIRES(ctx, trainable_.size() == collection.tables->members().size(),
                UnfitAttributes(def(), "trainable of each table"));
    OP_REQUIRES(ctx, placements_.size() == trainable_.size(),
                UnfitAttributes(def(), "a placement of each table"));
    const tf::Tensor& message = ctx->input(ctx->num_inputs() - 3);
    const tf::Tensor& splits = ctx->input(ctx->num_inputs() - 2);
    OP_REQUIRES(ctx, splits.dims() == 1 && splits.NumElements() > rank_,
                absl::InvalidArgumentError("expected splits of each worker, got shape " +
                                           splits.shape().DebugString()));
    const ParallelFor parallel_for = IntraOpPool(ctx);
    const auto workers = static_cast<size_t>(splits.NumElements());
    auto asked = ReadKeys(collection.tables->served(), message.flat<int64_t>().data(),
                          static_cast<size_t>(message.NumElements()), splits.flat<int32_t>().data(),
                          workers, Hold(message));
    OP_REQUIRES_OK(ctx, ToAbsl(asked.status(), ""));
    asked.value().counted = counted_;
    const RowSegments& answers = asked.value().answers;
    const auto row_splits = packed_ ? PackedSplits(answers) : answers.Splits();
    OP_REQUIRES_OK(ctx, ToAbsl(row_splits.status()));
    tf::Tensor rows;
    const int64_t floats =
        std::accumulate(row_splits.value().begin(), row_splits.value().end(), int64_t{0});
    OP_REQUIRES_OK(ctx, AllocateOnHost(ctx, tf::DT_FLOAT, {floats}, &rows));
    CollectionKeys looked_up;
    std::vector<float> copy, unpacked;
    if (packed_) unpacked.resize(answers.floats());
    float* const out = packed_ ? unpacked.data() : rows.flat<float>().data();
    float* const by_table = answers.ByTable(out, &copy);
    const Status status = OrNoMemory([&] {
      return collection.tables->Lookup(asked.value(), make_rows_, trainable_, by_table, &looked_up,
                                       parallel_for);
    });
    OP_REQUIRES(ctx, status.ok() || workers > 1, ToAbsl(status));
    answers.FromTables(by_table, out, parallel_for);
    if (packed_) PackRows(answers, out, rows.flat<float>().data(), parallel_for);
    OP_REQUIRES_OK(ctx, PutAnswer(ctx, rows, row_splits.value(), status));
    looked_up.order.call = number_;
    tf::Tensor* receipt = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(2, {}, &receipt));
    receipt->scalar<tf::Variant>()() =
        ReceiptOf(collection, asked.value().segments, std::move(looked_up));
  }

 private:
  bool make_rows_;
  std::vector<bool> trainable_;
  std::vector<TablePlacement> placements_;
  int64_t number_, rank_;
  bool packed_, counted_;
};

SOK_REGISTER_KERNEL("CollectionServe", CollectionServeOp);

}  // namespace sok
