#ifndef SOK_KERNELS_TENSORFLOW_HEADERS_H_
#define SOK_KERNELS_TENSORFLOW_HEADERS_H_

// Headers that nearly every kernel includes, which are most of the time that it takes to compile:
// they are precompiled for all of them.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/shape_inference.h"

#endif  // SOK_KERNELS_TENSORFLOW_HEADERS_H_
