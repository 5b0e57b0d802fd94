// The inputs of SokEmbed>LookupPooled.
#pragma once

#include <cstdint>
#include <vector>

#include "core/collection/request.h"
#include "kernels/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace sok {

struct PooledInputs {
  tensorflow::OpInputList keys, splits, host_splits, checked_keys, weights;
  std::vector<FeatureBags> bags;                 // (features) without keys
  std::vector<const tensorflow::Tensor*> split;  // (features) null: none; likewise `weights`
  std::vector<const tensorflow::Tensor*> weight;

  // Reads and checks the inputs. `kinds` has the kind of bags of each feature, as in
  // CollectionRequest. `checked` and `weighted` list the features with keys to check, and with
  // weights.
  absl::Status Read(tensorflow::OpKernelContext* ctx, const CollectionPlan& plan,
                    const std::vector<int64_t>& kinds, const std::vector<int64_t>& checked,
                    const std::vector<int64_t>& weighted);
};

}  // namespace sok
