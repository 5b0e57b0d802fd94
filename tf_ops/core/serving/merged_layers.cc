#include "core/serving/merged_layers.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "core/base/status_macros.h"
#include "core/serving/scratch_folder.h"
#include "core/serving/served_rows_writer.h"

namespace sok {
namespace {

using File = std::shared_ptr<const ServedRows>;

constexpr size_t kBatch = 65536;

uint64_t KeysOf(const RowsLayer& layer) {
  return (layer.rows == nullptr ? 0 : layer.rows->size()) +
         (layer.gone == nullptr ? 0 : layer.gone->size());
}

// Clears the flags of keys that a file has; null: it has none.
Status ClearThose(const File& file, const Key* keys, std::vector<uint8_t>* flags) {
  if (file == nullptr) return Status();
  std::vector<uint8_t> there(flags->size());
  SOK_RETURN_IF_ERROR(file->Contains(keys, there.size(), there.data(), SerialFor));
  for (size_t i = 0; i < there.size(); ++i) (*flags)[i] &= static_cast<uint8_t>(there[i] ^ 1);
  return Status();
}

// Adds the rows of `from` whose keys none of the files `above` has.
Status Copy(const File& from, const std::vector<File>& above, ServedRowsWriter* to) {
  if (from == nullptr) return Status();
  const auto dim = static_cast<size_t>(from->dim());
  std::vector<float> rows;
  std::vector<Key> keys;
  for (uint64_t begin = 0; begin < from->size(); begin += kBatch) {
    const auto n = static_cast<size_t>(std::min<uint64_t>(kBatch, from->size() - begin));
    keys.assign(from->keys() + begin, from->keys() + begin + n);
    rows.resize(n * dim);
    from->Read(begin, n, rows.data(), SerialFor);
    std::vector<uint8_t> stays(n, 1);
    for (const File& file : above) SOK_RETURN_IF_ERROR(ClearThose(file, keys.data(), &stays));
    size_t kept = 0;
    for (size_t i = 0; i < n; ++i) {
      if (stays[i] == 0) continue;
      keys[kept] = keys[i];
      if (kept != i) std::copy_n(&rows[i * dim], dim, &rows[kept * dim]);
      ++kept;
    }
    SOK_RETURN_IF_ERROR(to->Add(keys.data(), rows.data(), kept, SerialFor));
  }
  return Status();
}

// Writes a file and opens it; null if nothing was added.
template <typename Add>
Result<File> Written(ScratchFolder* scratch, ServingType type, int dim, const Add& add) {
  const std::string path = scratch->NewPath();
  ServingHeader header;
  header.type = type;
  header.dim = dim;
  SOK_ASSIGN_OR_RETURN(auto writer, ServedRowsWriter::Open(path, std::move(header)));
  SOK_RETURN_IF_ERROR(add(writer.get()));
  SOK_RETURN_IF_ERROR(writer->Finish());
  if (writer->rows() == 0) return File();
  return ServedRows::Open(path);
}

Result<RowsLayer> Merged(const RowsLayer& lower, const RowsLayer& upper, int dim) {
  SOK_ASSIGN_OR_RETURN(const auto scratch, ScratchFolder::Make());
  RowsLayer merged;
  SOK_ASSIGN_OR_RETURN(merged.rows,
                       Written(scratch.get(), ServingType::kFloat32, dim, [&](auto* writer) {
                         SOK_RETURN_IF_ERROR(Copy(upper.rows, {}, writer));
                         return Copy(lower.rows, {upper.rows, upper.gone}, writer);
                       }));
  SOK_ASSIGN_OR_RETURN(merged.gone,
                       Written(scratch.get(), ServingType::kFloat16, 1, [&](auto* writer) {
                         SOK_RETURN_IF_ERROR(Copy(upper.gone, {merged.rows}, writer));
                         return Copy(lower.gone, {merged.rows, upper.gone}, writer);
                       }));
  return merged;
}

}  // namespace

Status AddLayer(std::vector<RowsLayer>* layers, RowsLayer layer, int dim) {
  std::vector<RowsLayer> with = *layers;
  with.push_back(std::move(layer));
  while (with.size() > 1 &&
         (with.size() > kMostLayers || 2 * KeysOf(with.back()) >= KeysOf(with[with.size() - 2]))) {
    const size_t upper = with.size() - 1;
    SOK_ASSIGN_OR_RETURN(with[upper - 1], Merged(with[upper - 1], with[upper], dim));
    with.pop_back();
  }
  *layers = std::move(with);
  return Status();
}

}  // namespace sok
