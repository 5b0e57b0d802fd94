#include "core/tables/table.h"

#include <string>
#include <utility>

#include "core/base/hash.h"
#include "core/base/status_macros.h"
#include "core/gpu/gpu_store.h"

namespace sok {

Status Table::CheckDim(int dim) {
  if (dim >= 1 && dim <= kMostDim) return Status();
  return InvalidArgument("a table needs a dim of 1 to " + std::to_string(kMostDim) + ", got " +
                         std::to_string(dim));
}

namespace {

Result<Initializer> InitializerOf(const TableSpec& spec) {
  return Initializer::Make(spec.initializer, spec.initializer_a, spec.initializer_b, spec.seed,
                           spec.group);
}

Result<std::unique_ptr<RowStore>> MakeOnGpu(const TableSpec& spec,
                                            std::shared_ptr<const RowLayout> layout) {
  SOK_ASSIGN_OR_RETURN(const auto initializer, InitializerOf(spec));
  SOK_ASSIGN_OR_RETURN(auto store,
                       gpu::GpuStore::Make(std::move(layout),
                                           {spec.gpu, initializer, spec.max_rows, spec.max_bytes}));
  return std::unique_ptr<RowStore>(std::move(store));
}

}  // namespace

Result<std::unique_ptr<Table>> Table::Make(const TableSpec& spec,
                                           std::shared_ptr<const Expiry> clock) {
  SOK_RETURN_IF_ERROR(CheckDim(spec.dim));
  TableSpec own = spec;
  own.form = SeededForm(spec);
  auto layout = std::make_shared<const RowLayout>(spec.dim, std::vector<Slot>{}, own.form);
  std::unique_ptr<RowStore> store;
  if (spec.gpu >= 0) {
    SOK_ASSIGN_OR_RETURN(store, MakeOnGpu(own, std::move(layout)));
  } else if (spec.direct) {
    constexpr uint64_t kMostKeys = uint64_t{1} << 62;
    if (spec.max_rows == 0 || spec.owner >= spec.owners ||
        spec.max_rows > kMostKeys / spec.owners) {
      return InvalidArgument(
          "a table without a hash index needs max_rows of at least 1, an owner below owners, and "
          "fewer than 2^62 keys in all, got max_rows " +
          std::to_string(spec.max_rows) + ", owner " + std::to_string(spec.owner) + " of " +
          std::to_string(spec.owners));
    }
    IndexConfig index;
    index.capacity = spec.max_rows;
    index.owners = spec.owners;
    index.owner = spec.owner;
    store = MakeDirectStore(std::move(layout), index);
  } else {
    store = MakeHashStore(std::move(layout), spec.shards);
  }
  std::shared_ptr<Admission> admission;
  if (spec.admission.has_value()) {
    SOK_ASSIGN_OR_RETURN(admission, MakeAdmission(*spec.admission));
  }
  if (clock == nullptr) clock = std::make_shared<const Expiry>(0, nullptr);
  auto table = Over(std::move(store), own, {}, std::move(clock), std::move(admission));
  if (table.ok() && spec.step_clock) {
    table.value()->ticks_ = std::make_unique<std::atomic<uint32_t>>(0);
  }
  return table;
}

namespace {

// Returns the eviction of a table; null without one.
Result<std::shared_ptr<Eviction>> EvictionOf(const TableSpec& spec) {
  if (!spec.eviction.has_value()) return std::shared_ptr<Eviction>();
  SOK_ASSIGN_OR_RETURN(std::shared_ptr<Eviction> eviction, MakeEviction(*spec.eviction));
  const std::string kind = "'" + spec.eviction->kind + "'";
  if (spec.direct) {
    return InvalidArgument(
        "a table without a hash index has a place for every key, and no row has to go; expected no "
        "eviction, got " +
        kind);
  }
  if (eviction->needs_full_table() && spec.max_rows == 0) {
    return InvalidArgument("expected max_rows with the eviction " + kind +
                           ", by which rows go only where a table is full, got none");
  }
  return eviction;
}

}  // namespace

Result<std::unique_ptr<Table>> Table::Over(std::unique_ptr<RowStore> store, const TableSpec& spec,
                                           const TableState& state,
                                           std::shared_ptr<const Expiry> clock,
                                           std::shared_ptr<Admission> admission,
                                           std::optional<KeptSlots> kept) {
  SOK_RETURN_IF_ERROR(CheckDim(spec.dim));
  SOK_ASSIGN_OR_RETURN(auto eviction, EvictionOf(spec));
  SOK_ASSIGN_OR_RETURN(auto initializer, InitializerOf(spec));
  std::unique_ptr<Table> table(new Table(spec, initializer, std::move(store)));
  table->state_ = state;
  if (kept.has_value()) table->history_ = OptimizerHistory::KeepingSlots();
  table->kept_ = std::move(kept);
  table->clock_ = std::move(clock);
  table->admission_ = std::move(admission);
  if (eviction != nullptr) {
    table->eviction_ = std::move(eviction);
    table->in_use_ = std::make_shared<RowsInUse>();
    if (spec.max_rows > 0) {
      table->evictor_ = std::make_unique<RowEvictor>(table->store_.get(), spec.dim, spec.max_rows,
                                                     table->eviction_, table->in_use_);
    }
  }
  return table;
}

int64_t Table::steps() {
  std::lock_guard<std::mutex> commit(commit_mu_);
  return state_.steps;
}

TableStats Table::Stats() {
  TableStats stats{};
  stats.rows = store_->size();
  stats.max_rows = spec_.max_rows;
  stats.index_bytes = store_->index_bytes();
  stats.row_bytes = store_->row_bytes();
  stats.steps = static_cast<uint64_t>(steps());
  stats.pending_gradients = deposits_.gradients();
  stats.left_out = left_out_;
  stats.evicted = evicted_ + (evictor_ == nullptr ? 0 : evictor_->evicted());
  stats.looked_up = looked_up_;
  stats.found = found_;
  stats.refused = refused_;
  stats.made = store_->made();
  stats.cache_hits = store_->cache_hits();
  stats.read_ahead = store_->ahead().read;
  stats.left_behind = store_->ahead().left_behind;
  return stats;
}

}  // namespace sok
