// A table whose keys, rows, slots and counters are in the memory of a GPU.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/base/initializer.h"
#include "core/base/status.h"
#include "core/base/types.h"
#include "core/gpu/device.h"
#include "core/gpu/kernels/arguments.h"
#include "core/gpu/masked_keys.h"
#include "core/gpu/row_bags.h"
#include "core/rows/row_slabs.h"
#include "core/rows/row_store.h"
#include "core/rules/row_optimizer.h"

namespace sok::gpu {

struct GpuTableConfig {
  int dim = 0;
  Initializer initializer;
  uint64_t max_rows = 0;  // 0: no limit
  // Bytes of the GPU's memory for rows, counters and index, without the scratch memory of calls; 0:
  // as much as the GPU has.
  uint64_t max_bytes = 0;
};

// The ways in which a lookup treats a key that has no row.
enum class Absent {
  kMake,   // makes its row
  kStart,  // returns its start vector
  kZeros,  // returns zeros
};

// Gradients of one backward pass, on the GPU.
struct GpuGradients {
  DeviceAddress keys;       // (n) uint64
  DeviceAddress gradients;  // (n, dim)
  Element element = Element::kFloat32;
  uint64_t n = 0;
  float factor = 1.0f;
  // (n) uint32, the number of each key's gradient; 0: gradients are in the order of the keys.
  DeviceAddress positions = 0;
  // Without positions: gradients that begin with kUnusedBits are ignored.
  bool skips_marked = false;
};

// Thread-safe. Addresses are of the GPU. Calls are put on a stream and return before the GPU is
// done, unless a method returns something that the GPU computes; calls on different streams run one
// after the other.
class GpuTable {
 public:
  static Result<std::unique_ptr<GpuTable>> Make(std::shared_ptr<Device> device,
                                                const GpuTableConfig& config);
  ~GpuTable();

  // Writes the number of each key's row, kNoRow without one, to rows (n) uint32.
  Status Find(DeviceAddress keys, uint64_t n, DeviceAddress rows, Stream stream);

  // Finds or makes the row of each key; `rows` (n) gets its number. A new row has its key's start
  // vector and `now` as its time. Errors: kResourceExhausted if there would be more than max_rows
  // or max_bytes, or if the GPU has no more memory; then no row was made.
  Status FindOrMake(DeviceAddress keys, uint64_t n, uint32_t now, DeviceAddress rows,
                    Stream stream);

  // Copies the embeddings of n keys to out (n, dim), and the numbers of their rows to rows (n)
  // uint32, unless that is 0. Errors: see FindOrMake.
  Status Lookup(DeviceAddress keys, uint64_t n, Absent absent, uint32_t now, DeviceAddress out,
                Element element, Stream stream, DeviceAddress rows = 0);

  // Pools the rows of n keys, which are in consecutive bags, as described by RowBags. Errors: see
  // FindOrMake.
  Status LookupPooled(DeviceAddress keys, uint64_t n, const std::vector<RowBags>& bags,
                      Absent absent, uint32_t now, Stream stream);
  // Writes the gradient of the row of each id, (ids, dim) float32, from gradients of the vectors.
  Status PoolGradient(const RowBags& bags, DeviceAddress gradients, Stream stream);
  // Writes the gradients of weights, (ids) float32, from gradients of the vectors.
  Status WeightGradient(const RowBags& bags, DeviceAddress gradients, Stream stream);

  // Pools rows (…, dim) float32 that are not in the table. `numbers` uint32: the row of each id of
  // all bags.
  Status PoolRows(DeviceAddress rows, DeviceAddress numbers, const std::vector<RowBags>& bags,
                  Stream stream);
  // Sums gradients (n, dim) float32 by numbers (n) uint32, which are below `count`, into sums
  // (count, dim). Where there is none, a sum is zeros, or begins with kUnusedBits if marks_unused.
  Status SumByNumber(DeviceAddress gradients, DeviceAddress numbers, uint64_t n, uint64_t count,
                     bool marks_unused, DeviceAddress sums, Stream stream);

