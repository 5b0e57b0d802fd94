// Selects the vectors of one output from the vectors of all outputs of a pooling lookup, so that
// each output is a tensor of the graph. The vectors are not copied.
#pragma once

#include <string>

#include "kernels/collection_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace sok {

// The kernel of SokEmbed>CollectionOutput, whose vectors are in the host's memory, and of
// SokEmbed>PooledOutputOnGpu, whose vectors are in the memory of a GPU.
class OutputOp : public tensorflow::OpKernel {
 public:
  explicit OutputOp(tensorflow::OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("index", &index_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dtype", &dtype_));
  }

  static absl::Status SetShape(tensorflow::shape_inference::InferenceContext* c) {
    int64_t width;
    TF_RETURN_IF_ERROR(c->GetAttr("width", &width));
    c->set_output(0, c->Matrix(c->UnknownDim(), width));
    return absl::OkStatus();
  }

  void Compute(tensorflow::OpKernelContext* ctx) override {
    const VectorsVariant* vectors = nullptr;
    OP_REQUIRES_OK(ctx, GetVariant(ctx, 0, "vectors", &vectors));
    const auto outputs = static_cast<int64_t>(vectors->outputs.size());
    OP_REQUIRES(
        ctx, index_ < outputs,
        absl::InvalidArgumentError("expected vectors of more than " + std::to_string(index_) +
                                   " outputs, got " + std::to_string(outputs)));
    const tensorflow::Tensor& output = vectors->outputs[index_];
    OP_REQUIRES(
        ctx, output.dtype() == dtype_,
        absl::InvalidArgumentError("expected vectors of " + tensorflow::DataTypeString(dtype_) +
                                   ", got " + tensorflow::DataTypeString(output.dtype())));
    ctx->set_output(0, output);
  }

 private:
  int64_t index_;
  tensorflow::DataType dtype_;
};

}  // namespace sok
