// The interface of a store of rows, as a table uses it. All methods work on batches, so a virtual
// call costs nothing.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/bfloat16.h"
#include "core/base/status.h"
#include "core/base/types.h"
#include "core/rows/device_batch.h"
#include "core/rows/index_config.h"
#include "core/rows/row_capture.h"
#include "core/rows/row_slabs.h"
#include "core/rows/shard_partition.h"
#include "core/rules/row_optimizer.h"

namespace sok {

class SummedGradients;

namespace gpu {
class DeviceRows;
}

// The places where a lookup has found the rows of its keys, so that the commit of their gradients
// need not search for them again.
struct RowNumbers {
  std::vector<uint32_t> numbers;  // (n) of the rows in their shards; UINT32_MAX: not found
  uint64_t erasures = 0;          // RowStore::erasures() before the search
};

// Gradients that wait for a commit. The caller that deposited them owns the memory.
struct GradientBatch {
  const Key* keys;                 // (n)
  const float* gradients;          // (n, dim), or null if they are bfloat16
  const BFloat16* gradients_bf16;  // (n, dim), or null
  size_t n;
  // (n) The row of the gradients that belongs to keys[i]; null: row i.
  const uint32_t* positions = nullptr;
  // The same gradients, summed by key, by the shards of the store. Null: they are not summed yet.
  const SummedGradients* summed = nullptr;
  float factor = 1.0f;                  // multiplies the gradients
  bool distinct = false;                // true if no key is there twice
  const RowNumbers* found = nullptr;    // of the keys; null: they are not known
  const DeviceBatch* device = nullptr;  // null: they lie in the host's memory
};

// A row as an exporter or an importer sees it.
struct RowRef {
  float* embedding;  // (dim), followed by the slots
  RowMeta* meta;
};

// Everything about a table's training that is not in its rows.
struct TableState {
  // t of bias correction is a float64, in which larger integers are not exact.
  static constexpr int64_t kMostSteps = int64_t{1} << 53;

  std::string rule;  // empty before the first commit
  std::vector<Slot> slots;
  int64_t steps = 0;  // commits that found deposits; it stays at the most that there is

  int64_t next_step() const { return steps + (steps < kMostSteps); }
};

// One commit, as a store sees it.
struct CommitStep {
  int64_t number = 0;  // t of bias correction; 0: each row counts its own updates
  float scale = 1.0f;  // gradients are multiplied by it
  // The bound of clipping: each element of the sum of a row's gradients, times the scale, is
  // clipped to [-clip_value, clip_value]. 0: no clipping.
  float clip_value = 0.0f;
  uint32_t now = 0;         // the update_time of the rows it touches
  bool sequential = false;  // equal keys one step after another, not summed; float32 gradients only
  TableState state;         // the table's state after it; a store on disk keeps it with the rows
  // Set to true once the rows have changed, even if an error follows because the change could not
  // be made durable. Null: not needed.
  bool* applied = nullptr;
};

// Exceptions to "the row of keys[i] goes to out[i]".
struct GatherOptions {
  // (n) The place of each embedding in the output. Null: the embedding of key i goes to place i.
  const uint32_t* places = nullptr;
  // (n) If given[i] is not null, this row is copied instead of the key's own. Such a key is not
  // looked up: it is never missing, and may be out of range. Null: every key is looked up.
  const float* const* given = nullptr;
  // (n) Gets the number of each key's row, as in RowNumbers. Null: not needed.
  uint32_t* numbers = nullptr;

  // Returns how many of n keys are looked up.
  size_t asked(size_t n) const {
    if (given == nullptr) return n;
    return static_cast<size_t>(std::count(given, given + n, nullptr));
  }
};

// A store of rows. Thread-safe, unless a method says otherwise. Lookups run at the same time. A
// call that writes locks one shard at a time, never the whole store, except commits of so few keys
// that they take no time. Shards are locked inside of functions that run on `parallel_for`, never
// around it. Otherwise a thread pool could lock itself up: callers may wait for the pool's threads
// without helping them, and these threads for the shards. Other locks may be held around it, so no
// thread of the pool may call a store of a storage.
class RowStore {
 public:
  virtual ~RowStore() = default;

  // Copies the embedding of every key into `out`. fill(key, out) writes it for a key without a row;
  // without fill it stays as it is. Positions of such keys are appended to `missing`, in no order,
  // unless it is null.
  using FillEmbedding = std::function<void(Key key, float* embedding)>;
  virtual Status Gather(const Key* keys, size_t n, float* out, const GatherOptions& options,
                        const FillEmbedding& fill, std::vector<uint32_t>* missing,
                        const ParallelFor& parallel_for) = 0;
  virtual Status Gather(const Key* keys, size_t n, BFloat16* out, const GatherOptions& options,
                        const FillEmbedding& fill, std::vector<uint32_t>* missing,
                        const ParallelFor& parallel_for) = 0;

