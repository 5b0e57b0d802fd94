// Copies of tensors between the memories of the host and of the GPU that a kernel runs on. Each
// copy waits for earlier work of TensorFlow on the GPU, and until the copy is done.
#pragma once

#include "kernels/host_memory.h"
#include "tensorflow/core/framework/device.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace sok {

// Makes `host` a copy of a tensor of the GPU, in the host's memory.
inline absl::Status CopyFromGpu(tensorflow::OpKernelContext* ctx, const tensorflow::Tensor& tensor,
                                tensorflow::Tensor* host) {
  TF_RETURN_IF_ERROR(AllocatePinned(ctx, tensor.dtype(), tensor.shape(), host));
  if (tensor.NumElements() == 0) return absl::OkStatus();
  return ctx->op_device_context()->CopyDeviceTensorToCPUSync(
      &tensor, "", static_cast<tensorflow::Device*>(ctx->device()), host);
}

// Copies a tensor of the host to one of the GPU that has its type and shape.
inline absl::Status CopyToGpu(tensorflow::OpKernelContext* ctx, const tensorflow::Tensor& host,
                              tensorflow::Tensor* tensor) {
  if (host.NumElements() == 0) return absl::OkStatus();
  return ctx->op_device_context()->CopyCPUTensorToDeviceSync(
      &host, static_cast<tensorflow::Device*>(ctx->device()), tensor);
}

}  // namespace sok
