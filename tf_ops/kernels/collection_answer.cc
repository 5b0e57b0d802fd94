// SokEmbed>CollectionAsked reads the keys that all workers have asked this one for.
// SokEmbed>CollectionAnswer makes the message of their rows, or of an error. In between an op of
// each table reads its rows.
#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "core/collection/key_messages.h"
#include "core/collection/row_messages.h"
#include "kernels/collection_resource.h"
#include "kernels/host_variant.h"
#include "kernels/receipt.h"
#include "kernels/register_kernel.h"
#include "kernels/served_on_gpu.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace sok {

namespace tf = tensorflow;
using tf::shape_inference::InferenceContext;

[[maybe_unused]] static const bool asked_keys_variants = RegisterHostVariant<AskedKeysVariant>();

// A lookup on a GPU takes `splits` and `asked`. If a table pools there, its keys are followed by
// those of all bags, and its splits are those of each feature of each worker whose bags have
// several lengths.
REGISTER_OP("SokEmbed>CollectionAsked")
    .Input("message: int64")
    .Input("message_splits: int32")
    .Output("keys: num_tables * int64")
    .Output("counts: num_tables * int64")  // empty for a table that does not count
    .Output("said: num_tables * int64")    // empty unless the table `says`
    .Output("sizes: int32")                // (workers, tables) floats of the rows in the answer
    .Output("splits: num_splits * int64")
    .Output("asked: num_asked * variant")
    .Attr("num_tables: int >= 1")
    .Attr("dims: list(int)")
    .Attr("counts_keys: list(bool)")
    .Attr("says: list(bool)")
    .Attr("num_splits: int >= 0 = 0")    // num_tables, with `asked`
    .Attr("num_asked: int >= 0 = 0")     // 0 or 1
    .Attr("placements: list(int) = []")  // (tables) of TablePlacement, like the next
    .Attr("pools: list(bool) = []")
    .Attr("rank: int >= 0 = 0")
    .SetShapeFn([](InferenceContext* c) {
      int tables, asked;
      TF_RETURN_IF_ERROR(c->GetAttr("num_tables", &tables));
      TF_RETURN_IF_ERROR(c->GetAttr("num_asked", &asked));
      for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, c->Vector(c->UnknownDim()));
      c->set_output(3 * tables, c->Matrix(c->UnknownDim(), tables));
      if (asked > 0) c->set_output(c->num_outputs() - 1, c->Scalar());
      return absl::OkStatus();
    });

