#include "core/serving/layered_rows.h"

#include <algorithm>
#include <utility>

#include "core/base/hash.h"
#include "core/base/status_macros.h"

namespace sok {
namespace {

uint64_t KeysOf(const std::vector<RowsLayer>& layers) {
  uint64_t keys = 0;
  for (const RowsLayer& layer : layers) {
    for (const auto* file : {&layer.gone, &layer.rows}) {
      if (*file != nullptr) keys += (*file)->size();
    }
  }
  return keys;
}

}  // namespace

TouchedKeys::TouchedKeys(uint64_t keys) {
  uint64_t bits = 64;
  while (bits < 16 * keys) bits *= 2;
  words_.resize(bits / 64);
  mask_ = bits - 1;
}

void TouchedKeys::Insert(Key key) {
  const uint64_t hash = Mix64(key);
  for (const uint64_t bit : {hash & mask_, (hash >> 32) & mask_}) {
    words_[bit / 64] |= uint64_t{1} << (bit % 64);
  }
}

bool TouchedKeys::MayHave(Key key) const {
  const uint64_t hash = Mix64(key);
  const uint64_t one = hash & mask_, other = (hash >> 32) & mask_;
  return ((words_[one / 64] >> (one % 64)) & (words_[other / 64] >> (other % 64)) & 1) != 0;
}

LayeredRows::LayeredRows(std::shared_ptr<const ServedRows> base, std::vector<RowsLayer> layers)
    : base_(std::move(base)), layers_(std::move(layers)), touched_(KeysOf(layers_)) {
  for (const RowsLayer& layer : layers_) {
    for (const auto* file : {&layer.gone, &layer.rows}) {
      if (*file == nullptr) continue;
      const Key* const keys = (*file)->keys();
      std::for_each(keys, keys + (*file)->size(), [this](Key key) { touched_.Insert(key); });
    }
  }
}

Result<std::shared_ptr<const LayeredRows>> LayeredRows::Open(std::shared_ptr<const ServedRows> base,
                                                             const std::vector<std::string>& gone,
                                                             const std::vector<std::string>& rows) {
  std::vector<RowsLayer> layers;
  for (size_t i = 0; i < rows.size(); ++i) {
    RowsLayer layer;
    if (!gone[i].empty()) {
      SOK_ASSIGN_OR_RETURN(layer.gone, ServedRows::Open(gone[i]));
    }
    if (!rows[i].empty()) {
      SOK_ASSIGN_OR_RETURN(layer.rows, ServedRows::Open(rows[i]));
      if (layer.rows->dim() != base->dim()) {
        return InvalidArgument("Expected rows of dim " + std::to_string(base->dim()) + " in '" +
                               rows[i] + "'. Received: dim " + std::to_string(layer.rows->dim()) +
                               ".");
      }
    }
    layers.push_back(std::move(layer));
  }
  return std::make_shared<const LayeredRows>(std::move(base), std::move(layers));
}

std::vector<size_t> LayeredRows::Touched(const Key* keys, size_t n) const {
  std::vector<size_t> numbers;
  if (layers_.empty()) return numbers;
  for (size_t i = 0; i < n; ++i) {
    if (touched_.MayHave(keys[i])) numbers.push_back(i);
  }
  return numbers;
}

Status LayeredRows::Lookup(const Key* keys, size_t n, float* out,
                           const ParallelFor& parallel_for) const {
  SOK_RETURN_IF_ERROR(base_->Lookup(keys, n, out, parallel_for));
  const std::vector<size_t> numbers = Touched(keys, n);
  if (numbers.empty()) return Status();
  const auto dim = static_cast<size_t>(base_->dim());
  std::vector<Key> some(numbers.size());
  std::vector<float> rows(numbers.size() * dim);
  for (size_t i = 0; i < numbers.size(); ++i) {
    some[i] = keys[numbers[i]];
    std::copy_n(out + numbers[i] * dim, dim, &rows[i * dim]);
  }
  SOK_RETURN_IF_ERROR(LayRows(some.data(), some.size(), rows.data(), parallel_for));
  for (size_t i = 0; i < numbers.size(); ++i) {
    std::copy_n(&rows[i * dim], dim, out + numbers[i] * dim);
  }
  return Status();
}

Status LayeredRows::LayRows(const Key* keys, size_t n, float* out,
                            const ParallelFor& parallel_for) const {
  const auto dim = static_cast<size_t>(base_->dim());
  for (const RowsLayer& layer : layers_) {
    if (layer.gone != nullptr) {
      std::vector<uint8_t> has_gone(n);
      SOK_RETURN_IF_ERROR(layer.gone->Contains(keys, n, has_gone.data(), parallel_for));
      for (size_t i = 0; i < n; ++i) {
        if (has_gone[i] != 0) base_->FillMissing(keys[i], out + i * dim);
      }
    }
    if (layer.rows != nullptr) {
      SOK_RETURN_IF_ERROR(layer.rows->LayOver(keys, n, out, parallel_for));
    }
  }
  return Status();
}

Status LayeredRows::Contains(const Key* keys, size_t n, uint8_t* out,
                             const ParallelFor& parallel_for) const {
  SOK_RETURN_IF_ERROR(base_->Contains(keys, n, out, parallel_for));
  const std::vector<size_t> numbers = Touched(keys, n);
  if (numbers.empty()) return Status();
  std::vector<Key> some(numbers.size());
  std::vector<uint8_t> flags(numbers.size());
  for (size_t i = 0; i < numbers.size(); ++i) {
    some[i] = keys[numbers[i]];
    flags[i] = out[numbers[i]];
  }
  SOK_RETURN_IF_ERROR(LayFlags(some.data(), some.size(), flags.data(), parallel_for));
  for (size_t i = 0; i < numbers.size(); ++i) out[numbers[i]] = flags[i];
  return Status();
}

Status LayeredRows::LayFlags(const Key* keys, size_t n, uint8_t* out,
                             const ParallelFor& parallel_for) const {
  std::vector<uint8_t> found(n);
  for (const RowsLayer& layer : layers_) {
    if (layer.gone != nullptr) {
      SOK_RETURN_IF_ERROR(layer.gone->Contains(keys, n, found.data(), parallel_for));
      for (size_t i = 0; i < n; ++i) out[i] &= static_cast<uint8_t>(found[i] ^ 1);
    }
    if (layer.rows != nullptr) {
      SOK_RETURN_IF_ERROR(layer.rows->Contains(keys, n, found.data(), parallel_for));
      for (size_t i = 0; i < n; ++i) out[i] |= found[i];
    }
  }
  return Status();
}

}  // namespace sok
