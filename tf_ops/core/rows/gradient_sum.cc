#include "core/rows/gradient_sum.h"

#include <algorithm>

#include "core/rows/summed_gradients.h"

namespace sok {
namespace {

constexpr uint32_t kLeftOut = UINT32_MAX;

template <typename T>
void Add(const T* gradient, float factor, int dim, float* sum) {
  if (factor == 1.0f) {
    for (int j = 0; j < dim; ++j) sum[j] += ToFloat(gradient[j]);
  } else {
    for (int j = 0; j < dim; ++j) sum[j] += factor * ToFloat(gradient[j]);
  }
}

// Returns the gradient of an entry, or null if it is not float32.
const float* GradientOf(const GradientBatch& batch, uint32_t position, int dim) {
  if (batch.summed != nullptr) return batch.summed->gradient(position);
  return batch.gradients == nullptr ? nullptr : batch.gradients + size_t{position} * dim;
}

// Returns true if a batch has one gradient for each of its keys, float32 and with a factor of 1.
bool HasOneAKey(const GradientBatch& batch) {
  const bool summed = batch.summed != nullptr || (batch.distinct && batch.gradients != nullptr);
  return summed && batch.factor == 1.0f;
}

}  // namespace

uint32_t GradientSum::Unique(uint32_t row) {
  const uint32_t unique = index_.FindOrAdd(row, [this](uint32_t number) { return rows_[number]; });
  if (unique == rows_.size()) {
    rows_.push_back(row);
    counts_.push_back(0);
  }
  return unique;
}

void GradientSum::Take(const ShardEntry* entries, const uint32_t* row_numbers, size_t n,
                       const GradientBatch& batch, int dim) {
  rows_.resize(n);
  gradients_.resize(n);
  size_t taken = 0;
  for (size_t i = 0; i < n; ++i) {
    rows_[taken] = row_numbers[i];
    gradients_[taken] = GradientOf(batch, entries[i].position, dim);
    taken += row_numbers[i] != kLeftOut;
  }
  rows_.resize(taken);
  gradients_.resize(taken);
}

void GradientSum::Build(const ShardEntry* entries, const uint32_t* row_numbers, size_t n,
                        const std::vector<GradientBatch>& batches, int dim) {
  if (batches.size() == 1 && HasOneAKey(batches[0])) {
    Take(entries, row_numbers, n, batches[0], dim);
    return;
  }
  index_.Reset(n);
  unique_.resize(n);
  rows_.clear();
  counts_.clear();
  for (size_t i = 0; i < n; ++i) {
    unique_[i] = row_numbers[i] == kLeftOut ? kLeftOut : Unique(row_numbers[i]);
    if (unique_[i] != kLeftOut) ++counts_[unique_[i]];
  }

  // A row needs a sum of its own if it has several gradients, one that is not float32 yet, or one
  // that is to be multiplied.
  gradients_.assign(rows_.size(), nullptr);
  for (size_t i = 0; i < n; ++i) {
    if (unique_[i] == kLeftOut || counts_[unique_[i]] != 1) continue;
    const GradientBatch& batch = batches[entries[i].batch];
    if (batch.factor == 1.0f) {
      gradients_[unique_[i]] = GradientOf(batch, entries[i].position, dim);
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
    const uint32_t position = entries[i].position;
    float* sum = const_cast<float*>(gradients_[unique_[i]]);  // it points into sums_
    if (const float* gradient = GradientOf(batch, position, dim); gradient != nullptr) {
      Add(gradient, batch.factor, dim, sum);
    } else {
      Add(batch.gradients_bf16 + size_t{position} * dim, batch.factor, dim, sum);
    }
  }
}

}  // namespace sok
