// The rows of a table: finding, making, assigning, removing and exporting them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/base/types.h"
#include "core/rows/row_capture.h"
#include "core/rows/row_store.h"
#include "core/tables/table_capture.h"
#include "core/tables/table_contents.h"
#include "core/tables/table_upkeep.h"

namespace sok {

// The part of a Table that reads and writes rows. Table trains them.
class TableRows : public TableUpkeep {
 public:
  // Copies embeddings into out (n, dim). With make_rows, keys without a row get one. Without it
  // only the vector that training would start from is copied.
  // Errors: kOutOfRange for a key that a direct table does not cover; kResourceExhausted if the
  // table would hold more than max_rows, and not enough rows may be evicted; then no row has been
  // made or removed. kResourceExhausted too if memory ends; then some rows may have been made, with
  // the values that they start from, and others evicted.
  // kInvalidArgument for a negative count.
  // exists (n), unless null, gets true for keys that had a row before. counts (n), unless null,
  // says for the admission how many keys of the batch each key stands for. found, unless null, gets
  // the numbers of rows.
  template <typename T>  // float or BFloat16
  Status Lookup(const Key* keys, size_t n, bool make_rows, T* out, const ParallelFor& parallel_for,
                uint8_t* exists = nullptr, const int64_t* counts = nullptr,
                RowNumbers* found = nullptr);
  // Returns the rows for calls whose keys and vectors lie in the memory of the device that a stream
  // belongs to; null if the rows lie elsewhere, and if the host must see each key, for an
  // admission, an eviction or a range of keys. Stats does not count the keys of such calls.
  gpu::DeviceRows* device_rows(void* stream) const;

  // Returns room for the numbers of the rows of n keys, for a Lookup that is to be trained; null in
  // a store that does not number rows.
  std::shared_ptr<RowNumbers> NumberRows(size_t n) const;
  // The next functions are the parts of a Lookup, for callers that choose what new rows start from.
  //
  // Copies the embedding of every key that has a row, as `options` say. Appends the positions of
  // other keys to `missing`, in no order. If `missing` is null, other keys get the vector that
  // training would start from. Adds to `met`, unless it or `missing` is null.
  template <typename T>  // float or BFloat16
  Status Find(const Key* keys, size_t n, const GatherOptions& options, T* out,
              std::vector<uint32_t>* missing, LookupCounts* met,
              const ParallelFor& parallel_for) const;
  // Counts what a call that has succeeded has met.
  void Count(const LookupCounts& met);
  // Makes rows for keys without one. start(i, row, slot_floats) writes the embedding of the row,
  // and its slots, which have their start values before the call. Of equal keys the first one
  // counts.
  // Errors: those of Lookup.
  using StartRow = std::function<void(size_t i, float* row, int slot_floats)>;
  Status MakeRowsAs(const Key* keys, size_t n, const StartRow& start,
                    const ParallelFor& parallel_for);
  // Calls visit(i, row, slot_floats) for every key; visit may change the row. Keys without a row
  // get one by the initializer. One thread visits equal keys, in order of i; different keys may be
  // visited at once. No commit runs meanwhile. Errors: those of Lookup.
  using VisitRow = std::function<void(size_t i, float* row, int slot_floats)>;
  Status Visit(const Key* keys, size_t n, const VisitRow& visit, const ParallelFor& parallel_for);
  // Calls fn for every row, in no order, while no commit runs. fn must not use the table.
  Status ForEachRow(const std::function<void(Key key, RowRef row)>& fn);

  // Reads the counters of keys (n): exists[i] becomes 1 if there is a row, and metas[i] has its
  // counters, or zeros without a row. Makes no rows. Keys that this table cannot hold have no row.
  Status ReadMeta(const Key* keys, size_t n, RowMeta* metas, uint8_t* exists,
                  const ParallelFor& parallel_for);

  // Reads the rows of keys that lie on the disk into memory, beside other calls. See RowStore.
  Status ReadAhead(const Key* keys, size_t n, const ParallelFor& parallel_for) {
    return store_->ReadAhead(keys, n, parallel_for);
  }

