// SokEmbed>CollectionAsked reads what all workers have asked this one for, and
// SokEmbed>CollectionAnswer sends back the rows, where each table is read by an op of its own.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/collection/messages.h"
#include "kernels/collection_resource.h"
#include "kernels/host_variant.h"
#include "kernels/receipt.h"
#include "kernels/register_kernel.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace sok {

namespace tf = tensorflow;
using tf::shape_inference::InferenceContext;

namespace {

// Where the rows that were asked for lie in the answer.
struct AnswerVariant : ProcessVariant<AnswerVariant> {
  static constexpr char kName[] = "sok_embed::Answer";
  std::shared_ptr<const RowSegments> segments;
};

absl::Status GetSegments(tf::OpKernelContext* ctx, int input, int tables,
                         const RowSegments** segments) {
  const AnswerVariant* answer = nullptr;
  TF_RETURN_IF_ERROR(GetVariant(ctx, input, "answer", &answer));
  *segments = answer->segments.get();
  if (*segments != nullptr && (*segments)->tables() == static_cast<size_t>(tables)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("expected the answer to keys of these tables, got another");
}

tf::TensorShape ShapeOf(const RowSegments& segments, size_t table) {
  return {static_cast<int64_t>(segments.rows(table)), segments.dim(table)};
}

}  // namespace

REGISTER_OP("SokEmbed>CollectionAsked")
    .Input("message: int64")
    .Input("message_splits: int32")
    .Output("keys: num_tables * int64")
    .Output("counts: num_tables * int64")  // none of a table that does not count
    .Output("said: num_tables * int64")    // none of a table that says nothing
    .Output("answer: variant")
    .Attr("num_tables: int >= 1")
    .Attr("dims: list(int)")
    .Attr("counts_keys: list(bool)")
    .Attr("says: list(bool)")
    .SetShapeFn([](InferenceContext* c) {
      for (int i = 0; i + 1 < c->num_outputs(); ++i) {
        c->set_output(i, c->Vector(c->UnknownDim()));
      }
      c->set_output(c->num_outputs() - 1, c->Scalar());
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
                absl::InvalidArgumentError("expected one value a table, got others"));
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
    const auto read = ReadKeys(
        served_, message.flat<int64_t>().data(), static_cast<size_t>(message.NumElements()),
        splits.flat<int32_t>().data(), static_cast<size_t>(splits.NumElements()), Hold(message));
    OP_REQUIRES_OK(ctx, ToAbsl(read.status()));
    const AskedKeys& asked = read.value();
    const size_t tables = served_.dims.size();
    for (size_t table = 0; table < tables; ++table) {
      const auto* keys = reinterpret_cast<const int64_t*>(asked.keys);
      OP_REQUIRES_OK(ctx, Put(ctx, table, asked, table, true, keys));
      OP_REQUIRES_OK(ctx,
                     Put(ctx, tables + table, asked, table, served_.counts[table], asked.counts));
      OP_REQUIRES_OK(ctx,
                     Put(ctx, 2 * tables + table, asked, table, served_.says[table], asked.said));
    }
    AnswerVariant answer;
    answer.segments = std::make_shared<const RowSegments>(asked.answers);
    OP_REQUIRES_OK(ctx, PutVariant(ctx, static_cast<int>(3 * tables), std::move(answer)));
  }

 private:
  // Puts out what is asked of a table, or nothing.
  static absl::Status Put(tf::OpKernelContext* ctx, size_t output, const AskedKeys& asked,
                          size_t table, bool there, const int64_t* by_table) {
    const size_t first = asked.starts[table];
    const auto n = there ? static_cast<int64_t>(asked.starts[table + 1] - first) : 0;
    tf::Tensor* to = nullptr;
    TF_RETURN_IF_ERROR(ctx->allocate_output(static_cast<int>(output), {n}, &to));
    if (n > 0) std::copy_n(by_table + first, n, to->flat<int64_t>().data());
    return absl::OkStatus();
  }

  ServedTables served_;
};

SOK_REGISTER_KERNEL("CollectionAsked", CollectionAskedOp);

