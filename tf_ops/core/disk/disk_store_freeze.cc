// The dirty rows of DiskStore at one moment, for a flush beside other calls.
#include <algorithm>
#include <chrono>
#include <mutex>
#include <shared_mutex>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/status_macros.h"
#include "core/disk/disk_store.h"
#include "core/disk/disk_store_shard.h"
#include "core/disk/frozen_spill.h"

namespace sok {
namespace {

// The pause between two pieces of a shard that are spilled.
constexpr std::chrono::microseconds kPause(200);

}  // namespace

bool DiskStore::can_spill() const {
  const std::shared_lock<SharedMutex> lock(shards_[0]->mu);
  return shards_[0]->spill->enabled();
}

Result<uint64_t> DiskStore::SpillDirty(uint32_t part) {
  Shard& shard = *shards_[part];
  CacheRows& cached = shard.rows;
  // This is enough for a file of pending rows, if the spill is full.
  const size_t most = Database::kPendingFileBytes / RecordBytes() + 1;
  uint64_t count = 0;
  const Status status = OrNoMemory([&] {
    std::vector<uint32_t> dirty;
    std::vector<Spill::Row> rows;
    for (uint32_t block = 0;;) {
      // Rows are spilled a part at a time, so that other calls need not wait for all of them. The
      // pause lets a waiting thread wake up and take the lock, which this thread would otherwise
      // take again at once.
      if (block > 0) std::this_thread::sleep_for(kPause);
      const std::lock_guard<SharedMutex> lock(shard.mu);
      dirty.clear();
      rows.clear();
      for (; block < cached.block_numbers() && rows.size() < most; ++block) {
        cached.ForEachOfBlock(block, [&](uint32_t row) {
          if ((cached.state(row) & kRowDirty) == 0) return;
          dirty.push_back(row);
          rows.push_back(SpillRowOf(shard, row));
        });
      }
      if (rows.empty()) {
        shard.ChargeIndexes();
        return Status();
      }
      bool spilled = false;
      SOK_RETURN_IF_ERROR(SpillOrWrite(shard, &rows, &spilled));
      for (uint32_t row : dirty) {
        cached.Unmark(row, spilled ? kRowDirty : kRowDirty | kRowNew);
        if (spilled) cached.Mark(row, kRowSpilled);
      }
      count += rows.size();
    }
  });
  if (!status.ok()) return status;
  return count;
}

std::unique_ptr<DurableStore::FrozenRows> DiskStore::FreezeDirty() {
  const size_t memory = std::clamp<uint64_t>(core_->memory.budget() / 64, 8 << 20, 48 << 20);
  auto frozen = std::make_unique<FrozenSpill>(core_->spill.get(), layout()->value_bytes(), memory);
  for (const auto& shard : shards_) {
    const std::lock_guard<SharedMutex> lock(shard->mu);
    frozen->Add(shard->spill->Freeze());
    shard->rows.ForEach([&](uint32_t row) { shard->rows.Unmark(row, kRowNew); });
  }
  return frozen;
}

void DiskStore::Thaw(bool published) {
  for (const auto& shard : shards_) {
    const std::lock_guard<SharedMutex> lock(shard->mu);
    shard->spill->Thaw(/*dirty=*/!published);
  }
}

}  // namespace sok
