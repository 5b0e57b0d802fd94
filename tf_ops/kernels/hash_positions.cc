// SokEmbed>HashCells, which shows where a hashed bag's elements lie, and SokEmbed>RowSplits.
#include <string>
#include <vector>

#include "core/bags/bags.h"
#include "core/bags/position_map.h"
#include "kernels/register_kernel.h"
#include "kernels/table_resource.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace sok {

namespace tf = tensorflow;
using tf::shape_inference::DimensionHandle;
using tf::shape_inference::InferenceContext;
using tf::shape_inference::ShapeHandle;

REGISTER_OP("SokEmbed>HashPositions")
    .Input("ids: int64")
    .Input("size: int64")
    .Output("positions: int64")
    .Output("signs: int8")
    .Attr("embedding_dim: int >= 1")
    .Attr("hash: {'mixed', 'original', 'modulo'}")
    .Attr("seed: int")
    .Attr("sign: bool")
    .Attr("block_size: int >= 1")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle ids;
      int64_t dim;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &ids));
      TF_RETURN_IF_ERROR(c->GetAttr("embedding_dim", &dim));
      c->set_output(0, c->Matrix(c->Dim(ids, 0), dim));
      c->set_output(1, c->Matrix(c->Dim(ids, 0), dim));
      return absl::OkStatus();
    });

class HashPositionsOp : public tf::OpKernel {
 public:
  explicit HashPositionsOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    std::string hash;
    int64_t seed;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("embedding_dim", &options_.dim));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("hash", &hash));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("seed", &seed));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("sign", &options_.sign));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("block_size", &options_.block_size));
    const Result<PositionHash> named = PositionHashNamed(hash);
    OP_REQUIRES_OK(ctx, ToAbsl(named.status()));
    options_.hash = named.value();
    options_.seed = static_cast<uint64_t>(seed);
    options_.num_embeddings = INT64_MAX / options_.dim;
  }

  void Compute(tf::OpKernelContext* ctx) override {
    OP_REQUIRES(ctx, ctx->input(0).dims() == 1,
                absl::InvalidArgumentError("expected ids of one dimension, got shape " +
                                           ctx->input(0).shape().DebugString()));
    OP_REQUIRES_OK(ctx, ExpectScalar(ctx->input(1), "size"));
    PositionMapOptions options = options_;
    options.size = ctx->input(1).scalar<int64_t>()();
    const Result<PositionMap> map = PositionMap::Make(options);
    OP_REQUIRES_OK(ctx, ToAbsl(map.status()));
    const auto ids = ctx->input(0).flat<int64_t>();
    tf::Tensor *positions, *signs;
    tf::TensorShape shape;
    OP_REQUIRES_OK(ctx, tf::TensorShape::BuildTensorShape({ids.size(), options.dim}, &shape));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &positions));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, shape, &signs));
    Fill(map.value(), ids.data(), ids.size(), positions->flat<int64_t>().data(),
         signs->flat<int8_t>().data(), IntraOpPool(ctx));
  }

 private:
  static void Fill(const PositionMap& map, const int64_t* ids, int64_t n, int64_t* positions,
                   int8_t* signs, const ParallelFor& parallel_for) {
    const int dim = map.dim();
    parallel_for(n, 10 + 4 * dim, [&](int64_t begin, int64_t end) {
      std::vector<uint64_t> words(map.sign_words());
      for (int64_t i = begin; i < end; ++i) {
        const auto id = static_cast<uint64_t>(ids[i]);
        map.Positions(id, reinterpret_cast<uint64_t*>(positions + i * dim));
        std::fill_n(signs + i * dim, dim, int8_t{1});
        if (!map.sign()) continue;
        map.SignWords(id, words.data());
        ApplySigns(words.data(), 0, dim, signs + i * dim);
      }
    });
  }

  PositionMapOptions options_;  // all except the size
};
SOK_REGISTER_KERNEL("HashPositions", HashPositionsOp);

REGISTER_OP("SokEmbed>RowSplits")
    .Input("rows: int64")
    .Input("num_rows: int64")
    .Output("splits: int64")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle rows;
      DimensionHandle splits;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &rows));
      TF_RETURN_IF_ERROR(c->MakeDimForScalarInput(1, &splits));
      TF_RETURN_IF_ERROR(c->Add(splits, 1, &splits));
      c->set_output(0, c->Vector(splits));
      return absl::OkStatus();
    });

absl::Status RowSplits(tf::OpKernelContext* ctx) {
  TF_RETURN_IF_ERROR(ExpectScalar(ctx->input(1), "num_rows"));
  const int64_t num_rows = ctx->input(1).scalar<int64_t>()();
  if (ctx->input(0).dims() != 1 || num_rows < 0 || num_rows == INT64_MAX) {
    return absl::InvalidArgumentError(
        "expected rows of one dimension and num_rows of at least 0, got shape " +
        ctx->input(0).shape().DebugString() + " and " + std::to_string(num_rows));
  }
  const auto rows = ctx->input(0).flat<int64_t>();
  tf::Tensor* splits;
  TF_RETURN_IF_ERROR(ctx->allocate_output(0, {num_rows + 1}, &splits));
  return ToAbsl(SplitsOfRows(rows.data(), rows.size(), num_rows, splits->flat<int64_t>().data()));
}
SOK_REGISTER_KERNEL("RowSplits", FunctionKernel<RowSplits>);

}  // namespace sok
