// Registers the kernels.
//
// The ops work on the host, in its memory. So each has two kernels, which are the same class: one
// for the CPU, and one for all other devices, GPUs above all, whose inputs and outputs are all in
// the host's memory. TensorFlow copies between the two memories as it does for its own ops of that
// kind. Thus a model that is placed on a GPU runs also where soft placement is off.
//
// The second kernel is one for DEVICE_DEFAULT and not for DEVICE_GPU: TensorFlow takes it for every
// device whose type has none of its own, which is how its own ops that need nothing of a device are
// registered. It serves GPUs of all makers, and XLA, which cannot compile the ops, does not see it.
//
// The kernel for the CPU has the higher priority: an op without a device runs there, where
// the tables are, and not on the first of several GPUs. In a function TensorFlow prefers the device
// that the function is called on, which is a GPU where there is one. It makes little difference:
// the tensors are in the same memory.
#pragma once

#include <initializer_list>

#include "kernels/guarded_kernel.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace sok {

using MakeKernel = tensorflow::OpKernel* (*)(tensorflow::OpKernelConstruction*);

template <typename Kernel>
tensorflow::OpKernel* NewKernel(tensorflow::OpKernelConstruction* ctx) {
  return new Kernel(ctx);
}

// A kernel of an op without attributes: a function of the context.
template <absl::Status (*kRun)(tensorflow::OpKernelContext*)>
class FunctionKernel : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* ctx) override { OP_REQUIRES_OK(ctx, kRun(ctx)); }
};

// Registers a kernel of an op for the CPU. Returns true.
bool RegisterCpuKernel(const char* op, const char* kernel, MakeKernel make);

// Registers a kernel of an op for the CPU and for all other devices. The op must have been
// registered before, by a REGISTER_OP above in the same file: the names of its inputs and outputs
// are read from there. Ends the process if it was not. Returns true.
bool RegisterKernel(const char* op, const char* kernel, MakeKernel make);

// Registers a kernel of an op for GPUs, whose tensors are in the GPU's memory but for those that
// `on_host` names. Returns true.
bool RegisterGpuKernel(const char* op, const char* kernel, MakeKernel make,
                       std::initializer_list<const char*> on_host);

}  // namespace sok

#define SOK_REGISTER_WITH_ID_2(id, Register, name, kernel, ...) \
  [[maybe_unused]] static const bool sok_kernel_##id =          \
      ::sok::Register("SokEmbed>" name, kernel, ::sok::NewKernel<__VA_ARGS__>)
#define SOK_REGISTER_WITH_ID(id, ...) SOK_REGISTER_WITH_ID_2(id, __VA_ARGS__)

// Registers a kernel. `name` is that of the op, without "SokEmbed>". What the kernel throws becomes
// an error of the op.
#define SOK_REGISTER_KERNEL(name, kernel) \
  SOK_REGISTER_WITH_ID(__COUNTER__, RegisterKernel, name, #kernel, ::sok::Guarded<kernel>)

// Registers an AsyncOpKernel, which must catch what it throws.
#define SOK_REGISTER_ASYNC_KERNEL(name, kernel) \
  SOK_REGISTER_WITH_ID(__COUNTER__, RegisterKernel, name, #kernel, kernel)

// Registers a kernel that reads the value of a variable where it lies, which on a GPU is memory
// that the host cannot read. TensorFlow keeps a variable that it may place with an op that reads it
// so on the CPU, and refuses to run the op on one that lies on another device.
#define SOK_REGISTER_CPU_KERNEL(name, kernel) \
  SOK_REGISTER_WITH_ID(__COUNTER__, RegisterCpuKernel, name, #kernel, ::sok::Guarded<kernel>)

// Registers a kernel for GPUs. What follows names the tensors that are in the host's memory.
#define SOK_REGISTER_GPU_KERNEL_2(id, name, kernel, ...)                         \
  [[maybe_unused]] static const bool sok_kernel_##id = ::sok::RegisterGpuKernel( \
      "SokEmbed>" name, #kernel, ::sok::NewKernel<::sok::Guarded<kernel>>, {__VA_ARGS__})
#define SOK_REGISTER_GPU_KERNEL_1(id, ...) SOK_REGISTER_GPU_KERNEL_2(id, __VA_ARGS__)
#define SOK_REGISTER_GPU_KERNEL(...) SOK_REGISTER_GPU_KERNEL_1(__COUNTER__, __VA_ARGS__)
