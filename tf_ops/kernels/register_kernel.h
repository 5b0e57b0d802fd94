// Registers the kernels.
//
// The ops work on the host, in its memory. So each has two kernels, which are the same class: one
// for the CPU, and one for all other devices, GPUs above all, whose inputs and outputs are all in
// the host's memory. TensorFlow copies between the two memories as it does for its own ops of that
// kind. Thus a model that is placed on a GPU runs also where soft placement is off.
//
// The second kernel is registered for DEVICE_DEFAULT, not for DEVICE_GPU: TensorFlow uses it on
// every device whose type has no kernel of its own. TensorFlow registers its own host-only ops in
// the same way. It serves GPUs of all makers, and XLA, which cannot compile the ops, does not see
// it.
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

// Registers a kernel of an op for GPUs. Its tensors are in the GPU's memory, except those that
// `on_host` names. If there are `dtypes`, it is for these values of the attribute "dtype"; for
// others TensorFlow takes the kernel for all other devices. Returns true.
bool RegisterGpuKernel(const char* op, const char* kernel, MakeKernel make,
                       std::initializer_list<const char*> on_host,
                       std::initializer_list<tensorflow::DataType> dtypes = {});

}  // namespace sok

#define SOK_REGISTER_WITH_ID_2(id, Register, name, kernel, ...) \
  [[maybe_unused]] static const bool sok_kernel_##id =          \
      ::sok::Register("SokEmbed>" name, kernel, ::sok::NewKernel<__VA_ARGS__>)
#define SOK_REGISTER_WITH_ID(id, ...) SOK_REGISTER_WITH_ID_2(id, __VA_ARGS__)

// Registers a kernel. `name` is the name of the op without "SokEmbed>". An exception of the kernel
// becomes an error of the op.
#define SOK_REGISTER_KERNEL(name, kernel) \
  SOK_REGISTER_WITH_ID(__COUNTER__, RegisterKernel, name, #kernel, ::sok::Guarded<kernel>)

// Registers an AsyncOpKernel, which must catch its own exceptions.
#define SOK_REGISTER_ASYNC_KERNEL(name, kernel) \
  SOK_REGISTER_WITH_ID(__COUNTER__, RegisterKernel, name, #kernel, kernel)

// Registers a kernel, for the CPU alone, that reads the value of a variable in place: the host
// cannot read a variable in the memory of a GPU. TensorFlow places such a variable on the CPU if it
// is free to, and refuses to run the op on a variable of another device.
#define SOK_REGISTER_CPU_KERNEL(name, kernel) \
  SOK_REGISTER_WITH_ID(__COUNTER__, RegisterCpuKernel, name, #kernel, ::sok::Guarded<kernel>)

// Registers a kernel for GPUs. The last arguments name the tensors that are in the host's memory.
#define SOK_REGISTER_GPU_KERNEL_2(id, name, kernel, ...)                         \
  [[maybe_unused]] static const bool sok_kernel_##id = ::sok::RegisterGpuKernel( \
      "SokEmbed>" name, #kernel, ::sok::NewKernel<::sok::Guarded<kernel>>, {__VA_ARGS__})
#define SOK_REGISTER_GPU_KERNEL_1(id, ...) SOK_REGISTER_GPU_KERNEL_2(id, __VA_ARGS__)
#define SOK_REGISTER_GPU_KERNEL(...) SOK_REGISTER_GPU_KERNEL_1(__COUNTER__, __VA_ARGS__)
