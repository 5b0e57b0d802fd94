// SokEmbed>CollectionPool pools the rows that have arrived into vectors, of which
// SokEmbed>CollectionOutput takes those of one feature. SokEmbed>CollectionPoolGradient is its
// gradient.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/base/bfloat16.h"
#include "core/collection/pooling.h"
#include "core/collection/row_messages.h"
#include "kernels/collection_resource.h"
#include "kernels/host_memory.h"
#include "kernels/host_variant.h"
#include "kernels/register_kernel.h"
#include "kernels/row_splits.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace sok {

namespace tf = tensorflow;
using tf::shape_inference::InferenceContext;

namespace {

// The parts that the op and its gradient share: the request, the rows by table, the pooling of
// features, and the places of their vectors in tensors.
class PoolKernel : public tf::OpKernel {
 public:
  explicit PoolKernel(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    std::vector<int64_t> combiners;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("combiners", &combiners));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("weighted", &weighted_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("concat", &concat_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dtype", &dtype_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("packed", &packed_));
    for (int64_t combiner : combiners) {
      OP_REQUIRES(ctx, combiner >= 0 && combiner <= static_cast<int64_t>(Combiner::kMax),
                  absl::InvalidArgumentError("expected a combiner in [0, 3], got " +
                                             std::to_string(combiner)));
      combiners_.push_back(static_cast<Combiner>(combiner));
    }
    for (int64_t feature : weighted_) {
      OP_REQUIRES(ctx,
                  feature >= 0 && feature < static_cast<int64_t>(combiners_.size()) &&
                      combiners_[feature] != Combiner::kMax,
                  absl::InvalidArgumentError(
                      "expected weights of features that are not pooled by max, got some for "
                      "feature " +
                      std::to_string(feature)));
    }
    has_max_ = std::find(combiners_.begin(), combiners_.end(), Combiner::kMax) != combiners_.end();
  }

 protected:
  struct Batch {
    const CollectionRequest* request = nullptr;
    std::vector<Pooling> poolings;
    RowSegments segments{{}, {}};
    std::vector<float> unpacked;
    const float* rows = nullptr;  // the message
    RowPlaces places;
    size_t bags = 0;   // of every feature, with concat
    size_t width = 0;  // with concat: the floats of a vector of all features
  };

  // `first` is the input with the rows; their splits, the request and the weights follow. Without
  // `with_rows` the rows are not read.
  absl::Status Read(tf::OpKernelContext* ctx, int first, bool with_rows, Batch* batch) const {
    const AskedVariant* asked = nullptr;
    TF_RETURN_IF_ERROR(GetVariant(ctx, first + 2, "asked", &asked));
    TF_RETURN_IF_ERROR(ExpectFeatures(asked->request.get(), combiners_.size()));
    batch->request = asked->request.get();
    batch->segments = SegmentsOf(*batch->request);
    if (with_rows) TF_RETURN_IF_ERROR(ReadRows(ctx, first, batch));
    batch->places = batch->segments.Places();
    for (Combiner combiner : combiners_) batch->poolings.push_back({combiner, nullptr});
    for (size_t i = 0; i < weighted_.size(); ++i) {
      const tf::Tensor& weights = ctx->input(first + 3 + static_cast<int>(i));
      const auto feature = static_cast<size_t>(weighted_[i]);
      const size_t n = batch->request->feature(feature).n;
      if (static_cast<size_t>(weights.NumElements()) != n) {
        return absl::InvalidArgumentError("feature '" + batch->request->plan().features[feature] +
                                          "': expected one weight a key, of which there are " +
                                          std::to_string(n) + ", got shape " +
                                          weights.shape().DebugString());
      }
      batch->poolings[feature].weights = weights.flat<float>().data();
    }
    return concat_ ? ReadWidths(batch) : absl::OkStatus();
  }

  int64_t DimOf(const Batch& batch, size_t feature) const {
    const CollectionPlan& plan = batch.request->plan();
    return plan.tables[plan.feature_tables[feature]].dim;
  }

  // Calls fn(feature, output, offset, stride) for the place of each feature's vectors.
  template <typename Fn>
  void ForEachPlace(const Batch& batch, const Fn& fn) const {
    size_t offset = 0;
    for (size_t feature = 0; feature < combiners_.size(); ++feature) {
      const auto dim = static_cast<size_t>(DimOf(batch, feature));
      if (concat_) {
        fn(feature, 0, offset, batch.width);
        offset += dim;
      } else {
        fn(feature, feature, 0, dim);
      }
    }
  }

  std::vector<Combiner> combiners_;
  std::vector<int64_t> weighted_;
  bool concat_, packed_, has_max_;
  tf::DataType dtype_;

 private:
  // Reads the message of rows. Returns the error of a worker that has failed.
  absl::Status ReadRows(tf::OpKernelContext* ctx, int first, Batch* batch) const {
    const tf::Tensor &rows = ctx->input(first), &arrived = ctx->input(first + 1);
    const auto splits = packed_ ? PackedSplits(batch->segments) : batch->segments.Splits();
    TF_RETURN_IF_ERROR(ToAbsl(splits.status()));
    const auto of_workers = arrived.flat<int32_t>();
    TF_RETURN_IF_ERROR(CheckRowSplits(rows, arrived, splits.value().size()));
    const float* message = rows.flat<float>().data();
    TF_RETURN_IF_ERROR(ToAbsl(CheckArrived(splits.value(), of_workers.data(), message)));
    if (packed_) {
      batch->unpacked.resize(batch->segments.floats());
      UnpackRows(batch->segments, message, batch->unpacked.data(), IntraOpPool(ctx));
      message = batch->unpacked.data();
    }
    batch->rows = message;
    return absl::OkStatus();
  }

  absl::Status ReadWidths(Batch* batch) const {
    batch->bags = batch->request->feature(0).bags;
    for (size_t feature = 0; feature < combiners_.size(); ++feature) {
      batch->width += static_cast<size_t>(DimOf(*batch, feature));
      const size_t bags = batch->request->feature(feature).bags;
      if (bags != batch->bags) {
        return absl::InvalidArgumentError(
            "expected as many examples of every feature, got " + std::to_string(batch->bags) +
            " of feature '" + batch->request->plan().features[0] + "' and " + std::to_string(bags) +
            " of feature '" + batch->request->plan().features[feature] + "'");
      }
    }
    return absl::OkStatus();
  }
};

}  // namespace

#define SOK_POOL_SIGNATURE                   \
  Input("rows: float")                       \
      .Input("row_splits: int32")            \
      .Input("asked: variant")               \
      .Input("weights: num_weights * float") \
      .Attr("num_weights: int >= 0")         \
      .Attr("weighted: list(int)")           \
      .Attr("combiners: list(int)")          \
      .Attr("concat: bool")                  \
      .Attr("packed: bool")                  \
      .Attr("dtype: {float, bfloat16}")

REGISTER_OP("SokEmbed>CollectionPool")
    .SOK_POOL_SIGNATURE.Output("vectors: variant")
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Scalar());
      return absl::OkStatus();
    });

