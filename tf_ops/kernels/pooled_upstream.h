// The gradients of the vectors of bags that were pooled on a GPU.
#pragma once

#include <vector>

#include "kernels/gpu_copies.h"
#include "kernels/pooled_on_gpu.h"

namespace sok {

// Reads the gradients of the outputs of a call, in the memory where its rows were pooled. The
// gradient of an output that was not used has no elements.
template <bool kOnGpu>
absl::Status GetUpstream(tensorflow::OpKernelContext* ctx, const PooledCall& call,
                         std::vector<tensorflow::Tensor>* upstream) {
  namespace tf = tensorflow;
  const VectorsVariant* gradients = nullptr;
  TF_RETURN_IF_ERROR(GetVariant(ctx, 0, "gradients", &gradients));
  if (!kOnGpu && (call.on_gpu || gradients->on_gpu)) {
    return absl::InvalidArgumentError(
        "table '" + call.trained.name +
        "': expected the gradients of a lookup on the device that looked up, got a deposit on "
        "another one; take gradients under the scope of the same device");
  }
  upstream->assign(call.outputs.size(), tf::Tensor(tf::DT_INVALID));
  // Zeros of an eager tape have no outputs.
  for (size_t i = 0; i < upstream->size() && i < gradients->outputs.size(); ++i) {
    const tf::Tensor& of_output = gradients->outputs[i];
    if (of_output.dtype() == tf::DT_INVALID) continue;
    if (of_output.dtype() != call.dtype || of_output.shape() != call.outputs[i]) {
      return absl::InvalidArgumentError(
          "table '" + call.trained.name + "': expected a gradient of the shape of the output, " +
          call.outputs[i].DebugString() + ", got shape " + of_output.shape().DebugString());
    }
    (*upstream)[i] = of_output;
    if constexpr (kOnGpu) {
      if (!call.on_gpu) TF_RETURN_IF_ERROR(CopyFromGpu(ctx, of_output, &(*upstream)[i]));
    }
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
