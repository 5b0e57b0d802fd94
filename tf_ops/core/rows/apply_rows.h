// Applies one commit to the rows of one shard, whichever store they lie in.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/rows/gradient_sum.h"
#include "core/rows/row_coding.h"
#include "core/rows/row_copy.h"
#include "core/rows/row_store.h"
#include "core/rows/shard_partition.h"
#include "core/rows/summed_gradients.h"
#include "core/rules/row_optimizer.h"

namespace sok {

// Returns the entries of a commit's batches by shard. `joined` is scratch.
inline const ShardPartition& PartitionOf(const RowStore& store,
                                         const std::vector<GradientBatch>& batches,
                                         const ParallelFor& parallel_for, ShardPartition* joined) {
  if (batches.size() == 1 && batches[0].summed != nullptr) return batches[0].summed->partition();
  if (!batches.empty() && batches[0].summed != nullptr) {
    std::vector<const ShardPartition*> parts;
    for (const GradientBatch& batch : batches) parts.push_back(&batch.summed->partition());
    joined->Join(parts, parallel_for);
    return *joined;
  }
  std::vector<ShardPartition::Source> sources;
  for (const GradientBatch& batch : batches) {
    sources.push_back({batch.keys, batch.n, batch.positions});
  }
  store.Partition(sources, parallel_for, joined);
  return *joined;
}

// Updates rows. The object is scratch, which keeps its memory. Not thread-safe.
class RowUpdate {
 public:
  // Applies a step. numbers[i] is the row of entries[i] in `rows`, or UINT32_MAX to leave the entry
  // out. Returns the distinct rows that it touched; they live until the next call.
  template <typename Rows>
  const std::vector<uint32_t>& Apply(Rows& rows, const ShardEntry* entries, const uint32_t* numbers,
                                     size_t n, const std::vector<GradientBatch>& batches, int dim,
                                     const RowOptimizer& optimizer, const CommitStep& step) {
    if (step.sequential)
      return ApplyInTurn(rows, entries, numbers, n, batches, dim, optimizer, step);
    sum_.Build(entries, numbers, n, batches, dim);
    const size_t distinct = sum_.rows().size();
    places_.resize(distinct);
    for (size_t u = 0; u < distinct; ++u) {
      places_[u] = rows.row(sum_.rows()[u]);
      __builtin_prefetch(rows.meta(sum_.rows()[u]), 1);
    }
    const RowCoding* const coding = rows.layout().coding();
    Step one{step.number, step.scale};
    if (step.number == 0 || coding != nullptr) {
      own_.resize(distinct);
      for (size_t u = 0; u < distinct; ++u) own_[u] = rows.meta(sum_.rows()[u])->next_update();
    }
    if (step.number == 0) one.row_numbers = own_.data();
    const std::vector<const float*>* gradients = &sum_.gradients();
    if (step.clip_value > 0.0f) {
      gradients = &Clipped(step, dim);
      one.scale = 1.0f;
    }
    if (coding != nullptr) {
      ListKeys(entries, numbers, n);
      ApplyCoded(*coding, one, gradients->data(), optimizer, dim);
    } else {
      optimizer.Apply(one, places_.data(), gradients->data(), distinct, dim);
    }
    for (uint32_t row : sum_.rows()) {
      RowMeta* meta = rows.meta(row);
      meta->update_num = meta->next_update();
      meta->update_time = step.now;
    }
    return sum_.rows();
  }

 private:
  template <typename Rows>
  const std::vector<uint32_t>& ApplyInTurn(Rows& rows, const ShardEntry* entries,
                                           const uint32_t* numbers, size_t n,
                                           const std::vector<GradientBatch>& batches, int dim,
                                           const RowOptimizer& optimizer, const CommitStep& step) {
    const RowCoding* const coding = rows.layout().coding();
    if (coding != nullptr) decoded_.resize(coding->floats());
    touched_.clear();
    for (size_t i = 0; i < n; ++i) {
      if (numbers[i] == UINT32_MAX) continue;
      char* const coded = reinterpret_cast<char*>(rows.row(numbers[i]));
      float* const row = coding == nullptr ? rows.row(numbers[i]) : decoded_.data();
      RowMeta* meta = rows.meta(numbers[i]);
      const float* gradient =
          batches[entries[i].batch].gradients + size_t{entries[i].position} * dim;
      const uint32_t own = meta->update_num = meta->next_update();
      Step one{step.number, step.scale};
      if (step.number == 0) one.row_numbers = &own;
      if (coding != nullptr) coding->Decode(coded, row);
      optimizer.Apply(one, &row, &gradient, 1, dim);
      if (coding != nullptr) {
        coding->EncodeUpdated(row, entries[i].key, own, coded);
      }
      meta->update_time = step.now;
      touched_.push_back(numbers[i]);
    }
    std::sort(touched_.begin(), touched_.end());
    touched_.erase(std::unique(touched_.begin(), touched_.end()), touched_.end());
    return touched_;
  }