class CollectionAskedOp : public tf::OpKernel {
 public:
  explicit CollectionAskedOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    std::vector<int64_t> dims;
    int64_t tables, asked, rank;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_tables", &tables));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dims", &dims));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("counts_keys", &served_.counts));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("says", &served_.says));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_asked", &asked));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("rank", &rank));
    const auto expected = static_cast<size_t>(tables);
    OP_REQUIRES(ctx,
                dims.size() == expected && served_.counts.size() == expected &&
                    served_.says.size() == expected && asked <= 1 &&
                    ctx->num_outputs() == (3 + asked) * tables + 1 + asked,
                UnfitAttributes(ctx->def(), "one value a table"));
    for (int64_t dim : dims) {
      OP_REQUIRES(
          ctx, dim >= 1 && dim <= Table::kMostDim,
          absl::InvalidArgumentError("expected a dim of at least 1, got " + std::to_string(dim)));
      served_.dims.push_back(static_cast<int>(dim));
    }
    on_gpu_ = asked == 1;
    if (on_gpu_) {
      OP_REQUIRES_OK(ctx, ReadPlacements(ctx, false, expected, 1, &served_.placements));
    } else {
      served_.placements.resize(expected);
    }
    served_.rank = static_cast<size_t>(rank);
  }

  void Compute(tf::OpKernelContext* ctx) override {
    const tf::Tensor &message = ctx->input(0), &splits = ctx->input(1);
    OP_REQUIRES(ctx,
                message.dims() == 1 && splits.dims() == 1 &&
                    splits.NumElements() > static_cast<int64_t>(served_.rank),
                absl::InvalidArgumentError("expected a message and splits of each worker, got "
                                           "shapes " +
                                           message.shape().DebugString() + " and " +
                                           splits.shape().DebugString()));
    auto found = FindKeys(served_, message.flat<int64_t>().data(),
                          static_cast<size_t>(message.NumElements()), splits.flat<int32_t>().data(),
                          static_cast<size_t>(splits.NumElements()), Hold(message));
    OP_REQUIRES_OK(ctx, ToAbsl(found.status()));
    const AskedKeys& asked = found.value();
    for (size_t table = 0; table < served_.dims.size(); ++table) {
      OP_REQUIRES_OK(ctx, PutKeysOf(ctx, asked, table));
    }
    OP_REQUIRES_OK(ctx, PutSizes(ctx, asked.answers));
    if (!on_gpu_) return;
    AskedKeysVariant variant;
    variant.asked = std::make_shared<const AskedKeys>(std::move(found.value()));
    variant.on_all = OnAll(served_.placements);
    OP_REQUIRES_OK(ctx, PutVariant(ctx, ctx->num_outputs() - 1, std::move(variant)));
  }

 private:
  absl::Status PutKeysOf(tf::OpKernelContext* ctx, const AskedKeys& asked, size_t table) const {
    const size_t tables = served_.dims.size(), n = asked.starts[table + 1] - asked.starts[table];
    size_t of_bags = 0, all_splits = 0;
    for (const AskedBags& each : asked.bags[table]) {
      of_bags += each.bags.n;
      if (each.bags.splits != nullptr) all_splits += each.bags.bags + 1;
    }
    int64_t *keys, *counts, *said, *splits;
    TF_RETURN_IF_ERROR(Allocate(ctx, table, n + of_bags, &keys));
    TF_RETURN_IF_ERROR(Allocate(ctx, tables + table, served_.counts[table] ? n : 0, &counts));
    TF_RETURN_IF_ERROR(Allocate(ctx, 2 * tables + table, served_.says[table] ? n : 0, &said));
    CopyKeys(served_, asked, table, reinterpret_cast<Key*>(keys), counts, said);
    if (!on_gpu_) return absl::OkStatus();
    TF_RETURN_IF_ERROR(Allocate(ctx, 3 * tables + 1 + table, all_splits, &splits));
    keys += n;
    for (const AskedBags& each : asked.bags[table]) {
      std::copy_n(each.bags.keys, each.bags.n, reinterpret_cast<Key*>(keys));
      keys += each.bags.n;
      if (each.bags.splits != nullptr) {
        splits = std::copy_n(each.bags.splits, each.bags.bags + 1, splits);
      }
    }
    return absl::OkStatus();
  }

  absl::Status PutSizes(tf::OpKernelContext* ctx, const RowSegments& rows) const {
    TF_RETURN_IF_ERROR(ToAbsl(rows.Splits().status()));
    const size_t tables = served_.dims.size();
    tf::Tensor* sizes = nullptr;
    TF_RETURN_IF_ERROR(ctx->allocate_output(
        static_cast<int>(3 * tables),
        {static_cast<int64_t>(rows.workers()), static_cast<int64_t>(tables)}, &sizes));
    for (size_t i = 0; i < rows.workers() * tables; ++i) {
      const size_t floats = rows.count(i / tables, i % tables) * rows.dim(i % tables);
      sizes->flat<int32_t>()(static_cast<int64_t>(i)) = static_cast<int32_t>(floats);
    }
    return absl::OkStatus();
  }

  static absl::Status Allocate(tf::OpKernelContext* ctx, size_t output, size_t n, int64_t** place) {
    tf::Tensor* to = nullptr;
    TF_RETURN_IF_ERROR(
        ctx->allocate_output(static_cast<int>(output), {static_cast<int64_t>(n)}, &to));
    *place = to->flat<int64_t>().data();
    return absl::OkStatus();
  }

  ServedTables served_;
  bool on_gpu_;
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
