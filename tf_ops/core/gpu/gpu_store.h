// A store whose rows are in the memory of a GPU.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "core/base/initializer.h"
#include "core/base/status.h"
#include "core/gpu/device_rows.h"
#include "core/rows/row_store.h"

namespace sok::gpu {

struct GpuStoreConfig {
  int device = 0;  // the number of the GPU among those that the process sees
  // Lookups with keys on the GPU make new rows with it.
  Initializer initializer;
  uint64_t max_rows = 0;   // for lookups that take keys on the GPU; 0: no limit
  uint64_t max_bytes = 0;  // see GpuTableConfig
};

// Takes keys, vectors and gradients in the host's memory, as every RowStore does, and copies them
// to the GPU and back: each call waits for the GPU. Sequential steps, and steps in which each row
// counts its own updates, are computed on the host.
//
// Calls of DeviceRows, and batches of gradients that are on the GPU, neither wait nor copy
// anything.
class GpuStore final : public RowStore, public DeviceRows {
 public:
  // Errors: as Device::Open and GpuTable::Make return; kInvalidArgument if rows or slots are not
  // float32.
  static Result<std::unique_ptr<GpuStore>> Make(std::shared_ptr<const RowLayout> layout,
                                                const GpuStoreConfig& config);

  Status Gather(const Key* keys, size_t n, float* out, const GatherOptions& options,
                const FillEmbedding& fill, std::vector<uint32_t>* missing,
                const ParallelFor& parallel_for) override;
  Status Gather(const Key* keys, size_t n, BFloat16* out, const GatherOptions& options,
                const FillEmbedding& fill, std::vector<uint32_t>* missing,
                const ParallelFor& parallel_for) override;
  Result<std::vector<uint32_t>> Missing(const Key* keys, size_t n,
                                        const ParallelFor& parallel_for) override;
  Status ReadMeta(const Key* keys, size_t n, RowMeta* metas, uint8_t* exists,
                  const ParallelFor& parallel_for) override;
  Status Upsert(const Key* keys, size_t n, uint64_t max_rows, uint32_t now, const WriteRow& write,
                const ParallelFor& parallel_for) override;
  void Partition(const std::vector<ShardPartition::Source>& sources,
                 const ParallelFor& parallel_for, ShardPartition* partition) const override;
  Result<uint64_t> Apply(const std::vector<GradientBatch>& batches, const RowOptimizer& optimizer,
                         const CommitStep& step, const ParallelFor& parallel_for) override;
  Result<uint64_t> Erase(const Key* keys, size_t n, const ParallelFor& parallel_for) override;
  // The memory of the old rows is freed before the new rows are written.
  Status Replace(std::shared_ptr<const RowLayout> layout, const TableState& state, const Key* keys,
                 size_t n, uint32_t now, const WriteRow& write,
                 const ParallelFor& parallel_for) override;
  Result<bool> Relayout(std::shared_ptr<const RowLayout> layout, const TableState& state,
                        const ParallelFor& parallel_for) override;
  bool IsLaidOut(const std::vector<Slot>& slots) const override;
  std::shared_ptr<const RowLayout> layout() const override;
  // Waits for the GPU after a LookUp that may have made rows.
  uint64_t size() const override;
  uint64_t made() const override { return size() + gone_; }
  uint64_t index_bytes() const override;
  uint64_t row_bytes() const override;
  Result<std::unique_ptr<Frozen>> Freeze() override;
  DeviceRows* device_rows(void* stream) override {
    return device_->HasStream(stream) ? this : nullptr;
  }
  uint32_t parts() const override;
  Status ListKeys(uint32_t part, std::vector<Key>* keys) const override;
  // Copies all rows to the host at once. Changes are not recorded: kFailedPrecondition if only the
  // changes since an earlier state are requested.
  Result<std::unique_ptr<RowCapture>> BeginCapture(const CaptureOptions& options) override;

 private:
  class FrozenStore;
  // Copies of whole rows in the host's memory.
  struct HostRows;

  GpuStore(std::shared_ptr<Device> device, const GpuTableConfig& config,
           std::shared_ptr<const RowLayout> layout)
      : DeviceRows(std::move(device)), config_(config), layout_(std::move(layout)) {}

  uint32_t floats() const;  // of a whole row

  // The methods below require mu_ to be held, by a writer if they change rows.
  template <typename T>
  Status GatherAs(const Key* keys, size_t n, T* out, const GatherOptions& options,
                  const FillEmbedding& fill, std::vector<uint32_t>* missing) const;
  // Writes the numbers of rows to the host.
  Status Find(const Key* keys, size_t n, uint32_t* numbers) const;
  // Reads the first `floats` floats of each row, and its counters.
  Status Read(const Key* keys, size_t n, uint32_t floats, HostRows* rows) const;
  Status UpsertPiece(const Key* keys, size_t n, uint32_t now, const WriteRow& write, size_t first);
  Status UpsertAll(const Key* keys, size_t n, uint32_t now, const WriteRow& write);
  Result<uint64_t> ApplyOnHost(const std::vector<GradientBatch>& batches,
                               const RowOptimizer& optimizer, const CommitStep& step,
                               const ParallelFor& parallel_for);
  // Copies a batch to the GPU, after `at` gradients of other batches.
  Result<GpuGradients> Upload(const GradientBatch& batch, uint64_t at, Stream stream) const;

  const GpuTableConfig config_;

  // The number of rows that the GPU last returned, plus the changes by later calls that waited.
  mutable std::atomic<uint64_t> size_{0};
  std::atomic<uint64_t> gone_{0};                // rows that were erased or replaced
  mutable std::atomic<uint64_t> seen_calls_{0};  // unseen_calls_ that size_ includes

  mutable std::mutex layout_mu_;  // guards changes of layout_ and table_
  std::shared_ptr<const RowLayout> layout_;

  std::atomic<bool> capturing_{false};

  // Memory of the GPU that calls use for copies, one call at a time.
  mutable std::mutex staging_mu_;
  mutable Buffer staged_keys_, staged_floats_, staged_metas_, staged_numbers_;
};

}  // namespace sok::gpu
