// Pools rows on the host that a graph expects in the memory of a GPU.
#pragma once

#include <vector>

#include "kernels/pooled_on_gpu.h"

namespace sok {

// Looks the keys of bags (features) up, and pools their rows into outputs, tensors of the host.
// `call` gets what gradients need.
absl::Status PoolOnHost(const std::vector<FeatureBags>& bags, bool make_rows,
                        const std::vector<bool>& trainable,
                        const std::vector<tensorflow::Tensor>& outputs, PooledCall* call,
                        const ParallelFor& parallel_for);

// Computes the gradients of distinct rows, and of weights (features) if there is a place for them,
// from the gradients of outputs. An output whose gradient has no elements was not used.
void PoolGradientOnHost(const PooledCall& call, const std::vector<tensorflow::Tensor>& upstream,
                        float* rows, const std::vector<float*>& weights,
                        const ParallelFor& parallel_for);

}  // namespace sok
