// SokEmbed>HashedBag and its gradients, on weights that are tensors or variables.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/hashed_bag/bags.h"
#include "core/hashed_bag/forward.h"
#include "core/hashed_bag/gradient.h"
#include "core/hashed_bag/slot_map.h"
#include "kernels/table_resource.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace sok {

namespace tf = tensorflow;
using tf::shape_inference::DimensionHandle;
using tf::shape_inference::InferenceContext;
using tf::shape_inference::ShapeHandle;

namespace {

const int64_t* Int64s(const tf::Tensor& tensor) { return tensor.flat<int64_t>().data(); }

// The elements of T, BFloat16 for TensorFlow's bfloat16.
template <typename T>
T* Elements(const tf::Tensor& tensor) {
  return static_cast<T*>(tensor.data());
}

// A tensor's floats as what sums are computed in: float32 and float64 as they are, bfloat16
// widened.
template <typename Sum>
class WideFloats {
 public:
  explicit WideFloats(const tf::Tensor& tensor) {
    if (tensor.dtype() != tf::DT_BFLOAT16) {
      data_ = Elements<Sum>(tensor);
      return;
    }
    const auto* narrow = Elements<BFloat16>(tensor);
    wide_.resize(tensor.NumElements());
    for (size_t i = 0; i < wide_.size(); ++i) wide_[i] = ToFloat(narrow[i]);
    data_ = wide_.data();
  }
  const Sum* data() const { return data_; }