class CollectionPoolOp : public PoolKernel {
 public:
  using PoolKernel::PoolKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    Batch batch;
    OP_REQUIRES_OK(ctx, Read(ctx, 0, true, &batch));
    VectorsVariant vectors;
    if (concat_) {
      OP_REQUIRES_OK(ctx, Allocate(ctx, batch.bags, batch.width, &vectors));
    } else {
      for (size_t feature = 0; feature < combiners_.size(); ++feature) {
        OP_REQUIRES_OK(ctx, Allocate(ctx, batch.request->feature(feature).bags,
                                     static_cast<size_t>(DimOf(batch, feature)), &vectors));
      }
    }
    if (dtype_ == tf::DT_FLOAT) {
      PoolInto<float>(ctx, batch, &vectors);
    } else {
      PoolInto<BFloat16>(ctx, batch, &vectors);
    }
    OP_REQUIRES_OK(ctx, PutVariant(ctx, 0, std::move(vectors)));
  }

 private:
  absl::Status Allocate(tf::OpKernelContext* ctx, size_t bags, size_t width,
                        VectorsVariant* vectors) const {
    vectors->outputs.emplace_back();
    return AllocatePinned(ctx, dtype_, {static_cast<int64_t>(bags), static_cast<int64_t>(width)},
                          &vectors->outputs.back());
  }

  template <typename T>
  void PoolInto(tf::OpKernelContext* ctx, const Batch& batch, VectorsVariant* vectors) const {
    std::vector<BagVectors<T>> out;
    ForEachPlace(batch, [&](size_t, size_t output, size_t offset, size_t stride) {
      out.push_back({static_cast<T*>(vectors->outputs[output].data()) + offset, stride});
    });
    Pool(*batch.request, batch.poolings, batch.rows, batch.places, out, IntraOpPool(ctx));
  }
};

SOK_REGISTER_KERNEL("CollectionPool", CollectionPoolOp);

REGISTER_OP("SokEmbed>CollectionPoolGradient")
    .Input("gradients: variant")
    .SOK_POOL_SIGNATURE.Output("row_gradients: float")
    .Output("weight_gradients: num_weights * float")
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(c->UnknownDim()));
      for (int i = 1; i < c->num_outputs(); ++i) c->set_output(i, c->input(3 + i));
      return absl::OkStatus();
    });

