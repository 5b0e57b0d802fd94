// Pools rows that a graph expects on a GPU, and that lie elsewhere.
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

// Computes the gradients of distinct rows, and of weights (features) where there is a place for
// them, from those of outputs; one without elements was not used.
void PoolGradientOnHost(const PooledCall& call, const std::vector<tensorflow::Tensor>& upstream,
                        float* rows, const std::vector<float*>& weights,
                        const ParallelFor& parallel_for);

}  // namespace sok