 private:
  const Sum* data_;
  std::vector<Sum> wide_;
};

// Calls fn with a T and an Out, the C++ types of the two dtypes.
template <typename Fn>
void WithTypes(tf::DataType weight, tf::DataType out, const Fn& fn) {
  if (weight == tf::DT_DOUBLE) return fn(double{}, double{});
  const bool narrow_out = out == tf::DT_BFLOAT16;
  if (weight == tf::DT_FLOAT) return narrow_out ? fn(float{}, BFloat16{}) : fn(float{}, float{});
  narrow_out ? fn(BFloat16{}, BFloat16{}) : fn(BFloat16{}, float{});
}

// Bags out of a kernel's inputs, with the memory that they point to.
struct InputBags {
  Bags bags;
  LookupKeys ids;  // ids are no keys, but widened alike
  std::vector<int64_t> splits;
};

// What all of these kernels are made with, and how they read their inputs.
class HashedBagKernel : public tf::OpKernel {
 public:
  explicit HashedBagKernel(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    std::string mode, hash;
    int64_t seed;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("T", &weight_type_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("Tout", &out_type_));
    OP_REQUIRES(ctx, (weight_type_ == tf::DT_DOUBLE) == (out_type_ == tf::DT_DOUBLE),
                absl::InvalidArgumentError(
                    "expected float64 of both weight and output or of none, got " +
                    tf::DataTypeString(weight_type_) + " and " + tf::DataTypeString(out_type_)));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("mode", &mode));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("hash", &hash));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("seed", &seed));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("sign", &options_.sign));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("block_size", &options_.block_size));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_embeddings", &options_.num_embeddings));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("embedding_dim", &options_.dim));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("padding_idx", &padding_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("include_last_offset", &ends_));
    const Result<BagMode> bag_mode = BagModeNamed(mode);
    OP_REQUIRES_OK(ctx, ToAbsl(bag_mode.status()));
    mode_ = bag_mode.value();
    const Result<SlotHash> slot_hash = SlotHashNamed(hash);
    OP_REQUIRES_OK(ctx, ToAbsl(slot_hash.status()));
    options_.hash = slot_hash.value();
    options_.seed = static_cast<uint64_t>(seed);
  }

 protected:
  absl::Status MakeSlots(int64_t size, std::optional<SlotMap>* slots) const {
    SlotMapOptions options = options_;
    options.size = size;
    const Result<SlotMap> made = SlotMap::Make(options);
    if (made.ok()) slots->emplace(made.value());
    return ToAbsl(made.status());
  }

  absl::Status ReadBags(tf::OpKernelContext* ctx, const tf::Tensor& ids, const tf::Tensor& offsets,
                        InputBags* read) const {
    const int64_t n = ids.NumElements();
    if (offsets.dims() != 1 || ids.dims() < 1 || ids.dims() > 2) {
      return absl::InvalidArgumentError(
          "expected ids of one or two dimensions and offsets of one, got shapes " +
          ids.shape().DebugString() + " and " + offsets.shape().DebugString());
    }
    if (ids.dims() == 2) {
      if (offsets.NumElements() != 0) {
        return absl::InvalidArgumentError("expected no offsets with ids of two dimensions, got " +
                                          std::to_string(offsets.NumElements()));
      }
      for (int64_t bag = 0; bag <= ids.dim_size(0); ++bag) {
        read->splits.push_back(bag * ids.dim_size(1));
      }
    } else {
      Result<std::vector<int64_t>> splits =
          offsets.dtype() == tf::DT_INT32
              ? SplitsOfOffsets(Elements<int32_t>(offsets), offsets.NumElements(), n, ends_)
              : SplitsOfOffsets(Int64s(offsets), offsets.NumElements(), n, ends_);
      TF_RETURN_IF_ERROR(ToAbsl(splits.status()));
      read->splits = std::move(splits.value());
    }
    read->ids = KeysOf(ids);
    // Every Key is made of the bits of an int64.
    const auto* wide = reinterpret_cast<const int64_t*>(read->ids.keys);
    TF_RETURN_IF_ERROR(ToAbsl(CheckIds(wide, n, options_.num_embeddings, IntraOpPool(ctx))));
    read->bags = {wide, read->splits.data(), static_cast<int64_t>(read->splits.size()) - 1,
                  padding_};
    return absl::OkStatus();
  }

  // Whether `scales`, an input, has a factor for each entry; it has none in all but sums.
  absl::Status CheckScales(const tf::Tensor& scales, const Bags& bags, bool* scaled) const {
    *scaled = mode_ == BagMode::kSum && scales.dims() != 0;
    const int64_t expected = *scaled ? bags.entries() : 0;
    if (*scaled ? scales.NumElements() == expected : scales.dims() == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "expected per_sample_weights with the mode sum only, one for each of the " +
        std::to_string(bags.entries()) + " ids, got shape " + scales.shape().DebugString());
  }

  absl::Status CheckUpstream(const tf::Tensor& upstream, const Bags& bags) const {
    if (upstream.dims() == 2 && upstream.dim_size(0) == bags.bags &&
        upstream.dim_size(1) == options_.dim) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError("expected gradients of shape [" + std::to_string(bags.bags) +
                                      "," + std::to_string(options_.dim) + "], got " +
                                      upstream.shape().DebugString());
  }

  // Whether winners can be those of a forward pass over the bags.
  absl::Status CheckWinners(const tf::Tensor& winners, const Bags& bags) const {
    if (mode_ != BagMode::kMax) return absl::OkStatus();
    bool good = winners.NumElements() == bags.bags * options_.dim;
    for (int64_t i = 0; good && i < winners.NumElements(); ++i) {
      good = Int64s(winners)[i] >= -1 && Int64s(winners)[i] < bags.entries();
    }
    if (good) return absl::OkStatus();
    return absl::InvalidArgumentError("expected the winners of the forward pass, got shape " +
                                      winners.shape().DebugString());
  }

  // The inputs of a gradient: gradients of the output, ids, offsets, scales, winners and, for
  // those of the weight, its size.
  struct GradientInputs {
    InputBags read;
    std::optional<SlotMap> slots;
    bool scaled;
  };

  absl::Status ReadGradientInputs(tf::OpKernelContext* ctx, int64_t size,
                                  GradientInputs* inputs) const {
    TF_RETURN_IF_ERROR(MakeSlots(size, &inputs->slots));
    TF_RETURN_IF_ERROR(ReadBags(ctx, ctx->input(1), ctx->input(2), &inputs->read));
    const Bags& bags = inputs->read.bags;
    TF_RETURN_IF_ERROR(CheckUpstream(ctx->input(0), bags));
    return CheckScales(ctx->input(3), bags, &inputs->scaled);
  }

  tf::DataType weight_type_, out_type_;
  BagMode mode_;
  SlotMapOptions options_;  // but for the size
  int64_t padding_;
  bool ends_;
};