  // Returns the positions of keys without a row, in no order.
  virtual Result<std::vector<uint32_t>> Missing(const Key* keys, size_t n,
                                                const ParallelFor& parallel_for) = 0;

  // Reads rows that lie on the disk into the cache, for calls that will ask for them. Makes no row
  // and changes none; calls return what they would return without it. A store in memory has nothing
  // to read.
  virtual Status ReadAhead(const Key* /*keys*/, size_t /*n*/, const ParallelFor& /*parallel_for*/) {
    return Status();
  }
  struct AheadCounts {
    uint64_t read = 0;         // rows that ReadAhead has put into the cache
    uint64_t left_behind = 0;  // keys that were not cached and for which there was no room
  };
  virtual AheadCounts ahead() const { return {}; }

  // Copies the counters of every row that there is to metas[i], and sets exists[i] to 1; keys
  // without a row get zeros. No pointer may be null; all have n elements.
  virtual Status ReadMeta(const Key* keys, size_t n, RowMeta* metas, uint8_t* exists,
                          const ParallelFor& parallel_for) = 0;

  // Finds or makes the row of every key, then calls write(i, row, is_new). A new row comes with its
  // slots at their start and a meta of 0 updates at `now`; its embedding is not set. Equal keys are
  // visited in order of i by one thread; different keys may be visited at once. Errors:
  // kResourceExhausted if the store would hold more than max_rows (0: no limit); then nothing has
  // changed. After an error of the disk no row is there that was not there before, or the error
  // says how many stay.
  using WriteRow = std::function<void(size_t i, RowRef row, bool is_new)>;
  virtual Status Upsert(const Key* keys, size_t n, uint64_t max_rows, uint32_t now,
                        const WriteRow& write, const ParallelFor& parallel_for) = 0;

  // Does what Upsert does, for all keys or for none, and makes the result durable if the store
  // makes calls durable.
  virtual Status Set(const Key* keys, size_t n, uint64_t max_rows, uint32_t now,
                     const WriteRow& write, const ParallelFor& parallel_for) {
    return Upsert(keys, n, max_rows, now, write, parallel_for);
  }

  // Groups keys by the shards that their rows lie in, which never change.
  virtual void Partition(const std::vector<ShardPartition::Source>& sources,
                         const ParallelFor& parallel_for, ShardPartition* partition) const = 0;

  // Sums the gradients of equal keys, in order, and applies one step to each row. Either all
  // batches are summed by key already, or none is. Keys without a row are left out. Returns how
  // many rows it touched. It must not run beside another Apply or Relayout.
  virtual Result<uint64_t> Apply(const std::vector<GradientBatch>& batches,
                                 const RowOptimizer& optimizer, const CommitStep& step,
                                 const ParallelFor& parallel_for) = 0;

  // Finds out, before rows are made for a call that changes so many, if there is room on the disk
  // to make the call durable, and makes some if need be. Errors: kResourceExhausted.
  virtual Status CheckRoom(size_t /*rows*/) { return Status(); }

  // Takes back rows that a caller has made for a call that failed, and that no call has changed
  // since. Unlike Erase it needs no room on the disk, unless rows have got there meanwhile. Returns
  // how many of the rows stay.
  virtual Result<uint64_t> Unmake(const Key* keys, size_t n, const ParallelFor& parallel_for) {
    auto erased = Erase(keys, n, parallel_for);
    if (!erased.ok()) return erased.status();
    return uint64_t{0};
  }

  // Erases rows. Returns how many there were.
  virtual Result<uint64_t> Erase(const Key* keys, size_t n, const ParallelFor& parallel_for) = 0;

  // Returns how often rows may have been erased, after which their numbers may belong to other
  // rows. UINT64_MAX: this store does not number rows.
  virtual uint64_t erasures() const { return UINT64_MAX; }
  // Returns how often all rows were replaced by others than the table: by a dump that was loaded
  // into its storage.
  virtual uint64_t replacements() const { return 0; }
  // Erases rows for a caller that has looked at them since replacements() was `seen`. Returns
  // nothing if rows were replaced meanwhile, and nothing has changed then.
  virtual Result<std::optional<uint64_t>> EraseUnlessReplaced(uint64_t /*seen*/, const Key* keys,
                                                              size_t n,
                                                              const ParallelFor& parallel_for) {
    auto erased = Erase(keys, n, parallel_for);
    if (!erased.ok()) return erased.status();
    return std::optional<uint64_t>(erased.value());
  }
  // Does the same to make room for another call. In a store whose calls are durable, this becomes
  // durable only together with that call: a process that dies in the middle leaves both or neither.
  virtual Result<std::optional<uint64_t>> EraseForNewcomers(uint64_t seen, const Key* keys,
                                                            size_t n,
                                                            const ParallelFor& parallel_for) {
    return EraseUnlessReplaced(seen, keys, n, parallel_for);
  }

