// Every kind of RowStore, for tests of what all of them promise. Another one is a struct like those
// below, and a line in SOK_EVERY_STORE.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/test_folder.h"
#include "core/base/test_result.h"
#include "core/base/types.h"
#include "core/disk/disk_store.h"
#include "core/disk/journal.h"
#include "core/disk/rocksdb/row_database.h"
#include "core/disk/spill_file.h"
#include "core/disk/test_failing_database.h"
#include "core/gpu/gpu_store.h"
#include "core/gpu/test_standin.h"
#include "core/rows/memory_store.h"

namespace sok {

// A kind has Make(layout, keys), an empty store for so many keys; KeyAt(i), the i-th of them; the
// dim of its rows, and their types, which small integers must fit.

struct HashKind {
  static constexpr int kDim = 6;
  static constexpr RowForm kForm = {};
  static std::shared_ptr<RowStore> Make(std::shared_ptr<const RowLayout> layout, uint64_t) {
    return MakeHashStore(std::move(layout));
  }
  // The ends of the range, and everything between.
  static Key KeyAt(uint64_t i) { return i % 2 == 0 ? i / 2 * 0x1000193 : ~(i / 2); }
};

struct DirectKind {
  static constexpr int kDim = 6;
  static constexpr RowForm kForm = {};
  static std::shared_ptr<RowStore> Make(std::shared_ptr<const RowLayout> layout, uint64_t keys) {
    IndexConfig config;
    config.capacity = keys;
    config.owners = 3;
    config.owner = 2;
    return MakeDirectStore(std::move(layout), config);
  }
  static Key KeyAt(uint64_t i) { return 3 * i + 2; }
};

// On the stand-in for a GPU.
struct GpuKind {
  static constexpr int kDim = 6;
  static constexpr RowForm kForm = {};
  static std::shared_ptr<RowStore> Make(std::shared_ptr<const RowLayout> layout, uint64_t) {
    gpu::StandIn();
    return Value(gpu::GpuStore::Make(std::move(layout),
                                     {0, Value(Initializer::Make("uniform", -1.0, 1.0, 7)), 0, 0}));
  }
  static Key KeyAt(uint64_t i) { return HashKind::KeyAt(i); }
};

// The only group of a folder, with what a storage has around it.
class LoneGroup {
 public:
  LoneGroup(const std::shared_ptr<const RowLayout>& layout, const Database::Opener& open,
            uint64_t cache_bytes, uint64_t spill_rows, bool has_journal)
      : core_(std::make_shared<StorageCore>(/*ttl=*/0, /*now=*/nullptr, cache_bytes)) {
    core_->path = folder_ / "rows";
    core_->database = Value(open({core_->path, /*read_only=*/false, core_->expiry}));
    core_->spill = Value(SpillFile::Open(core_->path, spill_rows));
    core_->id = 1;
    if (has_journal) core_->journal = std::make_unique<Journal>(core_->path, core_->id, 1);
    core_->flush = [this] { return Flush(); };
    GroupMeta meta;
    meta.dim = layout->dim();
    meta.state.slots = layout->slots();
    meta.form = layout->form();
    store_ = std::make_unique<DiskStore>(core_, kGroup, meta);
  }

  RowStore* store() { return store_.get(); }

 private:
  static constexpr int kGroup = 3;

  Status Flush() {
    const auto publication = core_->database->StartPublication();
    Status status =
        store_->ForEachDirty([&](Key key, const RowHeader& header, std::string_view values) {
          return publication->Add(RowKey(kGroup, key), header, values);
        });
    if (status.ok()) {
      status = publication->Finish({{GroupMetaName(kGroup), store_->meta().ToJson()}});
    }
    if (status.ok()) store_->MarkClean();
    return status;
  }

  const TestFolder folder_;  // goes last
  const std::shared_ptr<StorageCore> core_;
  std::unique_ptr<DiskStore> store_;
};

struct OnDisk {
  static constexpr int kDim = 6;
  static constexpr RowForm kForm = {};
  static Key KeyAt(uint64_t i) { return HashKind::KeyAt(i); }

 protected:
  static std::shared_ptr<RowStore> Open(const std::shared_ptr<const RowLayout>& layout,
                                        const Database::Opener& open, uint64_t cache_bytes,
                                        uint64_t spill_rows, bool has_journal) {
    const auto group =
        std::make_shared<LoneGroup>(layout, open, cache_bytes, spill_rows, has_journal);
    return {group, group->store()};
  }
};

struct DiskKind : OnDisk {
  static std::shared_ptr<RowStore> Make(std::shared_ptr<const RowLayout> layout, uint64_t) {
    return Open(layout, RowDatabase::Open, uint64_t{64} << 20, 1 << 20, /*has_journal=*/false);
  }
};

// Rows leave memory soon, for the spill: a shard holds no more than three of them.
struct SpillingDiskKind : OnDisk {
  static constexpr int kDim = 4096;
  static std::shared_ptr<RowStore> Make(std::shared_ptr<const RowLayout> layout, uint64_t) {
    return Open(layout, RowDatabase::Open, 1, 1 << 20, /*has_journal=*/false);
  }
};

// The same, for the database.
struct EvictingDiskKind : OnDisk {
  static constexpr int kDim = 4096;
  static std::shared_ptr<RowStore> Make(std::shared_ptr<const RowLayout> layout, uint64_t) {
    return Open(layout, RowDatabase::Open, 1, 0, /*has_journal=*/false);
  }
};

struct JournaledDiskKind : OnDisk {
  static std::shared_ptr<RowStore> Make(std::shared_ptr<const RowLayout> layout, uint64_t) {
    return Open(layout, RowDatabase::Open, uint64_t{64} << 20, 1 << 20, /*has_journal=*/true);
  }
};

// Over a database for tests, of which nothing fails here.
struct OtherDatabaseKind : OnDisk {
  static std::shared_ptr<RowStore> Make(std::shared_ptr<const RowLayout> layout, uint64_t) {
    return Open(layout, FailingDatabase::Over(RowDatabase::Open, std::make_shared<PlantedFaults>()),
                uint64_t{64} << 20, 1 << 20, /*has_journal=*/false);
  }
};

// With rows in fewer bytes.
struct Float16DiskKind : JournaledDiskKind {
  static constexpr RowForm kForm = {RowType::kFloat16, RowType::kBFloat16};
};
struct SpillingFloat16DiskKind : SpillingDiskKind {
  static constexpr RowForm kForm = {RowType::kFloat16, RowType::kFloat32};
};

// clang-format off
#define SOK_EVERY_STORE \
  HashKind,           \
  DirectKind,         \
  GpuKind,            \
  DiskKind,           \
  SpillingDiskKind,   \
  EvictingDiskKind,   \
  JournaledDiskKind,  \
  OtherDatabaseKind,  \
  Float16DiskKind,    \
  SpillingFloat16DiskKind
// clang-format on

}  // namespace sok