class HashedBagOp : public HashedBagKernel {
 public:
  using HashedBagKernel::HashedBagKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    if (ctx->input_dtype(0) != tf::DT_RESOURCE) return Forward(ctx, ctx->input(0));
    tf::core::RefCountPtr<tf::Var> variable;
    OP_REQUIRES_OK(ctx, ExpectScalar(ctx->input(0), "weight"));
    OP_REQUIRES_OK(ctx, tf::LookupResource(ctx, tf::HandleFromInput(ctx, 0), &variable));
    // Writers wait until the last element has been read.
    tf::tf_shared_lock lock(*variable->mu());
    OP_REQUIRES(ctx, variable->is_initialized,
                absl::FailedPreconditionError("expected an initialized weight, got one without "
                                              "a value"));
    OP_REQUIRES(
        ctx, variable->tensor()->dtype() == weight_type_,
        absl::InvalidArgumentError("expected a weight of " + tf::DataTypeString(weight_type_) +
                                   ", got " + tf::DataTypeString(variable->tensor()->dtype())));
    Forward(ctx, *variable->tensor());
  }

 private:
  void Forward(tf::OpKernelContext* ctx, const tf::Tensor& weight) {
    OP_REQUIRES(ctx, weight.dims() == 1,
                absl::InvalidArgumentError("expected a weight of one dimension, got shape " +
                                           weight.shape().DebugString()));
    std::optional<SlotMap> slots;
    InputBags read;
    bool scaled;
    OP_REQUIRES_OK(ctx, MakeSlots(weight.NumElements(), &slots));
    OP_REQUIRES_OK(ctx, ReadBags(ctx, ctx->input(1), ctx->input(2), &read));
    OP_REQUIRES_OK(ctx, CheckScales(ctx->input(3), read.bags, &scaled));
    const tf::TensorShape shape({read.bags.bags, options_.dim});
    tf::Tensor *out, *winners;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &out));
    const bool max = mode_ == BagMode::kMax;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, max ? shape : tf::TensorShape({0, 0}), &winners));
    WithTypes(weight_type_, out_type_, [&](auto t, auto o) {
      using T = decltype(t);
      using Out = decltype(o);
      const WideFloats<typename SumOf<T>::type> scales(ctx->input(3));
      HashedBagForward(*slots, read.bags, mode_, Elements<const T>(weight),
                       scaled ? scales.data() : nullptr, Elements<Out>(*out),
                       max ? winners->flat<int64_t>().data() : nullptr, IntraOpPool(ctx));
    });
  }
};

absl::Status ReadSize(tf::OpKernelContext* ctx, int64_t* size) {
  TF_RETURN_IF_ERROR(ExpectScalar(ctx->input(5), "size"));
  *size = ctx->input(5).scalar<int64_t>()();
  return absl::OkStatus();
}

class HashedBagGradientOp : public HashedBagKernel {
 public:
  using HashedBagKernel::HashedBagKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    int64_t size;
    GradientInputs inputs;
    OP_REQUIRES_OK(ctx, ReadSize(ctx, &size));
    OP_REQUIRES_OK(ctx, ReadGradientInputs(ctx, size, &inputs));
    OP_REQUIRES_OK(ctx, CheckWinners(ctx->input(4), inputs.read.bags));
    WithTypes(weight_type_, out_type_, [&](auto t, auto) {
      using T = decltype(t);
      using Sum = typename SumOf<T>::type;
      const WideFloats<Sum> upstream(ctx->input(0)), scales(ctx->input(3));
      Compute(ctx, t,
              BagGradient<Sum>{*inputs.slots, inputs.read.bags, mode_, upstream.data(),
                               inputs.scaled ? scales.data() : nullptr, Int64s(ctx->input(4))});
    });
  }

 protected:
  virtual void Compute(tf::OpKernelContext* ctx, float, const BagGradient<float>& gradient) = 0;
  virtual void Compute(tf::OpKernelContext* ctx, BFloat16, const BagGradient<float>& gradient) = 0;
  virtual void Compute(tf::OpKernelContext* ctx, double, const BagGradient<double>& gradient) = 0;
};

class DenseHashedBagGradientOp : public HashedBagGradientOp {
 public:
  using HashedBagGradientOp::HashedBagGradientOp;

 private:
  void Compute(tf::OpKernelContext* ctx, float, const BagGradient<float>& gradient) override {
    InPlace(ctx, gradient);
  }
  void Compute(tf::OpKernelContext* ctx, double, const BagGradient<double>& gradient) override {
    InPlace(ctx, gradient);
  }

