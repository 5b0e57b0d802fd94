// The common part of ops that look keys up. Their outputs are embeddings and a receipt. If other
// workers wait for the rows, an error goes into the receipt instead of failing the op.
#pragma once

#include <cstring>
#include <string>
#include <utility>

#include "kernels/receipt.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace sok {

// The shapes of such an op whose input 1 has the keys.
inline absl::Status LookupShapes(tensorflow::shape_inference::InferenceContext* c) {
  int64_t dim;
  TF_RETURN_IF_ERROR(c->GetAttr("dim", &dim));
  tensorflow::shape_inference::ShapeHandle embeddings;
  TF_RETURN_IF_ERROR(c->Concatenate(c->input(1), c->Vector(dim), &embeddings));
  c->set_output(0, embeddings);
  c->set_output(1, c->Scalar());
  return absl::OkStatus();
}

class LookupKernel : public tensorflow::OpKernel {
 public:
  // keys_input is the number of the input with the keys; there must be fewer than 2^key_bits keys.
  LookupKernel(tensorflow::OpKernelConstruction* ctx, int keys_input, int key_bits)
      : OpKernel(ctx), keys_input_(keys_input), key_bits_(key_bits) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dim", &dim_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("number", &number_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("reports", &reports_));
  }

  void Compute(tensorflow::OpKernelContext* ctx) override {
    const tensorflow::Tensor& keys = ctx->input(keys_input_);
    OP_REQUIRES(ctx, keys.NumElements() < (int64_t{1} << key_bits_) - 1,
                absl::InvalidArgumentError("expected fewer than 2^" + std::to_string(key_bits_) +
                                           " keys in one lookup, got " +
                                           std::to_string(keys.NumElements())));
    tensorflow::TensorShape shape = keys.shape();
    shape.AddDim(dim_);
    tensorflow::Tensor *embeddings = nullptr, *receipt = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &embeddings));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, {}, &receipt));
    Receipt made;
    const absl::Status status = Read(ctx, keys, embeddings, &made);
    if (!status.ok()) {
      OP_REQUIRES(ctx, reports_, status);
      std::memset(embeddings->data(), 0, embeddings->TotalBytes());
      made.failure = Status(Code::kInternal, std::string(status.message()));
    }
    receipt->scalar<tensorflow::Variant>()() = std::move(made);
  }

 protected:
  virtual absl::Status Read(tensorflow::OpKernelContext* ctx, const tensorflow::Tensor& keys,
                            tensorflow::Tensor* embeddings, Receipt* receipt) const = 0;

  int dim_;
  int64_t number_;

 private:
  const int keys_input_, key_bits_;
  bool reports_;
};

}  // namespace sok