class CollectionPoolGradientOp : public PoolKernel {
 public:
  using PoolKernel::PoolKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    Batch batch;
    // Gradients of sums without weights do not depend on the rows.
    OP_REQUIRES_OK(ctx, Read(ctx, 1, has_max_ || !weighted_.empty(), &batch));
    const VectorsVariant* gradients = nullptr;
    OP_REQUIRES_OK(ctx, GetVariant(ctx, 0, "gradients", &gradients));
    tf::Tensor* rows = nullptr;
    const RowSegments segments = GradientSegmentsOf(*batch.request);
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, {static_cast<int64_t>(segments.floats())}, &rows));
    std::vector<float*> of_weights(combiners_.size(), nullptr);
    for (size_t i = 0; i < weighted_.size(); ++i) {
      tf::Tensor* weights = nullptr;
      const int input = 4 + static_cast<int>(i);
      OP_REQUIRES_OK(
          ctx, ctx->allocate_output(static_cast<int>(i) + 1, ctx->input(input).shape(), &weights));
      of_weights[static_cast<size_t>(weighted_[i])] = weights->flat<float>().data();
    }
    float* const message = rows->flat<float>().data();
    const RowPlaces places = segments.Places();
    if (dtype_ == tf::DT_FLOAT) {
      OP_REQUIRES_OK(ctx,
                     Differentiate<float>(ctx, batch, *gradients, message, places, of_weights));
    } else {
      OP_REQUIRES_OK(ctx,
                     Differentiate<BFloat16>(ctx, batch, *gradients, message, places, of_weights));
    }
    segments.Repeat(places, message, IntraOpPool(ctx));
  }

 private:
  template <typename T>
  absl::Status Differentiate(tf::OpKernelContext* ctx, const Batch& batch,
                             const VectorsVariant& gradients, float* rows, const RowPlaces& places,
                             const std::vector<float*>& of_weights) const {
    std::vector<BagVectors<const T>> upstream(combiners_.size());
    absl::Status status = absl::OkStatus();
    ForEachPlace(batch, [&](size_t feature, size_t output, size_t offset, size_t stride) {
      if (output >= gradients.outputs.size()) return;  // zeros of an eager tape
      const tf::Tensor& of_output = gradients.outputs[output];
      if (of_output.dtype() == tf::DT_INVALID) return;
      const auto bags = static_cast<int64_t>(batch.request->feature(feature).bags);
      if (of_output.dtype() != dtype_ ||
          of_output.shape() != tf::TensorShape({bags, static_cast<int64_t>(stride)})) {
        status = absl::InvalidArgumentError(
            "expected a gradient of the shape of the output, got shape " +
            of_output.shape().DebugString() + " for feature '" +
            batch.request->plan().features[feature] + "'");
        return;
      }
      upstream[feature] = {static_cast<const T*>(of_output.data()) + offset, stride};
    });
    TF_RETURN_IF_ERROR(status);
    PoolGradient(*batch.request, batch.poolings, batch.rows, batch.places, upstream, rows, places,
                 of_weights, IntraOpPool(ctx));
    return absl::OkStatus();
  }
};

SOK_REGISTER_KERNEL("CollectionPoolGradient", CollectionPoolGradientOp);

namespace {

template <typename T>
void AddTo(const tf::Tensor& a, const tf::Tensor& b, tf::Tensor* sum) {
  const auto* left = static_cast<const T*>(a.data());
  const auto* right = static_cast<const T*>(b.data());
  auto* to = static_cast<T*>(sum->data());
  for (int64_t i = 0; i < a.NumElements(); ++i) {
    to[i] = FromFloat<T>(ToFloat(left[i]) + ToFloat(right[i]));
  }
}

absl::Status AddVectors(tf::OpKernelContext* ctx, const VectorsVariant& a, const VectorsVariant& b,
                        VectorsVariant* sum) {
  *sum = a.outputs.size() < b.outputs.size() ? b : a;
  const VectorsVariant& other = a.outputs.size() < b.outputs.size() ? a : b;
  for (size_t i = 0; i < other.outputs.size(); ++i) {
    const tf::Tensor added = other.outputs[i], there = sum->outputs[i];
    if (added.dtype() == tf::DT_INVALID) continue;
    if (there.dtype() == tf::DT_INVALID) {
      sum->outputs[i] = added;
      continue;
    }
    if (added.dtype() != there.dtype() || added.shape() != there.shape()) {
      return absl::InvalidArgumentError("expected gradients of one output to have one shape");
    }
    if (a.on_gpu || b.on_gpu) {
      return absl::UnimplementedError(
          "expected one gradient of each vector on a GPU, which is what one tape makes, got two");
    }
    TF_RETURN_IF_ERROR(AllocateOnHost(ctx, added.dtype(), added.shape(), &sum->outputs[i]));
    if (added.dtype() == tf::DT_FLOAT) {
      AddTo<float>(there, added, &sum->outputs[i]);
    } else {
      AddTo<BFloat16>(there, added, &sum->outputs[i]);
    }
  }
  return absl::OkStatus();
}

}  // namespace

[[maybe_unused]] static const bool vectors_variants = RegisterHostVariant<VectorsVariant>();
[[maybe_unused]] static const bool vectors_sums = RegisterHostSum<VectorsVariant>(AddVectors);

}  // namespace sok
