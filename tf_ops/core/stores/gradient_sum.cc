#include "core/stores/gradient_sum.h"

#include <algorithm>

#include "core/hash.h"

namespace sok {
namespace {

constexpr uint32_t kLeftOut = UINT32_MAX;

template <typename T>
void Add(const T* gradient, int dim, float* sum) {
  for (int j = 0; j < dim; ++j) sum[j] += ToFloat(gradient[j]);
}

}  // namespace

uint32_t GradientSum::Unique(uint32_t row) {
  const size_t mask = table_.size() - 1;
  for (size_t slot = Mix64(row) & mask;; slot = (slot + 1) & mask) {
    if (table_[slot] == 0) {
      rows_.push_back(row);
      counts_.push_back(0);
      table_[slot] = static_cast<uint32_t>(rows_.size());
    }
    if (rows_[table_[slot] - 1] == row) return table_[slot] - 1;
  }
}

void GradientSum::Build(const ShardEntry* entries, const uint32_t* row_numbers, size_t n,
                        const std::vector<GradientBatch>& batches, int dim) {
  size_t slots = 16;
  while (slots < 2 * n) slots *= 2;
  table_.assign(slots, 0);
  unique_.resize(n);
  rows_.clear();
  counts_.clear();
  for (size_t i = 0; i < n; ++i) {
    unique_[i] = row_numbers[i] == kLeftOut ? kLeftOut : Unique(row_numbers[i]);
    if (unique_[i] != kLeftOut) ++counts_[unique_[i]];
  }

  // A row needs a sum of its own if it has several gradients or one that is not float32 yet.
  gradients_.assign(rows_.size(), nullptr);
  for (size_t i = 0; i < n; ++i) {
    if (unique_[i] == kLeftOut || counts_[unique_[i]] != 1) continue;
    const GradientBatch& batch = batches[entries[i].batch];
    if (batch.gradients != nullptr) {
      gradients_[unique_[i]] = batch.gradients + size_t{entries[i].position} * dim;
    }
  }
  size_t sums = 0;
  for (size_t u = 0; u < rows_.size(); ++u) sums += gradients_[u] == nullptr;
  sums_.assign(sums * dim, 0.0f);
  float* next = sums_.data();
  for (size_t u = 0; u < rows_.size(); ++u) {
    counts_[u] = gradients_[u] == nullptr;
    if (counts_[u] == 0) continue;
    gradients_[u] = next;
    next += dim;
  }
  if (sums == 0) return;
  for (size_t i = 0; i < n; ++i) {
    if (unique_[i] == kLeftOut || counts_[unique_[i]] == 0) continue;
    const GradientBatch& batch = batches[entries[i].batch];
    const size_t offset = size_t{entries[i].position} * dim;
    float* sum = const_cast<float*>(gradients_[unique_[i]]);  // it points into sums_
    if (batch.gradients != nullptr) {
      Add(batch.gradients + offset, dim, sum);
    } else {
      Add(batch.gradients_bf16 + offset, dim, sum);
    }
  }
}

}  // namespace sok
