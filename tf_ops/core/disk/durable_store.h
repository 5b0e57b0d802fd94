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

// A store of rows that outlive the process once the storage has written them. Rows that differ from
// the database are dirty. Unless a method says otherwise, its caller holds the storage's gate
// exclusively, so that only lookups of rows in memory run meanwhile.
class DurableStore : public RowStore {
 public:
  // Returns the description of the group as it is once all dirty rows are written. Thread-safe.
  virtual GroupMeta meta() const = 0;
  // Writes that description to the journal, if calls are durable. The gate may be shared.
  virtual Status RecordMeta() = 0;

  // Returns the bytes of the dirty rows.
  virtual uint64_t DirtyBytes() const = 0;
  // Calls fn for each dirty row, ascending by key, with its values in the database's format. The
  // rows stay dirty.
  using VisitDirty =
      std::function<Status(Key key, const RowHeader& header, std::string_view values)>;
  virtual Status ForEachDirty(const VisitDirty& fn) const = 0;
  // SpillDirty writes the dirty cached rows of one of parts() parts of the store to the spill,
  // where they are still dirty, or without room there to the database, as pending. Returns the
  // number of rows. The gate may be shared.
  virtual uint32_t parts() const = 0;
  virtual Result<uint64_t> SpillDirty(uint32_t part) = 0;
  // The rows that were dirty at one moment. Another thread may read them, and needs no gate.
  class FrozenRows {
   public:
    virtual ~FrozenRows() = default;
    // Calls fn for each of them, ascending by key. `is_new`: the database has never had the row.
    using Visit = std::function<Status(Key key, const RowHeader& header, std::string_view values,
                                       bool is_new)>;
    virtual Status ForEach(const Visit& fn) const = 0;
  };
  // Returns the dirty rows, all of which must be in the spill: see SpillDirty. They count as clean,
  // as if they were published, until Thaw. Nothing may be frozen already. If it throws, Thaw
  // restores the state before.
  virtual std::unique_ptr<FrozenRows> FreezeDirty() = 0;
  // Ends the freeze. If the rows were not published, the ones without a newer version are dirty
  // again.
  virtual void Thaw(bool published) = 0;
  // Writes a record of the removals that no record has yet.
  virtual Status RecordRemovals() = 0;
  // Returns true if rows can be spilled at all. Rows that are too long cannot.
  virtual bool can_spill() const = 0;
  // Marks all rows as clean, after the database has them.
  virtual void MarkClean() = 0;
  // Does the same after a publication, which has made all removals durable too.
  virtual void MarkPublished() = 0;
  // Writes the dirty rows to the database, as pending.
  virtual Status Settle() = 0;
  // Forgets the rows in the spill. Nothing may be dirty. Needs no memory.
  virtual void DropSpilled() = 0;
  // Forgets the rows in memory, after another process has changed the database. `rows` is the
  // number of its rows that had not expired at `counted_at`. Nothing may be dirty. Needs no memory.
  virtual void DropCache(uint64_t rows, uint32_t counted_at) = 0;
};

}  // namespace sok
