#include "kernels/register_kernel.h"

#include "tensorflow/core/framework/kernel_def_builder.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_def.pb.h"
#include "tensorflow/core/framework/types.h"

namespace sok {

namespace tf = tensorflow;

bool RegisterCpuKernel(const char* op, const char* kernel, MakeKernel make) {
  tf::KernelDefBuilder builder(op);
  builder.Device(tf::DEVICE_CPU).Priority(1);
  tf::kernel_factory::OpKernelRegistrar(builder.Build(), kernel, make);
  return true;
}

bool RegisterKernel(const char* op, const char* kernel, MakeKernel make) {
  RegisterCpuKernel(op, kernel, make);
  const tf::OpRegistrationData* registered = nullptr;
  TF_CHECK_OK(tf::OpRegistry::Global()->LookUp(op, &registered));
  tf::KernelDefBuilder builder(op);
  builder.Device(tf::DEVICE_DEFAULT);
  for (const auto& input : registered->op_def.input_arg()) builder.HostMemory(input.name().c_str());
  for (const auto& output : registered->op_def.output_arg()) {
    builder.HostMemory(output.name().c_str());
  }
  tf::kernel_factory::OpKernelRegistrar(builder.Build(), kernel, make);
  return true;
}

bool RegisterGpuKernel(const char* op, const char* kernel, MakeKernel make,
                       std::initializer_list<const char*> on_host,
                       std::initializer_list<tf::DataType> dtypes) {
  tf::KernelDefBuilder builder(op);
  builder.Device(tf::DEVICE_GPU);
  if (dtypes.size() > 0) builder.TypeConstraint("dtype", dtypes);
  for (const char* name : on_host) builder.HostMemory(name);
  tf::kernel_factory::OpKernelRegistrar(builder.Build(), kernel, make);
  return true;
}

}  // namespace sok