  // Copies own and static rows as described by MaskedKeys; `own` (n) bool becomes true for own
  // rows. With make_rows, keys that ask for an own row and have none get one, which starts as a
  // copy of their static row. `asking` (keys.asking) uint64 gets the keys that ask. Errors: see
  // FindOrMake.
  Status LookupMasked(const MaskedKeys& keys, bool make_rows, uint32_t now, DeviceAddress asking,
                      DeviceAddress out, Element element, DeviceAddress own, Stream stream);
  // Sums the gradients (n, dim) of the static rows, out of `count`, that a LookupMasked has read.
  // Waits for the number of distinct rows, for which `make` allocates indices int64 and sums (n,
  // dim).
  using MakeSums = std::function<Status(uint64_t n, DeviceAddress* indices, DeviceAddress* sums)>;
  Status StaticGradient(DeviceAddress own, DeviceAddress buckets, DeviceAddress gradients,
                        Element element, uint64_t n, uint64_t count, const MakeSums& make,
                        Stream stream);

  // Sums the gradients of equal keys, in order, and applies one step to each row. Keys without a
  // row are skipped. `rule` is the rule's name, and rows get its slots. If it is empty, the slots
  // stay as SetRule has set them. step.number must be at least 1: rows do not count their own steps
  // here. `touched`, unless null, gets the number of rows of the step, once the GPU is done.
  // Errors: kInvalidArgument for a step that is sequential or counts by row, kResourceExhausted.
  Status Commit(const std::vector<GpuGradients>& batches, const std::string& rule,
                const RowOptimizer& optimizer, const CommitStep& step, Stream stream,
                uint64_t* touched = nullptr);

  // Writes embeddings (n, dim) float32. Makes missing rows. If a key comes several times, its last
  // embedding is kept. Errors: see FindOrMake.
  Status Assign(DeviceAddress keys, DeviceAddress values, uint64_t n, uint32_t now, Stream stream);

  // Erases rows. Returns how many rows were erased, once the GPU is done.
  Result<uint64_t> Erase(DeviceAddress keys, uint64_t n, Stream stream);
  // Erases the `n` rows with the oldest update, or with the fewest updates; the choice among equal
  // rows is arbitrary. Returns the number of erased rows.
  Result<uint64_t> Evict(uint64_t n, bool by_time, Stream stream);

  // Copies the first `floats` floats of the rows of n keys, at least 1, to out (n, floats), their
  // counters to metas (n) and the numbers of the rows to rows (n) uint32. A key without a row gets
  // zeros, and the number kNoRow.
  Status ReadRows(DeviceAddress keys, uint64_t n, uint32_t floats, DeviceAddress out,
                  DeviceAddress metas, DeviceAddress rows, Stream stream);

  // Makes room for this many rows, so that later calls can make them. Errors: kResourceExhausted.
  Status Reserve(uint64_t rows, Stream stream);
  // Returns kResourceExhausted if this many rows need more than max_bytes.
  Status CheckFits(uint64_t rows) const;

  // Returns the keys whose hash, Mix64, is in [first, last], in any order. It reads only the part
  // of the index that has them.
  Result<std::vector<Key>> ListKeys(uint64_t first, uint64_t last, Stream stream);

  // A part of the rows, in the host's memory.
  struct RowsPart {
    std::vector<Key> keys;
    std::vector<float> floats;  // (keys, dim + slot floats)
    std::vector<RowMeta> metas;
  };
  // Calls fn with all rows, a part at a time. Other calls wait meanwhile, so fn must not make any.
  Status Export(const std::function<Status(const RowsPart& part)>& fn, Stream stream);
  // Writes whole rows with the slots of the table, and makes missing rows. Errors: kInvalidArgument
  // if a key comes twice or sizes do not fit; see FindOrMake.
  Status Import(const RowsPart& part, Stream stream);

  // Gives every row the slots of a rule. Slots that differ from the present ones start with their
  // initial values. Errors: kResourceExhausted; nothing has changed then.
  Status SetRule(const std::string& rule, const std::vector<Slot>& slots, Stream stream);

  // Returns the number of rows, once the GPU is done.
  Result<uint64_t> Size(Stream stream);
  int dim() const { return dim_; }
  // Returns the bytes of the GPU's memory that rows, keys, counters and the index take.
  uint64_t bytes() const;
  uint64_t index_bytes() const;  // of the index alone

 private:
  struct Kernels;
  // Arrays with an element for each number of a row. They grow without being copied.
  struct Arrays;
  // Memory whose content only one call uses.
  struct Scratch;
  class Call;

  GpuTable(std::shared_ptr<Device> device, const GpuTableConfig& config);

