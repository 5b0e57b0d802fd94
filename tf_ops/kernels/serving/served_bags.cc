// SokEmbed>PoolServedRows pools rows that were looked up into one vector for each bag, as training
// does.
#include <algorithm>
#include <cstdint>
#include <string>

#include "core/collection/pooling_of_rows.h"
#include "kernels/core_calls.h"
#include "kernels/register_kernel.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace sok {

namespace tf = tensorflow;

// rows: (n, dim), a row for each key. splits: (bags + 1); with length > 0 all bags have that
// length, and splits are not read. weights: (n), or none. max_length: the most keys of a bag; 0:
// any number.
REGISTER_OP("SokEmbed>PoolServedRows")
    .Input("rows: float")
    .Input("splits: int64")
    .Input("weights: float")
    .Output("vectors: float")
    .Attr("combiner: {'sum', 'mean', 'sqrtn', 'max'}")
    .Attr("is_weighted: bool")
    .Attr("length: int >= 0")
    .Attr("max_length: int >= 0")
    .Attr("feature: string")
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      tf::shape_inference::ShapeHandle rows, splits;
      tf::shape_inference::DimensionHandle bags;
      int64_t length;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &rows));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &splits));
      TF_RETURN_IF_ERROR(c->GetAttr("length", &length));
      if (length > 0) {
        TF_RETURN_IF_ERROR(c->Divide(c->Dim(rows, 0), length, /*evenly_divisible=*/true, &bags));
      } else {
        TF_RETURN_IF_ERROR(c->Subtract(c->Dim(splits, 0), 1, &bags));
      }
      c->set_output(0, c->Matrix(bags, c->Dim(rows, 1)));
      return absl::OkStatus();
    });

class PoolServedRowsOp : public tf::OpKernel {
 public:
  explicit PoolServedRowsOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    std::string combiner;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("combiner", &combiner));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("is_weighted", &is_weighted_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("length", &length_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("max_length", &max_length_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("feature", &feature_));
    combiner_ = combiner == "sum"    ? Combiner::kSum
                : combiner == "mean" ? Combiner::kMean
                : combiner == "max"  ? Combiner::kMax
                                     : Combiner::kSqrtN;
  }

  void Compute(tf::OpKernelContext* ctx) override {
    const tf::Tensor &rows = ctx->input(0), &weights = ctx->input(2);
    OP_REQUIRES(ctx, rows.dims() == 2,
                Wrong("rows of rank 2", "shape " + rows.shape().DebugString()));
    FeatureBags bags;
    bags.n = static_cast<size_t>(rows.dim_size(0));
    OP_REQUIRES_OK(ctx, SetBags(ctx->input(1), &bags));
    OP_REQUIRES(ctx, !is_weighted_ || weights.NumElements() == rows.dim_size(0),
                Wrong("one weight a key, " + std::to_string(bags.n),
                      std::to_string(weights.NumElements())));
    Pooling pooling;
    pooling.combiner = combiner_;
    if (is_weighted_) pooling.weights = static_cast<const float*>(weights.data());
    tf::Tensor* vectors = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, {static_cast<int64_t>(bags.bags), rows.dim_size(1)},
                                             &vectors));
    PoolRows(static_cast<const float*>(rows.data()), static_cast<size_t>(rows.dim_size(1)), bags,
             pooling, static_cast<float*>(vectors->data()), IntraOpPool(ctx));
  }

 private:
  absl::Status Wrong(const std::string& expected, const std::string& received) const {
    return absl::InvalidArgumentError("feature '" + feature_ + "': expected " + expected +
                                      ", got " + received);
  }

  // Sets the bags of `bags`, whose number of keys is set already.
  absl::Status SetBags(const tf::Tensor& splits, FeatureBags* bags) const {
    if (length_ > 0) {
      bags->length = static_cast<size_t>(length_);
      bags->bags = bags->n / bags->length;
      if (bags->bags * bags->length != bags->n) {
        return Wrong("bags of " + std::to_string(length_) + " keys",
                     std::to_string(bags->n) + " keys");
      }
      return CheckLength(length_);
    }
    const auto at = splits.flat<int64_t>();
    const auto n = static_cast<int64_t>(bags->n);
    bool are_right = splits.dims() == 1 && at.size() > 0 && at(0) == 0 && at(at.size() - 1) == n;
    int64_t longest = 0;
    for (int64_t i = 1; are_right && i < at.size(); ++i) {
      are_right = at(i) >= at(i - 1);
      longest = std::max(longest, at(i) - at(i - 1));
    }
    if (!are_right) {
      return Wrong("row splits that begin with 0, never fall and end with the number of keys, " +
                       std::to_string(n),
                   splits.SummarizeValue(8));
    }
    bags->splits = at.data();
    bags->bags = static_cast<size_t>(at.size() - 1);
    return CheckLength(longest);
  }

  absl::Status CheckLength(int64_t longest) const {
    if (max_length_ == 0 || longest <= max_length_) return absl::OkStatus();
    return Wrong("at most max_length=" + std::to_string(max_length_) + " keys in an example",
                 std::to_string(longest));
  }

  Combiner combiner_;
  bool is_weighted_;
  int64_t length_, max_length_;
  std::string feature_;
};

SOK_REGISTER_KERNEL("PoolServedRows", PoolServedRowsOp);

}  // namespace sok
