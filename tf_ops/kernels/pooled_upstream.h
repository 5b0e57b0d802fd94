// The gradients of the vectors of bags that were pooled on a GPU.
#pragma once

#include <vector>

#include "kernels/gpu_copies.h"
#include "kernels/pooled_on_gpu.h"

namespace sok {

// Reads the gradients of the outputs of a call, which are in the memory where its rows were pooled.
// They are an input of the kernel. The gradient of an output that was not used has no elements.
inline absl::Status GetUpstream(tensorflow::OpKernelContext* ctx, int input, const PooledCall& call,
                                std::vector<tensorflow::Tensor>* upstream) {
  namespace tf = tensorflow;
  const VectorsVariant* gradients = nullptr;
  TF_RETURN_IF_ERROR(GetVariant(ctx, input, "gradients", &gradients));
  // Zeros of an eager tape have no outputs.
  if ((call.on_gpu && !RunsOnGpu(ctx)) ||
      (gradients->on_gpu != call.on_gpu && !gradients->outputs.empty())) {
    return RefuseOtherDevice(call.trained.name);
  }
  upstream->assign(call.outputs.size(), tf::Tensor(tf::DT_INVALID));
  for (size_t i = 0; i < upstream->size() && i < gradients->outputs.size(); ++i) {
    const tf::Tensor& of_output = gradients->outputs[i];
    if (of_output.dtype() == tf::DT_INVALID) continue;
    if (of_output.dtype() != call.dtype || of_output.shape() != call.outputs[i]) {
      return absl::InvalidArgumentError(
          "table '" + call.trained.name + "': expected a gradient of the shape of the output, " +
          call.outputs[i].DebugString() + ", got shape " + of_output.shape().DebugString());
    }
    (*upstream)[i] = of_output;
  }
  return absl::OkStatus();
}

// Returns the bags of a feature with the gradients of their vectors.
inline gpu::RowBags WithUpstream(const PooledCall& call, size_t feature,
                                 const tensorflow::Tensor& upstream) {
  gpu::RowBags bags = call.bags[feature];
  bags.vectors = AddressOf(upstream) +
                 call.places[feature].offset * tensorflow::DataTypeSize(upstream.dtype());
  return bags;
}

}  // namespace sok
