#include "core/serving/followed_tables.h"

#include <utility>

#include "core/base/status_macros.h"
#include "core/serving/merged_layers.h"

namespace sok {
namespace {

// Applies one delta to the layers of all tables.
Status Advance(const ExportedTables& base, TablesVersion* version,
               std::vector<std::vector<RowsLayer>>* layers) {
  SOK_ASSIGN_OR_RETURN(RowsDelta delta, ReadDelta(base, version->delta + 1, version->digest));
  std::vector<std::vector<RowsLayer>> with = *layers;
  for (size_t i = 0; i < with.size(); ++i) {
    RowsLayer& changes = delta.changes[i];
    if (changes.rows == nullptr && changes.gone == nullptr) continue;
    SOK_RETURN_IF_ERROR(AddLayer(&with[i], std::move(changes), base.tables[i]->dim()));
  }
  *layers = std::move(with);
  version->delta = delta.number;
  version->digest = delta.digest;
  version->step = delta.step;
  return Status();
}

}  // namespace

FollowedTables::FollowedTables(ExportedTables base) : base_(std::move(base)) {
  TablesVersion first;
  for (const auto& table : base_.tables) {
    first.tables.push_back(std::make_shared<const LayeredRows>(table));
  }
  version_ = std::make_shared<const TablesVersion>(std::move(first));
}

Result<std::unique_ptr<FollowedTables>> FollowedTables::Open(const std::string& folder) {
  SOK_ASSIGN_OR_RETURN(ExportedTables base, OpenExport(folder));
  return std::unique_ptr<FollowedTables>(new FollowedTables(std::move(base)));
}

std::shared_ptr<const TablesVersion> FollowedTables::version() const {
  std::lock_guard<std::mutex> guard(mu_);
  return version_;
}

Status FollowedTables::UpdateToNewest() {
  SOK_ASSIGN_OR_RETURN(const uint64_t newest, NewestDelta(base_));
  // A delta that is served already may be newer than a CURRENT.json from before.
  return newest <= version()->delta ? Status() : Update(newest);
}

Status FollowedTables::Update(uint64_t to) {
  std::lock_guard<std::mutex> guard(updating_);
  const std::shared_ptr<const TablesVersion> before = version();
  if (to < before->delta) {
    return InvalidArgument("Expected a delta from " + std::to_string(before->delta) +
                           " on, which '" + base_.folder + "' is at. Received: delta " +
                           std::to_string(to) + ". Open the export again to go back.");
  }
  TablesVersion next = *before;
  std::vector<std::vector<RowsLayer>> layers;
  for (const auto& table : before->tables) layers.push_back(table->layers());
  Status status;
  while (status.ok() && next.delta < to) status = Advance(base_, &next, &layers);
  if (next.delta == before->delta) return status;
  for (size_t i = 0; i < layers.size(); ++i) {
    const auto& old = before->tables[i]->layers();
    const bool is_same = layers[i].size() == old.size() &&
                         (old.empty() || (layers[i].back().rows == old.back().rows &&
                                          layers[i].back().gone == old.back().gone));
    if (!is_same) {
      next.tables[i] = std::make_shared<const LayeredRows>(base_.tables[i], std::move(layers[i]));
    }
  }
  auto version = std::make_shared<const TablesVersion>(std::move(next));
  std::lock_guard<std::mutex> swap(mu_);
  version_.swap(version);
  return status;
}

}  // namespace sok
