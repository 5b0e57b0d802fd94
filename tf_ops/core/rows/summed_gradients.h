// The gradients of one deposit, summed by key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "core/base/grouping.h"
#include "core/rows/row_store.h"
#include "core/rows/shard_partition.h"

namespace sok {

// Stands for the dense gradient that a static embedding would have, as far as it is not 0: a vector
// over all keys, with a norm and with products.
class SummedGradients {
 public:
  // Sums the gradients of equal keys of a batch, in order, by the shards of the store. A gradient
  // that is the only one of its key is not copied: it stays where the batch has it.
  void Build(const RowStore& store, const GradientBatch& batch, int dim,
             const ParallelFor& parallel_for);

  // Returns the distinct keys by shard; the position of an entry is that of its gradient.
  const ShardPartition& partition() const { return partition_; }
  const float* gradient(uint32_t position) const { return gradients_[position]; }  // (dim)

  // Returns the sum of the squares of all elements.
  double square() const { return square_; }
  // Returns the sum of the products with the elements of another one of the same store. Not
  // thread-safe: the first call prepares those that follow.
  double Dot(const SummedGradients& other);

 private:
  // Sums a shard's gradients. Returns the square of the sums.
  double GroupShard(uint32_t shard, const GradientBatch& batch, std::vector<float>* sums);

  int dim_ = 0;
  ShardPartition partition_;
  // (keys of the batch) The gradient of the distinct key at each position; null at other positions.
  std::vector<const float*> gradients_;
  std::vector<std::vector<float>> sums_;  // a vector for each shard
  // For each row of the batch's gradients: 1 if its gradient is part of a sum, and is not used
  // where it lies.
  std::vector<uint8_t> summed_;
  // The squares of the sums of each shard, and of each block of other rows.
  std::vector<double> squares_;
  double square_ = 0.0;
  // One for each shard, of its keys, once a product was asked for.
  std::vector<DistinctIndex> indexes_;
};

// Keeps the memory of objects that are not used any more, for later ones. Thread-safe.
class SummedGradientsPool : public std::enable_shared_from_this<SummedGradientsPool> {
 public:
  // Returns an object, with the memory that an earlier one left behind.
  std::shared_ptr<SummedGradients> Make();

 private:
  static constexpr size_t kMost = 4;
  std::mutex mu_;
  std::vector<std::unique_ptr<SummedGradients>> idle_;
};

}  // namespace sok
