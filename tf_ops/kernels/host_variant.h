// Makes objects into variants, so that ops can hand them to each other in tensors.
//
// The object of a variant is always in the host's memory, even if its tensor counts as a tensor of
// a GPU: TensorFlow allocates tensors of variants on the host, since they hold C++ objects. So a
// copy from device to device is a copy of the object. Copies are needed even if all of our ops
// declare their variants as host memory: arguments and results of functions count as tensors of the
// device, and so do variants of TensorFlow's own ops for GPUs, which it prefers to the ops for the
// CPU.
#pragma once

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/framework/variant_op_registry.h"

namespace sok {

// Registers copies between devices and zeros of a type, once for each type. Returns true.
template <typename Held>
bool RegisterHostVariant() {
  namespace tf = tensorflow;
  namespace registration = tf::variant_op_registry_fn_registration;
  const auto type = tf::TypeIndex::Make<Held>();
  for (const auto direction : {tf::VariantDeviceCopyDirection::HOST_TO_DEVICE,
                               tf::VariantDeviceCopyDirection::DEVICE_TO_HOST,
                               tf::VariantDeviceCopyDirection::DEVICE_TO_DEVICE}) {
    registration::UnaryVariantDeviceCopyRegistration<Held>(
        direction, type,
        [](const Held& from, Held* to, const tf::UnaryVariantOpRegistry::AsyncTensorDeviceCopyFn&) {
          *to = from;
          return absl::OkStatus();
        });
  }
  for (const char* device : {tf::DEVICE_CPU, tf::DEVICE_GPU}) {
    // An eager tape makes zeros for gradients of outputs that have none. They are empty objects.
    registration::UnaryVariantUnaryOpRegistration<Held>(
        tf::ZEROS_LIKE_VARIANT_UNARY_OP, device, type,
        [](tf::OpKernelContext*, const Held&, Held*) { return absl::OkStatus(); });
  }
  return true;
}

// Registers how gradients of a type are added up. Returns true.
template <typename Held, typename Add>
bool RegisterHostSum(const Add& add) {
  namespace tf = tensorflow;
  for (const char* device : {tf::DEVICE_CPU, tf::DEVICE_GPU}) {
    tf::variant_op_registry_fn_registration::UnaryVariantBinaryOpRegistration<Held>(
        tf::ADD_VARIANT_BINARY_OP, device, tf::TypeIndex::Make<Held>(), add);
  }
  return true;
}

}  // namespace sok