  // Lists the keys of sum_.rows(), which are in order of first appearance.
  void ListKeys(const ShardEntry* entries, const uint32_t* numbers, size_t n) {
    keys_.clear();
    for (size_t i = 0; i < n && keys_.size() < sum_.rows().size(); ++i) {
      if (numbers[i] == sum_.rows()[keys_.size()]) keys_.push_back(entries[i].key);
    }
  }

  // Applies a step to the rows at places_, of keys_, whose updates have the numbers own_: decodes
  // some, updates them, and encodes them.
  void ApplyCoded(const RowCoding& coding, const Step& step, const float* const* gradients,
                  const RowOptimizer& optimizer, int dim) {
    constexpr size_t kBytes = 16384;  // of decoded rows, which fit the processor's first cache
    const size_t stride = (coding.floats() + 15) / 16 * 16;
    const size_t most = std::max<size_t>(16, kBytes / (stride * sizeof(float)));
    const size_t distinct = places_.size();
    const auto lines = static_cast<int>(coding.bytes() / sizeof(float));
    decoded_.resize(std::min(most, distinct) * stride);
    decoded_places_.resize(std::min(most, distinct));
    for (size_t i = 0; i < decoded_places_.size(); ++i) {
      decoded_places_[i] = decoded_.data() + i * stride;
    }
    // The rows of a block are on their way while those of the block before are encoded.
    const auto prefetch = [&](size_t u) {
      if (u < distinct) PrefetchOutput(places_[u], lines);
    };
    for (size_t u = 0; u < most; ++u) prefetch(u);
    for (size_t begin = 0; begin < distinct; begin += most) {
      const size_t m = std::min(most, distinct - begin);
      for (size_t i = 0; i < m; ++i) {
        coding.Decode(reinterpret_cast<const char*>(places_[begin + i]), decoded_places_[i]);
      }
      Step part = step;
      if (part.row_numbers != nullptr) part.row_numbers += begin;
      optimizer.Apply(part, decoded_places_.data(), gradients + begin, m, dim);
      for (size_t i = 0; i < m; ++i) {
        prefetch(begin + most + i);
        coding.EncodeUpdated(decoded_places_[i], keys_[begin + i], own_[begin + i],
                             reinterpret_cast<char*>(places_[begin + i]));
      }
    }
  }

  // Returns the sums times the scale, with each element brought into [-clip_value, clip_value]. A
  // NaN stays.
  const std::vector<const float*>& Clipped(const CommitStep& step, int dim) {
    const size_t distinct = sum_.rows().size();
    clipped_.resize(distinct * dim);
    clipped_rows_.resize(distinct);
    for (size_t u = 0; u < distinct; ++u) {
      float* const row = clipped_.data() + u * dim;
      for (int j = 0; j < dim; ++j) {
        const float x = step.scale * sum_.gradients()[u][j];
        row[j] = x > step.clip_value    ? step.clip_value
                 : x < -step.clip_value ? -step.clip_value
                                        : x;
      }
      clipped_rows_[u] = row;
    }
    return clipped_rows_;
  }

  GradientSum sum_;
  std::vector<float> clipped_;
  std::vector<const float*> clipped_rows_;
  std::vector<float*> places_;
  std::vector<Key> keys_;
  std::vector<float> decoded_;
  std::vector<float*> decoded_places_;
  std::vector<uint32_t> own_;
  std::vector<uint32_t> touched_;
};

}  // namespace sok