  template <typename Sum>
  void InPlace(tf::OpKernelContext* ctx, const BagGradient<Sum>& gradient) {
    tf::Tensor* sums;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, {gradient.slots.size()}, &sums));
    DenseWeightGradient(gradient, Elements<Sum>(*sums), IntraOpPool(ctx));
  }

  void Compute(tf::OpKernelContext* ctx, BFloat16, const BagGradient<float>& gradient) override {
    const int64_t size = gradient.slots.size();
    tf::Tensor wide, *sums;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, {size}, &sums));
    OP_REQUIRES_OK(ctx, ctx->allocate_temp(tf::DT_FLOAT, {size}, &wide));
    const auto* from = Elements<float>(wide);
    auto* to = Elements<BFloat16>(*sums);
    DenseWeightGradient(gradient, Elements<float>(wide), IntraOpPool(ctx));
    IntraOpPool(ctx)(size, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) to[i] = FromFloat<BFloat16>(from[i]);
    });
  }
};

class SparseHashedBagGradientOp : public HashedBagGradientOp {
 public:
  using HashedBagGradientOp::HashedBagGradientOp;

 private:
  void Compute(tf::OpKernelContext* ctx, float t, const BagGradient<float>& gradient) override {
    Write(ctx, t, gradient);
  }
  void Compute(tf::OpKernelContext* ctx, BFloat16 t, const BagGradient<float>& gradient) override {
    Write(ctx, t, gradient);
  }
  void Compute(tf::OpKernelContext* ctx, double t, const BagGradient<double>& gradient) override {
    Write(ctx, t, gradient);
  }

  template <typename T, typename Sum>
  void Write(tf::OpKernelContext* ctx, T, const BagGradient<Sum>& gradient) {
    const SparseWeightGradient<Sum> sparse(gradient, IntraOpPool(ctx));
    tf::Tensor *slots, *sums;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, {sparse.size()}, &slots));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, {sparse.size()}, &sums));
    sparse.Write(slots->flat<int64_t>().data(), Elements<T>(*sums), IntraOpPool(ctx));
  }
};

class HashedBagScaleGradientOp : public HashedBagKernel {
 public:
  using HashedBagKernel::HashedBagKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    const tf::Tensor& weight = ctx->input(4);
    GradientInputs inputs;
    OP_REQUIRES(ctx, weight.dims() == 1 && mode_ == BagMode::kSum,
                absl::InvalidArgumentError(
                    "expected the mode sum and a weight of one dimension, got shape " +
                    weight.shape().DebugString()));
    OP_REQUIRES_OK(ctx, ReadGradientInputs(ctx, weight.NumElements(), &inputs));
    tf::Tensor* factors;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, ctx->input(3).shape(), &factors));
    OP_REQUIRES(ctx, inputs.scaled,
                absl::InvalidArgumentError("expected per_sample_weights, got none"));
    WithTypes(weight_type_, out_type_, [&](auto t, auto o) {
      using T = decltype(t);
      using Out = decltype(o);
      using Sum = typename SumOf<T>::type;
      const WideFloats<Sum> upstream(ctx->input(0));
      std::vector<Sum> wide(factors->NumElements());
      ScaleGradient<T>({*inputs.slots, inputs.read.bags, mode_, upstream.data(), nullptr, nullptr},
                       Elements<const T>(weight), wide.data(), IntraOpPool(ctx));
      std::transform(wide.begin(), wide.end(), Elements<Out>(*factors),
                     [](Sum sum) { return Narrow<Out>(sum); });
    });
  }
};

absl::Status ForwardShape(InferenceContext* c) {
  ShapeHandle ids, offsets;
  TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(1), 1, &ids));
  TF_RETURN_IF_ERROR(c->WithRankAtMost(ids, 2, &ids));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 1, &offsets));
  int64_t dim;
  bool ends;
  std::string mode;
  TF_RETURN_IF_ERROR(c->GetAttr("embedding_dim", &dim));
  TF_RETURN_IF_ERROR(c->GetAttr("include_last_offset", &ends));
  TF_RETURN_IF_ERROR(c->GetAttr("mode", &mode));
  DimensionHandle bags = c->UnknownDim();
  if (c->RankKnown(ids)) {
    bags = c->Rank(ids) == 2 ? c->Dim(ids, 0) : c->Dim(offsets, 0);
    if (c->Rank(ids) == 1 && ends) TF_RETURN_IF_ERROR(c->Subtract(bags, 1, &bags));
  }
  c->set_output(0, c->Matrix(bags, dim));
  c->set_output(1, mode == "max" ? c->Matrix(bags, dim) : c->Matrix(0, 0));
  return absl::OkStatus();
}