  // Replaces all rows, the layout and the state; other threads see this as one step. The new rows
  // have distinct keys, and write(i, row, true) fills each. Errors: see Upsert. After an error
  // layout() shows whether the store has the old rows or the new ones, some of which may be
  // missing.
  virtual Status Replace(std::shared_ptr<const RowLayout> layout, const TableState& state,
                         const Key* keys, size_t n, uint32_t now, const WriteRow& write,
                         const ParallelFor& parallel_for) = 0;
  // Gives every row the slots of `layout`, whose dim must be the same, and the table the state,
  // which has these slots; other threads see this as one step. If the shape differs, slots start
  // anew and it returns true. Until a row is changed, a later layout may give its slots other start
  // values.
  virtual Result<bool> Relayout(std::shared_ptr<const RowLayout> layout, const TableState& state,
                                const ParallelFor& parallel_for) = 0;
  // Returns true if a Relayout to these slots, with the state as it is, would do nothing.
  virtual bool IsLaidOut(const std::vector<Slot>& /*slots*/) const { return false; }
  virtual std::shared_ptr<const RowLayout> layout() const = 0;

  virtual uint64_t size() const = 0;
  // Counts size() anew without expired rows, if there may be any and the last count is old enough.
  virtual Status LeaveOutExpired(uint32_t /*now*/) { return Status(); }
  // Returns the rows if they lie in the memory of the device that a stream belongs to, else null.
  virtual gpu::DeviceRows* device_rows(void* /*stream*/) { return nullptr; }
  // Returns the number of rows that were made since the store was made.
  virtual uint64_t made() const = 0;
  // Returns the number of keys of Gather whose row was in the cache of a storage.
  virtual uint64_t cache_hits() const { return 0; }
  virtual uint64_t index_bytes() const = 0;
  virtual uint64_t row_bytes() const = 0;

  // A view of all rows, which nothing changes as long as it lives. Inserting and applying wait.
  class Frozen {
   public:
    virtual ~Frozen() = default;
    virtual uint64_t size() const = 0;
    virtual Status ForEach(const std::function<void(Key key, RowRef row)>& fn) const = 0;
    // Does the same for rows [begin, end) in the order of ForEach, which is the same for all views
    // between which the store does not change. Some stores must read all rows for that.
    virtual Status ForEachIn(uint64_t begin, uint64_t end,
                             const std::function<void(Key key, RowRef row)>& fn) const {
      uint64_t i = 0;
      return ForEach([&](Key key, RowRef row) {
        if (i >= begin && i < end) fn(key, row);
        ++i;
      });
    }
  };
  virtual Result<std::unique_ptr<Frozen>> Freeze() = 0;

  // Returns in how many parts rows lie; a key is in the same one for as long as the store lives.
  virtual uint32_t parts() const { return 0; }
  // Appends the keys of the rows of a part, in no order. A store on disk has none: see
  // Storage::ReadPage.
  virtual Status ListKeys(uint32_t /*part*/, std::vector<Key>* /*keys*/) const { return Status(); }

  // Begins a capture of the rows as they are now. Errors: kFailedPrecondition while there is
  // another one, or if the state to start from is not the last one that has a number; kUnavailable
  // from a store that cannot.
  virtual Result<std::unique_ptr<RowCapture>> BeginCapture(const CaptureOptions& /*options*/) {
    return Status(Code::kUnavailable, "rows on disk are not captured; make a checkpoint of theirs");
  }
};

// Adds to the error of a call how many rows it has made, with the values that they start from, and
// could not take back.
Status WithRowsThatStay(const Status& failed, uint64_t rows);

// Returns the error of an Upsert that would go beyond max_rows.
Status TableFull(uint64_t rows, uint64_t max_rows, uint64_t added);

// Makes a store in memory for any 64-bit key. The rows are in so many shards, or in the next power
// of two, from 2 to 1024; 0: in as many as suit the machine.
std::unique_ptr<RowStore> MakeHashStore(std::shared_ptr<const RowLayout> layout,
                                        uint32_t shards = 0);
// Makes a store in memory for keys of a known range. See DirectIndex.
std::unique_ptr<RowStore> MakeDirectStore(std::shared_ptr<const RowLayout> layout,
                                          IndexConfig config);

}  // namespace sok
