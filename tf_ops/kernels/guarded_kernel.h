// Turns exceptions in kernels, mostly failed allocations, into errors of the op. TensorFlow catches
// none, and the process would end.
#pragma once

#include <exception>
#include <new>
#include <stdexcept>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace sok {

// Returns the status of the exception that is being handled.
inline absl::Status CaughtStatus() {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("there was not enough memory for the op");
  } catch (const std::length_error&) {
    return absl::ResourceExhaustedError("the op was asked for more than any memory holds");
  } catch (const std::exception& error) {
    return absl::InternalError(std::string("unexpected error: ") + error.what());
  }
}

template <typename Kernel>
class Guarded final : public Kernel {
 public:
  using Kernel::Kernel;

  // The kernel works on the host even if it is placed on a GPU. TensorFlow would assume that a
  // kernel on a GPU only starts work there, and would run several in a row on one thread.
  bool IsExpensive() override { return true; }

  void Compute(tensorflow::OpKernelContext* ctx) override {
    try {
      Kernel::Compute(ctx);
    } catch (const std::exception&) {
      ctx->CtxFailure(CaughtStatus());
    }
  }
};

}  // namespace sok
