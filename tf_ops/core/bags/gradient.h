// From gradients of bags to gradients of the weight and of the entries' factors.
//
// Each position's contributions are summed once, in an order that the sizes of batch and weight
// decide and the number of threads does not: results are the same bit for bit in every run. Sparse
// gradients are summed in the order of the entries.
#pragma once

#include <cstdint>
#include <vector>

#include "core/bags/bags.h"
#include "core/bags/position_map.h"
#include "core/bags/scratch.h"
#include "core/base/types.h"

namespace sok {

// Points to what the gradients are functions of. Sum is float or double.
template <typename Sum>
struct BagGradient {
  const PositionMap& positions;
  const Bags& bags;
  BagMode mode;
  const Sum* upstream;     // (bags, dim) gradients of the output
  const Sum* scales;       // (entries) as in the forward pass, or null
  const int64_t* winners;  // (bags, dim) with kMax: those of the forward pass; else null
};

// Computes the gradient of the weight into sums (positions.size()).
template <typename Sum>
void DenseWeightGradient(const BagGradient<Sum>& gradient, Sum* sums,
                         const ParallelFor& parallel_for);

// One value of a position in a range of positions.
template <typename Sum>
struct PositionValue {
  uint32_t local;  // the position minus the first one of the range
  Sum value;
};

// The gradient of the weight at only the positions that the batch touches, in ascending order. It
// takes 16 bytes of scratch (32 with double) for each element of the batch.
template <typename Sum>
class SparseWeightGradient {
 public:
  SparseWeightGradient(const BagGradient<Sum>& gradient, const ParallelFor& parallel_for);

  // Returns how many positions the batch touches.
  int64_t size() const { return starts_.back(); }

  // Writes the touched positions (size()) and their sums (size()).
  template <typename Out>
  void Write(int64_t* positions, Out* sums, const ParallelFor& parallel_for) const;

 private:
  int shift_;                         // position = shard << shift_ | local
  Scratch<PositionValue<Sum>> sums_;  // those of shard s begin at firsts_[s]
  std::vector<int64_t> firsts_;       // (shards + 1)
  std::vector<int64_t> starts_;       // (shards + 1) where each shard's part of the output begins
};

// Computes the gradient of each entry's factor into factors (entries): the gradient of its bag
// times its elements, summed in their order. It is 0 for padding.
template <typename T>
void ScaleGradient(const BagGradient<typename SumOf<T>::type>& gradient, const T* weight,
                   typename SumOf<T>::type* factors, const ParallelFor& parallel_for);

}  // namespace sok
