#include "core/gpu/gpu_store.h"

#include <algorithm>
#include <shared_mutex>
#include <string>
#include <utility>

#include "core/base/hash.h"
#include "core/base/status_macros.h"
#include "core/rows/apply_rows.h"

namespace sok::gpu {
namespace {

// Parts of the keys, by bits of their hash.
constexpr int kPartBits = 6;
uint32_t PartOf(Key key) { return static_cast<uint32_t>(Mix64(key) >> (64 - kPartBits)); }

}  // namespace

Result<std::unique_ptr<GpuStore>> GpuStore::Make(std::shared_ptr<const RowLayout> layout,
                                                 const GpuStoreConfig& config) {
  if (layout->coding() != nullptr) {
    return InvalidArgument(
        "Expected row_dtype and slot_dtype of float32 in the memory of a GPU. Received: rows or "
        "slots in fewer bytes, which are for tables in the host's memory.");
  }
  SOK_ASSIGN_OR_RETURN(auto device, Device::Open(config.device));
  const GpuTableConfig of_table{layout->dim(), config.initializer, config.max_rows,
                                config.max_bytes};
  std::unique_ptr<GpuStore> store(new GpuStore(std::move(device), of_table, std::move(layout)));
  SOK_ASSIGN_OR_RETURN(store->table_, GpuTable::Make(store->device_, of_table));
  SOK_RETURN_IF_ERROR(store->table_->SetRule("", store->layout_->slots(), nullptr));
  return store;
}

uint32_t GpuStore::floats() const {
  const auto layout = this->layout();
  return static_cast<uint32_t>(layout->dim() + layout->slot_floats());
}

void GpuStore::Partition(const std::vector<ShardPartition::Source>& sources,
                         const ParallelFor& parallel_for, ShardPartition* partition) const {
  partition->Build(sources, parts(), PartOf, parallel_for);
}

Result<GpuGradients> GpuStore::Upload(const GradientBatch& batch, uint64_t at,
                                      Stream stream) const {
  const auto dim = static_cast<size_t>(config_.dim);
  std::vector<Key> keys;
  std::vector<float> gradients;
  std::vector<BFloat16> gradients_bf16;
  const Key* from_keys = batch.keys;
  const void* from = batch.gradients;
  size_t n = batch.n;
  bool is_float = batch.gradients != nullptr;
  if (batch.summed != nullptr) {
    const ShardPartition& partition = batch.summed->partition();
    for (uint32_t shard = 0; shard < partition.shards(); ++shard) {
      for (size_t i = 0; i < partition.size(shard); ++i) {
        const ShardEntry& entry = partition.begin(shard)[i];
        const float* const gradient = batch.summed->gradient(entry.position);
        keys.push_back(entry.key);
        gradients.insert(gradients.end(), gradient, gradient + dim);
      }
    }
    n = keys.size();
    from_keys = keys.data();
    from = gradients.data();
    is_float = true;
  } else if (batch.positions != nullptr) {
    for (size_t i = 0; i < n; ++i) {
      const size_t begin = batch.positions[i] * dim;
      if (is_float) {
        gradients.insert(gradients.end(), batch.gradients + begin, batch.gradients + begin + dim);
      } else {
        gradients_bf16.insert(gradients_bf16.end(), batch.gradients_bf16 + begin,
                              batch.gradients_bf16 + begin + dim);
      }
    }
    from = is_float ? static_cast<const void*>(gradients.data()) : gradients_bf16.data();
  } else if (!is_float) {
    from = batch.gradients_bf16;
  }
  // The places have the size of float32, which is large enough for both types.
  GpuGradients uploaded{staged_keys_.address() + at * sizeof(Key),
                        staged_floats_.address() + at * dim * sizeof(float),
                        is_float ? Element::kFloat32 : Element::kBFloat16,
                        n,
                        batch.factor,
                        /*positions=*/0};
  const size_t bytes = n * dim * (is_float ? sizeof(float) : sizeof(BFloat16));
  SOK_RETURN_IF_ERROR(device_->CopyToDevice(uploaded.keys, from_keys, n * sizeof(Key), stream));
  SOK_RETURN_IF_ERROR(device_->CopyToDevice(uploaded.gradients, from, bytes, stream));
  SOK_RETURN_IF_ERROR(device_->Synchronize(stream));  // the host's vectors may be freed after this
  return uploaded;
}

Result<uint64_t> GpuStore::Apply(const std::vector<GradientBatch>& batches,
                                 const RowOptimizer& optimizer, const CommitStep& step,
                                 const ParallelFor& parallel_for) {
  std::lock_guard<SharedMutex> lock(mu_);
  if (step.sequential || step.number < 1) {
    return ApplyOnHost(batches, optimizer, step, parallel_for);
  }
  std::lock_guard<std::mutex> staging(staging_mu_);
  uint64_t most = 0;
  Stream stream = nullptr;
  bool is_copied = false, is_behind = false;
  for (const GradientBatch& batch : batches) {
    if (batch.device == nullptr) {
      is_copied = true;
      most += batch.n;
      continue;
    }
    // The step runs after the work on one stream, so this waits for the other streams.
    if (is_behind && batch.device->stream != stream) {
      SOK_RETURN_IF_ERROR(device_->Synchronize(batch.device->stream));
    } else {
      stream = batch.device->stream;
    }
    is_behind = true;
  }
  SOK_RETURN_IF_ERROR(staged_keys_.Reserve(device_, most * sizeof(Key)));
  SOK_RETURN_IF_ERROR(staged_floats_.Reserve(device_, most * config_.dim * sizeof(float)));
  std::vector<GpuGradients> uploaded;
  uint64_t at = 0;
  for (const GradientBatch& batch : batches) {
    if (batch.device != nullptr) {
      const bool is_float = batch.gradients != nullptr;
      const void* const gradients =
          is_float ? static_cast<const void*>(batch.gradients) : batch.gradients_bf16;
      uploaded.push_back(
          {reinterpret_cast<DeviceAddress>(batch.keys), reinterpret_cast<DeviceAddress>(gradients),
           is_float ? Element::kFloat32 : Element::kBFloat16, batch.n, batch.factor,
           reinterpret_cast<DeviceAddress>(batch.positions), batch.device->skips_marked});
      continue;
    }
    SOK_ASSIGN_OR_RETURN(const GpuGradients each, Upload(batch, at, stream));
    at += each.n;
    uploaded.push_back(each);
  }
  if (!is_copied) {
    uint64_t gradients = 0;
    for (const GpuGradients& each : uploaded) gradients += each.n;
    SOK_RETURN_IF_ERROR(table_->Commit(uploaded, /*rule=*/"", optimizer, step, stream));
    return gradients;
  }
  // The next call reuses the memory that batches were copied to, so this call waits.
  uint64_t touched = 0;
  SOK_RETURN_IF_ERROR(table_->Commit(uploaded, /*rule=*/"", optimizer, step, stream, &touched));
  return touched;
}

Status GpuStore::Replace(std::shared_ptr<const RowLayout> layout, const TableState& state,
                         const Key* keys, size_t n, uint32_t now, const WriteRow& write,
                         const ParallelFor& /*parallel_for*/) {
  std::lock_guard<SharedMutex> lock(mu_);
  SOK_ASSIGN_OR_RETURN(auto fresh, GpuTable::Make(device_, config_));
  SOK_RETURN_IF_ERROR(fresh->SetRule(state.rule, layout->slots(), nullptr));
  SOK_RETURN_IF_ERROR(fresh->CheckFits(n));
  // The old rows are freed first if the GPU does not have memory for both.
  Status room = fresh->Reserve(n, nullptr);
  if (!room.ok() && room.code() != Code::kResourceExhausted) return room;
  gone_ += size();
  {
    std::lock_guard<std::mutex> guard(layout_mu_);
    table_ = std::move(fresh);
    layout_ = std::move(layout);
    size_ = 0;
    seen_calls_ = unseen_calls_.load();
  }
  if (!room.ok()) room = table_->Reserve(n, nullptr);
  if (!room.ok()) return room.Within("", " The table is empty now: its rows had to make room.");
  return UpsertAll(keys, n, now, write);
}

Result<bool> GpuStore::Relayout(std::shared_ptr<const RowLayout> layout, const TableState& state,
                                const ParallelFor& /*parallel_for*/) {
  std::lock_guard<SharedMutex> lock(mu_);
  SOK_RETURN_IF_ERROR(table_->SetRule(state.rule, layout->slots(), nullptr));
  std::lock_guard<std::mutex> guard(layout_mu_);
  const bool reshaped = !layout->SameShape(*layout_);
  layout_ = std::move(layout);
  return reshaped;
}

bool GpuStore::IsLaidOut(const std::vector<Slot>& slots) const {
  return layout()->slots() == slots;
}

std::shared_ptr<const RowLayout> GpuStore::layout() const {
  std::lock_guard<std::mutex> guard(layout_mu_);
  return layout_;
}

uint64_t GpuStore::size() const {
  const uint64_t calls = unseen_calls_;
  if (calls == seen_calls_) return size_;
  std::lock_guard<std::mutex> guard(layout_mu_);
  const auto size = table_->Size(nullptr);
  if (!size.ok()) return size_;  // the next lookup returns the table's error
  size_ = size.value();
  seen_calls_ = calls;
  return size_;
}

uint64_t GpuStore::index_bytes() const {
  std::shared_lock<SharedMutex> lock(mu_);
  return table_->index_bytes();
}

uint64_t GpuStore::row_bytes() const {
  std::shared_lock<SharedMutex> lock(mu_);
  return table_->bytes() - table_->index_bytes();
}

uint32_t GpuStore::parts() const { return uint32_t{1} << kPartBits; }

Status GpuStore::ListKeys(uint32_t part, std::vector<Key>* keys) const {
  std::shared_lock<SharedMutex> lock(mu_);
  constexpr int kShift = 64 - kPartBits;
  // The order stays the same until a key is added or erased.
  SOK_ASSIGN_OR_RETURN(auto listed, table_->ListKeys(uint64_t{part} << kShift,
                                                     (uint64_t{part + 1} << kShift) - 1, nullptr));
  std::sort(listed.begin(), listed.end());
  keys->insert(keys->end(), listed.begin(), listed.end());
  return Status();
}

}  // namespace sok::gpu
