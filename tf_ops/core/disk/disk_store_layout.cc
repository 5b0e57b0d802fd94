// Changes the layout of the rows of DiskStore to the slots of another rule.
#include <shared_mutex>
#include <utility>

#include "core/base/status_macros.h"
#include "core/disk/disk_store.h"
#include "core/disk/disk_store_shard.h"

namespace sok {

Result<bool> DiskStore::Relayout(std::shared_ptr<const RowLayout> layout, const TableState& state,
                                 const ParallelFor& /*parallel_for*/) {
  {
    // Enter repairs what an earlier error has left.
    SOK_ASSIGN_OR_RETURN(const auto entrance, core_->Enter(/*to_write=*/true));
  }
  const auto gate = core_->TakeAlone();
  SOK_RETURN_IF_ERROR(core_->CheckWritable());
  std::vector<Slot> slots = layout->slots();
  TableState reached = state;
  if (layout->SameShape(*this->layout())) {
    SetLayout(std::move(layout), std::move(slots));
    SetState(std::move(reached));
    return false;
  }
  // Rows of the old layout go to the database, where the layout's number tells them apart.
  SOK_RETURN_IF_ERROR(Settle());
  if (core_->journal != nullptr) {
    // This may run out of memory, so it comes before any change.
    GroupMeta after = meta();
    after.layout = layout_number() + 1;
    after.state = state;
    SOK_ASSIGN_OR_RETURN(auto room, core_->journal->Reserve(0));
    const NamedValues named = {{GroupMetaName(group_), after.ToJson()}};
    SOK_RETURN_IF_ERROR(core_->journal->Append(std::move(room), named, {}));
  }
  SetLayout(std::move(layout), std::move(slots));
  SetState(std::move(reached));
  return true;
}

// Each commit calls this first: Relayout would wait for all other calls, and for a flush that runs
// beside them.
bool DiskStore::IsLaidOut(const std::vector<Slot>& slots) const {
  return layout()->slots() == slots;
}

void DiskStore::SetLayout(std::shared_ptr<const RowLayout> layout, std::vector<Slot> slots) {
  const bool reshape = !layout->SameShape(*this->layout());
  for (const auto& shard : shards_) {
    std::lock_guard<SharedMutex> lock(shard->mu);
    if (reshape) {
      shard->Reset(layout);
    } else {
      shard->rows.set_layout(layout);
    }
  }
  std::lock_guard<std::mutex> guard(meta_mu_);
  if (reshape) {
    ++layout_number_;
    state_.rule.clear();  // until the first commit in the new layout
    state_.steps = 0;
  }
  state_.slots = std::move(slots);
  layout_ = std::move(layout);
}

}  // namespace sok
