// The interface that a storage needs of the store of a group, beyond the RowStore that a table
// needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "core/base/status.h"
#include "core/base/types.h"
#include "core/disk/group_meta.h"
#include "core/disk/row_codec.h"
#include "core/rows/row_store.h"

namespace sok {

// Rows that outlive the process once the storage has written them. Rows that differ from those of
// its database are dirty. Where a method does not say otherwise, its caller holds the storage's
// gate alone, so that nothing runs beside it but lookups of what is in memory.
class DurableStore : public RowStore {
 public:
  // The group as it is once everything dirty is written. Thread-safe.
  virtual GroupMeta meta() const = 0;
  // Makes that description durable, where calls are. The gate may be shared.
  virtual Status RecordMeta() = 0;

  // Bytes of the dirty rows.
  virtual uint64_t DirtyBytes() const = 0;
  // Calls fn for each of them, ascending by key, with its values as the database has them. They
  // stay dirty.
  using VisitDirty =
      std::function<Status(Key key, const RowHeader& header, std::string_view values)>;
  virtual Status ForEachDirty(const VisitDirty& fn) const = 0;
  // Writes dirty rows that are cached to the spill, as dirty as they were, or, without room there,
  // to the database, pending: those of one of so many parts of the store. Returns how many there
  // were. The gate may be shared.
  virtual uint32_t parts() const = 0;
  virtual Result<uint64_t> SpillDirty(uint32_t part) = 0;
  // The rows that were dirty at one moment, for another thread, which needs no gate.
  class FrozenRows {
   public:
    virtual ~FrozenRows() = default;
    // Calls fn for each of them, ascending by key. `is_new`: the database has never had the row.
    using Visit = std::function<Status(Key key, const RowHeader& header, std::string_view values,
                                       bool is_new)>;
    virtual Status ForEach(const Visit& fn) const = 0;
  };
  // Returns the dirty rows, which are in the spill, all of them: see SpillDirty. From then on they
  // are clean, as if they were published, until Thaw. Nothing may be frozen already. Where it
  // throws, Thaw has all as it was.
  virtual std::unique_ptr<FrozenRows> FreezeDirty() = 0;
  // Ends that: these rows are published, or else those that have no newer version are dirty again.
  virtual void Thaw(bool published) = 0;
  // Has the journal record the rows that have gone and are not recorded yet.
  virtual Status RecordRemovals() = 0;
  // Returns whether rows can be spilled at all, which those that are too long cannot.
  virtual bool can_spill() const = 0;
  // They are in the database now.
  virtual void MarkClean() = 0;
  // The same, and that is durable, with all rows that have gone.
  virtual void MarkPublished() = 0;
  // Writes them to the database, pending.
  virtual Status Settle() = 0;
  // Forgets what is in the spill. Nothing may be dirty. Needs no memory.
  virtual void DropSpilled() = 0;
  // Forgets what is in memory, after another process has changed the database, which has so many
  // rows that had not expired at `counted_at`. Nothing may be dirty. Needs no memory.
  virtual void DropCache(uint64_t rows, uint32_t counted_at) = 0;
};

}  // namespace sok
