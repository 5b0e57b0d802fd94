// Copies of tensors between the memories of the host and of the GPU that a kernel runs on. Each
// copy waits for earlier work of TensorFlow on the GPU, and until the copy is done.
#pragma once

#include <string>

#include "kernels/host_memory.h"
#include "tensorflow/core/framework/device.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "xla/stream_executor/stream.h"

namespace sok {

// Returns whether a kernel runs on a GPU, where it is the kernel for GPUs if its op has one.
inline bool RunsOnGpu(tensorflow::OpKernelContext* ctx) {
  return ctx->device()->attributes().device_type() == tensorflow::DEVICE_GPU;
}

// Returns the stream on which TensorFlow queues the work of all ops of the GPU.
inline void* StreamOf(tensorflow::OpKernelContext* ctx) {
  return ctx->op_device_context()->stream()->platform_specific_handle().stream;
}

// Returns the error of gradients of a lookup on a GPU that are elsewhere.
inline absl::Status RefuseOtherDevice(const std::string& table) {
  return absl::InvalidArgumentError(
      "table '" + table +
      "': expected the gradients of a lookup on the device that looked up, got a deposit on "
      "another one; take gradients under the scope of the same device");
}

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
