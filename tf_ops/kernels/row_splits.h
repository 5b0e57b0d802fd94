// The splits of messages of rows as they arrive.
#pragma once

#include <cstdint>
#include <string>

#include "tensorflow/core/framework/tensor.h"

namespace sok {

// Returns an error unless `arrived`, int32, has one split for each of `workers`, none below zero,
// and they sum to the elements of `rows`.
inline absl::Status CheckRowSplits(const tensorflow::Tensor& rows,
                                   const tensorflow::Tensor& arrived, size_t workers) {
  const auto splits = arrived.flat<int32_t>();
  int64_t floats = 0;
  bool fits = static_cast<size_t>(splits.size()) == workers;
  for (int64_t worker = 0; worker < splits.size(); ++worker) {
    fits = fits && splits(worker) >= 0;
    floats += splits(worker);
  }
  if (fits && floats == rows.NumElements()) return absl::OkStatus();
  return absl::InvalidArgumentError("expected rows, and splits of each worker that sum to " +
                                    std::to_string(rows.NumElements()) + ", got splits " +
                                    arrived.SummarizeValue(splits.size()));
}

}  // namespace sok
