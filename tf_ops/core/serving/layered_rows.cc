#include "core/serving/layered_rows.h"

#include <utility>

#include "core/base/status_macros.h"

namespace sok {

Result<std::shared_ptr<const LayeredRows>> LayeredRows::Open(std::shared_ptr<const ServedRows> base,
                                                             const std::vector<std::string>& gone,
                                                             const std::vector<std::string>& rows) {
  auto layered = std::make_shared<LayeredRows>(std::move(base));
  for (size_t i = 0; i < rows.size(); ++i) {
    RowsLayer layer;
    if (!gone[i].empty()) {
      SOK_ASSIGN_OR_RETURN(layer.gone, ServedRows::Open(gone[i]));
    }
    if (!rows[i].empty()) {
      SOK_ASSIGN_OR_RETURN(layer.rows, ServedRows::Open(rows[i]));
      if (layer.rows->dim() != layered->dim()) {
        return InvalidArgument("Expected rows of dim " + std::to_string(layered->dim()) + " in '" +
                               rows[i] + "'. Received: dim " + std::to_string(layer.rows->dim()) +
                               ".");
      }
    }
    layered->layers_.push_back(std::move(layer));
  }
  return std::shared_ptr<const LayeredRows>(std::move(layered));
}

Status LayeredRows::Lookup(const Key* keys, size_t n, float* out,
                           const ParallelFor& parallel_for) const {
  SOK_RETURN_IF_ERROR(base_->Lookup(keys, n, out, parallel_for));
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
  std::vector<uint8_t> found(layers_.empty() ? 0 : n);
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
