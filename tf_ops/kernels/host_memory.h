// Temporary tensors in the host's memory, for kernels that may run on a GPU. There allocate_temp
// gives GPU memory to callers that do not ask for the host's.
//
// A GPU copies from pinned memory directly; TensorFlow copies pageable memory into a pinned buffer
// first. allocate_output returns pinned memory if a GPU will read the output. TensorFlow cannot
// know that of a temporary.
#pragma once

#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace sok {

// Allocates a tensor that does not leave its kernel, or is a handle.
inline absl::Status AllocateOnHost(tensorflow::OpKernelContext* ctx, tensorflow::DataType type,
                                   const tensorflow::TensorShape& shape,
                                   tensorflow::Tensor* tensor) {
  tensorflow::AllocatorAttributes attributes;
  attributes.set_on_host(true);
  return ctx->allocate_temp(type, shape, tensor, attributes);
}

// Allocates a tensor that becomes an output later: pinned if there is a GPU.
inline absl::Status AllocatePinned(tensorflow::OpKernelContext* ctx, tensorflow::DataType type,
                                   const tensorflow::TensorShape& shape,
                                   tensorflow::Tensor* tensor) {
  tensorflow::AllocatorAttributes attributes;
  attributes.set_on_host(true);
  attributes.set_gpu_compatible(true);
  return ctx->allocate_temp(type, shape, tensor, attributes);
}

}  // namespace sok