  // Sets embeddings (n, dim), and makes rows for keys without one. Of equal keys the last one
  // counts.
  Status Assign(const Key* keys, size_t n, const float* embeddings,
                const ParallelFor& parallel_for);

  // Copies the rows of keys (n) that have one, with their slots: appends positions in keys to
  // `places` and rows of dim + slot_floats floats to `rows`, in order. For distinct keys. Errors:
  // kFailedPrecondition if rows have another number of slot_floats.
  Status ReadRows(const Key* keys, size_t n, int slot_floats, std::vector<uint32_t>* places,
                  std::vector<float>* rows, const ParallelFor& parallel_for);
  // Sets rows (n, dim + slot_floats), with their slots, to the results of a step that a formula
  // outside of the core has made. Rows of fewer bytes than float32 are rounded at random. Errors:
  // those of Assign; kFailedPrecondition if rows have another number of slot_floats.
  Status AssignRows(const Key* keys, size_t n, int slot_floats, const float* rows,
                    const ParallelFor& parallel_for);

  // Removes the rows of keys. Returns how many keys had one. The admission keeps its counts of keys
  // without a row. Keys that this table cannot hold have no row.
  Result<uint64_t> Remove(const Key* keys, size_t n, const ParallelFor& parallel_for);

  // The rows of an export. While a snapshot lives, no commit runs and no row is made, and its
  // thread must not use the table otherwise.
  class Snapshot {
   public:
    uint64_t size() const { return rows_->size(); }
    const TableState& state() const { return state_; }
    int slot_floats() const { return static_cast<int>(slot_start_.size()); }
    const std::vector<float>& slot_start() const { return slot_start_; }  // (slot_floats)
    // TableContents::step_clock.
    int64_t step_clock() const { return step_clock_; }
    // Writes the columns of all rows; a column that is null is left out.
    Status Write(const WritableRowColumns& columns) const { return Write(columns, 0, size()); }
    // Writes the columns of the rows [begin, end). The order of rows is the same in all snapshots
    // between which the table does not change.
    Status Write(const WritableRowColumns& columns, uint64_t begin, uint64_t end) const;
    // Returns the counters of the admission at the time of the call, in pieces as DumpCounts
    // returns them; none without an admission.
    Result<std::vector<std::string>> DumpAdmission() const;

   private:
    friend class TableRows;
    std::unique_lock<std::mutex> commits_;
    std::unique_ptr<RowStore::Frozen> rows_;
    std::shared_ptr<const Admission> admission_;
    TableState state_;
    int64_t step_clock_ = TableContents::kSeconds;
    int dim_ = 0;
    std::vector<float> slot_start_;
  };
  Result<Snapshot> Freeze();

  // Returns the number of parts that the rows lie in; 0 for a table on disk. See RowStore.
  uint32_t parts() const { return store_->parts(); }
  // Returns the keys of the rows of a part, ascending. Errors: kOutOfRange for another part.
  Result<std::vector<Key>> ListKeys(int64_t part) const;

  // Begins a capture of the present contents; the table may change meanwhile. See RowCapture.
  Result<TableCapture> BeginCapture(const CaptureOptions& options);

 protected:
  using TableUpkeep::TableUpkeep;
  ~TableRows() = default;

  // The parts of Visit, Assign and AssignRows that run while commit_mu_ is held. `values` has
  // `floats` floats for each row.
  Status VisitLocked(const Key* keys, size_t n, const VisitRow& visit,
                     const ParallelFor& parallel_for);
  // `rounded`, unless null, is the coding of the rows, which rounds the values at random.
  Status SetLocked(const Key* keys, size_t n, const float* values, int floats,
                   const RowCoding* rounded, const ParallelFor& parallel_for);
  // Returns kFailedPrecondition if n > 0 and the rows have another number of slot floats.
  Status CheckSlots(size_t n, int slot_floats) const;
  TableState state_;  // guarded by commit_mu_
  // Figures of TableStats. Each call adds to them once, not once a key.
  std::atomic<uint64_t> refused_{0}, looked_up_{0}, found_{0};
};

}  // namespace sok