REGISTER_OP("SokEmbed>CollectionAnswer")
    .Input("rows: num_tables * float")
    .Input("receipts: num_tables * variant")
    .Input("answer: variant")
    .Output("message: float")
    .Output("message_splits: int32")
    .Attr("num_tables: int >= 1")
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(c->UnknownDim()));
      c->set_output(1, c->Vector(c->UnknownDim()));
      return absl::OkStatus();
    });

class CollectionAnswerOp : public tf::OpKernel {
 public:
  explicit CollectionAnswerOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_tables", &tables_));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    const RowSegments* segments = nullptr;
    OP_REQUIRES_OK(ctx, GetSegments(ctx, 2 * tables_, tables_, &segments));
    Status failure;
    std::vector<const float*> rows;
    for (int table = 0; table < tables_; ++table) {
      const Receipt* receipt = nullptr;
      OP_REQUIRES_OK(ctx, GetVariant(ctx, tables_ + table, "receipt", &receipt));
      if (failure.ok()) failure = receipt->failure;
      const tf::Tensor& of_table = ctx->input(table);
      const tf::TensorShape expected = ShapeOf(*segments, static_cast<size_t>(table));
      OP_REQUIRES(ctx, of_table.shape() == expected,
                  absl::InvalidArgumentError("expected rows of shape " + expected.DebugString() +
                                             ", got shape " + of_table.shape().DebugString()));
      rows.push_back(of_table.flat<float>().data());
    }
    const auto sizes = segments->Splits();
    OP_REQUIRES_OK(ctx, ToAbsl(sizes.status()));
    tf::Tensor *message = nullptr, *splits = nullptr;
    OP_REQUIRES_OK(ctx,
                   ctx->allocate_output(0, {static_cast<int64_t>(segments->floats())}, &message));
    OP_REQUIRES_OK(ctx,
                   ctx->allocate_output(1, {static_cast<int64_t>(segments->workers())}, &splits));
    std::copy(sizes.value().begin(), sizes.value().end(), splits->flat<int32_t>().data());
    float* const out = message->flat<float>().data();
    WriteHeaders(*segments, failure, out);  // whoever asked is told of an error
    segments->Put(rows, out, IntraOpPool(ctx));
  }

 private:
  int tables_;
};

SOK_REGISTER_KERNEL("CollectionAnswer", CollectionAnswerOp);

// A row that no feature used gets a gradient of zeros.
REGISTER_OP("SokEmbed>CollectionAnswerGradient")
    .Input("gradient: float")
    .Input("answer: variant")
    .Output("row_gradients: num_tables * float")
    .Attr("num_tables: int >= 1")
    .SetShapeFn([](InferenceContext* c) {
      for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, c->UnknownShapeOfRank(2));
      return absl::OkStatus();
    });

class CollectionAnswerGradientOp : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    const int tables = ctx->num_outputs();
    const RowSegments* segments = nullptr;
    OP_REQUIRES_OK(ctx, GetSegments(ctx, 1, tables, &segments));
    const tf::Tensor& gradient = ctx->input(0);
    OP_REQUIRES(ctx, static_cast<size_t>(gradient.NumElements()) == segments->floats(),
                absl::InvalidArgumentError("expected the gradient of a message of " +
                                           std::to_string(segments->floats()) +
                                           " floats, got shape " + gradient.shape().DebugString()));
    std::vector<float*> rows;
    for (int table = 0; table < tables; ++table) {
      tf::Tensor* of_table = nullptr;
      OP_REQUIRES_OK(ctx, ctx->allocate_output(
                              table, ShapeOf(*segments, static_cast<size_t>(table)), &of_table));
      rows.push_back(of_table->flat<float>().data());
    }
    segments->Take(gradient.flat<float>().data(), rows, IntraOpPool(ctx));
    for (size_t table = 0; table < rows.size(); ++table) {
      const auto dim = static_cast<size_t>(segments->dim(table));
      for (size_t row = 0; row < segments->rows(table); ++row) {
        float* const of_row = rows[table] + row * dim;
        if (IsUnused(of_row)) std::fill_n(of_row, dim, 0.0f);
      }
    }
  }
};

SOK_REGISTER_KERNEL("CollectionAnswerGradient", CollectionAnswerGradientOp);

[[maybe_unused]] static const bool answer_variants = RegisterHostVariant<AnswerVariant>();

}  // namespace sok
