// Small outputs of ops, and shapes of outputs.
#pragma once

#include <utility>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace sok {

// Sets the shape of each output: a vector of any length.
inline absl::Status UnknownVectors(tensorflow::shape_inference::InferenceContext* c) {
  for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, c->Vector(c->UnknownDim()));
  return absl::OkStatus();
}

inline absl::Status PutScalar(tensorflow::OpKernelContext* ctx, int64_t value) {
  tensorflow::Tensor* out = nullptr;
  TF_RETURN_IF_ERROR(ctx->allocate_output(0, {}, &out));
  out->scalar<int64_t>()() = value;
  return absl::OkStatus();
}

// Sets names as the first output, and their values as the second.
template <typename T>
absl::Status PutNamed(tensorflow::OpKernelContext* ctx,
                      const std::vector<std::pair<const char*, T>>& items) {
  const auto n = static_cast<int64_t>(items.size());
  tensorflow::Tensor *names, *values;
  TF_RETURN_IF_ERROR(ctx->allocate_output(0, {n}, &names));
  TF_RETURN_IF_ERROR(ctx->allocate_output(1, {n}, &values));
  for (int64_t i = 0; i < n; ++i) {
    names->vec<tensorflow::tstring>()(i) = items[i].first;
    values->vec<T>()(i) = items[i].second;
  }
  return absl::OkStatus();
}

}  // namespace sok