absl::Status SizeShape(InferenceContext* c) {
  DimensionHandle size;
  TF_RETURN_IF_ERROR(c->MakeDimForScalarInput(5, &size));
  c->set_output(0, c->Vector(size));
  return absl::OkStatus();
}

absl::Status UnknownVectors(InferenceContext* c) {
  const ShapeHandle vector = c->Vector(c->UnknownDim());
  for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, vector);
  return absl::OkStatus();
}

}  // namespace

// scales: a scalar stands for none.
#define SOK_HASHED_BAG_ATTRS                         \
  Attr("T: {float, bfloat16, double}")               \
      .Attr("Tout: {float, bfloat16, double}")       \
      .Attr("Tids: {int32, int64}")                  \
      .Attr("Toffsets: {int32, int64}")              \
      .Attr("num_embeddings: int >= 1")              \
      .Attr("embedding_dim: int >= 1")               \
      .Attr("mode: {'sum', 'mean', 'max'}")          \
      .Attr("hash: {'mixed', 'original', 'modulo'}") \
      .Attr("seed: int")                             \
      .Attr("sign: bool")                            \
      .Attr("block_size: int >= 1")                  \
      .Attr("padding_idx: int >= -1")                \
      .Attr("include_last_offset: bool")

REGISTER_OP("SokEmbed>HashedBag")
    .Input("weight: T")
    .Input("ids: Tids")
    .Input("offsets: Toffsets")
    .Input("scales: Tout")
    .Output("bags: Tout")
    .Output("winners: int64")
    .SOK_HASHED_BAG_ATTRS.Attr("sparse_gradient: bool")
    .SetShapeFn(ForwardShape);
REGISTER_KERNEL_BUILDER(Name("SokEmbed>HashedBag").Device(tf::DEVICE_CPU), HashedBagOp);

REGISTER_OP("SokEmbed>ResourceHashedBag")
    .Input("weight: resource")
    .Input("ids: Tids")
    .Input("offsets: Toffsets")
    .Input("scales: Tout")
    .Output("bags: Tout")
    .Output("winners: int64")
    .SOK_HASHED_BAG_ATTRS.Attr("sparse_gradient: bool")
    .SetShapeFn(ForwardShape);
REGISTER_KERNEL_BUILDER(Name("SokEmbed>ResourceHashedBag").Device(tf::DEVICE_CPU), HashedBagOp);

REGISTER_OP("SokEmbed>HashedBagGradient")
    .Input("upstream: Tout")
    .Input("ids: Tids")
    .Input("offsets: Toffsets")
    .Input("scales: Tout")
    .Input("winners: int64")
    .Input("size: int64")
    .Output("gradient: T")
    .SOK_HASHED_BAG_ATTRS.SetShapeFn(SizeShape);
REGISTER_KERNEL_BUILDER(Name("SokEmbed>HashedBagGradient").Device(tf::DEVICE_CPU),
                        DenseHashedBagGradientOp);

REGISTER_OP("SokEmbed>HashedBagSparseGradient")
    .Input("upstream: Tout")
    .Input("ids: Tids")
    .Input("offsets: Toffsets")
    .Input("scales: Tout")
    .Input("winners: int64")
    .Input("size: int64")
    .Output("slots: int64")
    .Output("gradient: T")
    .SOK_HASHED_BAG_ATTRS.SetShapeFn(UnknownVectors);
REGISTER_KERNEL_BUILDER(Name("SokEmbed>HashedBagSparseGradient").Device(tf::DEVICE_CPU),
                        SparseHashedBagGradientOp);

REGISTER_OP("SokEmbed>HashedBagScaleGradient")
    .Input("upstream: Tout")
    .Input("ids: Tids")
    .Input("offsets: Toffsets")
    .Input("scales: Tout")
    .Input("weight: T")
    .Output("gradient: Tout")
    .SOK_HASHED_BAG_ATTRS.SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->input(3));
      return absl::OkStatus();
    });
REGISTER_KERNEL_BUILDER(Name("SokEmbed>HashedBagScaleGradient").Device(tf::DEVICE_CPU),
                        HashedBagScaleGradientOp);

}  // namespace sok
