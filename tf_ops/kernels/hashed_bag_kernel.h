// The code that the kernels of hashed bags share: their attributes, and how they read their inputs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/bags/bags.h"
#include "core/bags/position_map.h"
#include "core/base/bfloat16.h"
#include "core/base/float16.h"
#include "kernels/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_var.h"

// The inputs that follow the first one of each op.
#define SOK_HASHED_BAG_INPUTS Input("ids: Tids").Input("offsets: Toffsets").Input("scales: Tout")

// The attributes that the ops share. Without `scaled` the input `scales` is not read.
#define SOK_HASHED_BAG_ATTRS                         \
  Attr("T: {float, bfloat16, half, double}")         \
      .Attr("Tout: {float, bfloat16, half, double}") \
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
      .Attr("include_last_offset: bool")             \
      .Attr("scaled: bool")

namespace sok {

inline const int64_t* Int64s(const tensorflow::Tensor& tensor) {
  return tensor.flat<int64_t>().data();
}

// Returns a tensor's elements as T, which is BFloat16 for TensorFlow's bfloat16 and Float16 for its
// half.
template <typename T>
T* Elements(const tensorflow::Tensor& tensor) {
  return static_cast<T*>(tensor.data());
}

// Holds a tensor's floats in the type that sums are computed in: float32 and float64 as they are,
// the others widened.
template <typename Sum>
class WideFloats {
 public:
  explicit WideFloats(const tensorflow::Tensor& tensor) {
    if (tensor.dtype() == tensorflow::DT_BFLOAT16) {
      Widen(Elements<BFloat16>(tensor), tensor.NumElements());
    } else if (tensor.dtype() == tensorflow::DT_HALF) {
      Widen(Elements<Float16>(tensor), tensor.NumElements());
    } else {
      data_ = Elements<Sum>(tensor);
    }
  }
  const Sum* data() const { return data_; }

 private:
  template <typename T>
  void Widen(const T* narrow, int64_t n) {
    wide_.resize(n);
    for (size_t i = 0; i < wide_.size(); ++i) wide_[i] = ToFloat(narrow[i]);
    data_ = wide_.data();
  }

  const Sum* data_;
  std::vector<Sum> wide_;
};

// Calls fn with the C++ type of a dtype, if it is a type that is summed in float32.
template <typename Fn>
void WithType(tensorflow::DataType dtype, const Fn& fn) {
  if (dtype == tensorflow::DT_BFLOAT16) return fn(BFloat16{});
  if (dtype == tensorflow::DT_HALF) return fn(Float16{});
  fn(float{});
}

// Calls fn with a T and an Out, the C++ types of the two dtypes.
template <typename Fn>
void WithTypes(tensorflow::DataType weight, tensorflow::DataType out, const Fn& fn) {
  if (weight == tensorflow::DT_DOUBLE) return fn(double{}, double{});
  WithType(weight, [&](auto t) { WithType(out, [&](auto o) { fn(t, o); }); });
}

// Holds the bags of a kernel's inputs, with the memory that they point to.
struct InputBags {
  Bags bags;
  LookupKeys ids;             // not keys, but widened in the same way
  tensorflow::Tensor splits;  // int64
};

// The base of these kernels: how they are made, and how they read their inputs.
class HashedBagKernel : public tensorflow::OpKernel {
 public:
  explicit HashedBagKernel(tensorflow::OpKernelConstruction* ctx);

 protected:
  absl::Status MakePositions(int64_t size, std::optional<PositionMap>* positions) const;

  // Checks the numbers of dimensions.
  absl::Status CheckForm(const tensorflow::Tensor& ids, const tensorflow::Tensor& offsets) const;

  absl::Status ReadBags(tensorflow::OpKernelContext* ctx, const tensorflow::Tensor& ids,
                        const tensorflow::Tensor& offsets, InputBags* read) const;

  // Checks that there is a factor for each id of a sum, if there are factors at all.
  absl::Status CheckScales(const tensorflow::Tensor& scales, const tensorflow::Tensor& ids) const;

  absl::Status CheckUpstream(const tensorflow::Tensor& upstream, int64_t bags) const;

  // Checks that a forward pass over the bags can have given these winners.
  absl::Status CheckWinners(const tensorflow::Tensor& winners, const Bags& bags) const;

  // Reads the inputs of a gradient: gradients of the output, ids, offsets, scales, winners and, for
  // gradients of the weight, its size.
  struct GradientInputs {
    InputBags read;
    std::optional<PositionMap> positions;
  };

  absl::Status ReadGradientInputs(tensorflow::OpKernelContext* ctx, int64_t size,
                                  GradientInputs* inputs) const;

  // Calls forward(weight) with the first input or, if it is the handle of a variable, with the
  // variable's value.
  template <typename Forward>
  void WithWeight(tensorflow::OpKernelContext* ctx, const Forward& forward) const {
    if (ctx->input_dtype(0) != tensorflow::DT_RESOURCE) return forward(ctx->input(0));
    tensorflow::core::RefCountPtr<tensorflow::Var> variable;
    OP_REQUIRES_OK(ctx, ExpectScalar(ctx->input(0), "weight"));
    OP_REQUIRES_OK(ctx,
                   tensorflow::LookupResource(ctx, tensorflow::HandleFromInput(ctx, 0), &variable));
    // Writers wait until the last element has been read. On a GPU they follow on the stream.
    tensorflow::tf_shared_lock lock(*variable->mu());
    OP_REQUIRES(ctx, variable->is_initialized,
                absl::FailedPreconditionError("expected an initialized weight, got one without "
                                              "a value"));
    OP_REQUIRES(ctx, variable->tensor()->dtype() == weight_type_,
                absl::InvalidArgumentError(
                    "expected a weight of " + tensorflow::DataTypeString(weight_type_) + ", got " +
                    tensorflow::DataTypeString(variable->tensor()->dtype())));
    forward(*variable->tensor());
  }

  // Reads the input `size` of a gradient of the weight.
  static absl::Status ReadSize(tensorflow::OpKernelContext* ctx, int64_t* size);

  tensorflow::DataType weight_type_, out_type_;
  BagMode mode_;
  PositionMapOptions options_;  // all except the size
  int64_t padding_;
  bool ends_;
  bool scaled_;
};

}  // namespace sok
