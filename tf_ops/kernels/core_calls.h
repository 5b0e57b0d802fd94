// Lets the core use TensorFlow's threads, and turns its errors into TensorFlow's.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "core/base/status.h"
#include "core/base/types.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace sok {

// Returns the core's error as TensorFlow's, with the table's name in front if there is one.
absl::Status ToAbsl(const Status& status, const std::string& table_name = "");

// Returns kInvalidArgument unless the tensor has one element. In eager mode no shape function has
// checked this, and TensorFlow aborts the process if a kernel reads a scalar from a tensor of
// another shape.
absl::Status ExpectScalar(const tensorflow::Tensor& tensor, const char* what);

// Returns kInvalidArgument for an op whose attributes do not fit each other; names all of them.
absl::Status UnfitAttributes(const tensorflow::NodeDef& op, const std::string& expected);

// Returns a ParallelFor on TensorFlow's intra-op pool.
ParallelFor IntraOpPool(tensorflow::OpKernelContext* ctx);

}  // namespace sok