  Status Open();
  // Begin and end a call, which runs after the previous call, even if that was on another stream.
  Status Enter(Stream stream);
  void Leave();
  Status Launch(void* kernel, uint64_t items, const void* argument);
  Status LaunchBlocks(void* kernel, uint64_t blocks, const void* argument);
  std::function<Status(void*, uint64_t, const void*)> Launcher();  // of LaunchBlocks
  Status NoteBroken(Status status);
  Status LoadRule(const BegunRule& rule);

  Rows RowsOfTable() const;
  Index IndexOfTable() const;

  // Makes room for n more rows. If it may not suffice, it asks the GPU for the number of rows.
  Status MakeRoom(DeviceAddress keys, uint64_t n);
  Status GrowRows(uint64_t rows);
  uint64_t BytesOfRow() const;
  // Returns whether this many rows and buckets need more than max_bytes.
  bool IsBeyondMost(uint64_t rows, uint64_t buckets) const;
  Status TooManyBytes(uint64_t rows) const;
  Status GrowIndex(uint64_t rows);
  Result<Counters> ReadCounters();
  // CountAbsent returns how many of the keys have no row, and CountNew how many distinct ones.
  // CountAbsent must be called before CountNew.
  Result<uint64_t> CountAbsent(DeviceAddress keys, uint64_t n);
  Result<uint64_t> CountNew(DeviceAddress keys, uint64_t n);
  Counters Mirrored() const;
  // Upper bounds that the host knows: of the number of rows, and of the end of the rows' numbers.
  struct Most {
    uint64_t end;
    uint64_t rows;
  };
  Most MostThereAre() const;
  Status MirrorCounters(uint64_t n);

  Status FindInto(DeviceAddress keys, uint64_t n, DeviceAddress rows);
  // Starts the new rows of a call, whose numbers are `made`, for the keys at `makers`.
  using StartRows = std::function<Status(const uint32_t* made, const uint32_t* makers)>;
  Status MakeInto(DeviceAddress keys, uint64_t n, uint32_t now, DeviceAddress rows,
                  const StartRows& start = nullptr);
  // Pools the rows with these numbers; `keys` may be 0 if every key has a row.
  Status PoolEach(const Rows& rows, DeviceAddress numbers, DeviceAddress keys,
                  const std::vector<RowBags>& bags, bool fills_start);
  // Writes the numbers of rows to `rows`, or to memory of the table if it is 0. Returns the
  // address.
  Result<DeviceAddress> NumbersOf(DeviceAddress keys, uint64_t n, Absent absent, uint32_t now,
                                  DeviceAddress rows = 0);
  Status Sort(DeviceAddress values, uint64_t n, uint32_t most);
  // Sorts the numbers of rows, or other numbers below `missing`, and finds their segments.
  Status Segment(DeviceAddress rows, uint64_t n);
  Status Segment(DeviceAddress values, uint64_t n, uint32_t missing);
  // Sums long segments in chunks, and returns the arguments of kernels that sum the other segments.
  Result<SumArguments> SumLongSegments(DeviceAddress gradients, uint64_t n);
  Result<uint64_t> EraseKeys(DeviceAddress keys, uint64_t n);
  Result<uint64_t> ListInto(uint64_t begin, uint64_t end, DeviceAddress keys, DeviceAddress rows);
  Status SetRuleNow(const std::string& rule, const std::vector<Slot>& slots);

  const std::shared_ptr<Device> device_;
  const int dim_;
  const Initializer initializer_;
  const uint64_t max_rows_;
  const uint64_t max_bytes_;

  mutable std::mutex mu_;
  Stream stream_ = nullptr;  // of the current call
  void* done_ = nullptr;     // an event after its work
  bool was_called_ = false;
  // The first error in the middle of a change. The content of the GPU is unknown then, and every
  // later call returns this error.
  Status broken_;

  std::unique_ptr<Kernels> kernels_;
  std::string rule_;  // the rule that the slots belong to
  std::shared_ptr<const RowLayout> layout_;
  Buffer index_;
  uint64_t buckets_ = 0;
  std::unique_ptr<Arrays> arrays_;
  uint64_t capacity_ = 0;  // rows that the arrays have room for
  uint64_t erased_ = 0;    // keys that were erased since the index was made

  Buffer counters_;
  // A copy of the counters that the GPU writes, and how many rows the calls after it may have made.
  volatile Counters* mirror_ = nullptr;
  struct Pending {
    uint32_t call;
    uint64_t n;
  };
  std::deque<Pending> pending_;
  uint32_t calls_ = 0;

  std::unique_ptr<Scratch> scratch_;
};

}  // namespace sok::gpu
