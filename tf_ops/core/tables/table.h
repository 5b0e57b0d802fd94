// A table: rows in a store, the initializer of new rows, and the gradients that wait for a commit.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/base/expiry.h"
#include "core/base/initializer.h"
#include "core/base/status.h"
#include "core/base/types.h"
#include "core/policies/admission.h"
#include "core/policies/eviction.h"
#include "core/rows/row_store.h"
#include "core/rows/summed_gradients.h"
#include "core/rules/row_optimizer.h"
#include "core/tables/deposit_queue.h"
#include "core/tables/lookup_keys.h"
#include "core/tables/optimizer_history.h"
#include "core/tables/removed_keys.h"
#include "core/tables/row_evictor.h"
#include "core/tables/rows_in_use.h"
#include "core/tables/table_capture.h"
#include "core/tables/table_contents.h"
#include "core/tables/table_spec.h"

namespace sok {

// Returns kOutOfRange, with the key, if a key is not below `limit`. A limit of 0 lets every key
// pass.
Status CheckKeysBelow(const Key* keys, size_t n, uint64_t limit);

// The gradient of an anchor, which a deposit adds to.
struct AnchorGradient {
  float* gradient = nullptr;  // (kAnchorSize); null: the deposit is not named
  bool measures = true;       // whether it gets the norm of what is deposited
};

struct CommitOptions {
  std::string rule;
  std::vector<Hyper> hypers;
  // t of the rule's bias correction, 1 for the first step. 0: the table counts its steps.
  int64_t step = 0;
  float scale = 1.0f;  // gradients are multiplied by it
  // Identifies the optimizer that commits; 0: unknown. If a new optimizer commits that the table
  // has not seen before (`step` <= first_step or, without a step, any optimizer but the first),
  // slots of other optimizers start anew, unless the table keeps its slots.
  int64_t optimizer = 0;
  // The greatest `step` at which an optimizer that the table has not seen counts as new. It is
  // above 1 for an optimizer that accumulates the gradients of several calls, since it counts the
  // calls.
  int64_t first_step = 1;
  // The bound of clipping: each element of the sum of a row's gradients, times the scale, is
  // clipped to [-clip_value, clip_value]. 0: no clipping.
  float clip_value = 0.0f;
  // The gradient of the anchor (kAnchorSize) as the optimizer received it, which names the deposits
  // to apply: see tickets.h. Null: all deposits that wait are applied.
  const float* redeemed = nullptr;
  // True if the gradients of the anchor were only added up and multiplied on their way: see
  // DepositQueue::Redeem.
  bool plain = true;
  float clipped_to = 0.0f;
  bool lists_keys = false;  // see CommitOutcome::keys
};

struct CommitOutcome {
  bool stepped = false;         // there were deposits
  uint64_t rows = 0;            // that the step touched
  bool restarted = false;       // slots of earlier commits were dropped and start anew
  uint64_t left_out = 0;        // keys that got no row, and no step, since the table is full
  bool first_left_out = false;  // true if the table had left out no key before
  std::string previous;         // the rule before, empty if there was none
  // With lists_keys, the distinct keys that had gradients, ascending. A table has one list. An
  // adaptive table has two: the keys of own rows, and the buckets of static rows. A key may have no
  // row, if it was left out, not admitted or evicted.
  std::vector<std::vector<Key>> keys;
};

// The keys of a call, which the table counts once the call is done: one that fails is not
// counted. Threads may add at the same time.
struct LookupCounts {
  std::atomic<uint64_t> looked_up{0}, found{0}, refused{0};  // see TableStats
};

struct TableStats {
  uint64_t rows, max_rows, index_bytes, row_bytes, steps, pending_gradients;
  uint64_t evicted;  // rows that went by an eviction since the table was made or opened
  // Keys whose gradients commits have dropped since there was no room for a row, counted since then
  // too.
  uint64_t left_out;
  // These count since then too; a key counts as often as it occurs in a call.
  uint64_t looked_up;   // keys of lookups
  uint64_t found;       // those of them that had a row before the lookup
  uint64_t refused;     // times that the admission counted a key and gave it no row
  uint64_t made;        // rows that were made, also by an assignment, a restore or a load
  uint64_t cache_hits;  // keys of lookups whose row was in the cache of a storage
};

// Rows that were removed from a table.
struct EvictedRows {
  std::vector<Key> keys;
  std::vector<float> embeddings;  // (keys, dim)
};

// Says that a table keeps the slots of its rows while the rule is the same, whichever optimizer
// commits, since its rows outlive the process. A commit by another rule, which would drop the
// slots, is refused unless `leave` is true.
struct KeptSlots {
  std::string owner;                               // of the rows, for messages: "group 0 of 'path'"
  std::shared_ptr<const std::atomic<bool>> leave;  // whether slots may be dropped
};

// The options of Table::Update, by which the numpy API updates rows without deposits.
struct UpdateOptions {
  bool sequential = false;  // equal keys make one step each, in order; else one for their sum
};

// Thread-safe. Lookups run at the same time; commits, exports and restores run one at a time.
class Table {
 public:
  static constexpr int kMostDim = 1 << 20;

  // A key gets a row only once the spec's admission lets it, if there is one; until then its
  // gradients are dropped. Lookups that make rows count the keys without one, each as often as it
  // stands in the batch; gradients of other lookups are counted by the commit that redeems them.
  // The clock that rows take their times from is the system's by default.
  // If there is an eviction, it removes rows of a full table to make room for newcomers, and with
  // some policies after steps too. It never removes rows of keys of the same call, nor claimed
  // rows. A key whose row was removed is treated as a key that was never there, by the admission
  // too. Errors: kInvalidArgument for a dim below 1 or above kMostDim, an initializer that cannot
  // be made, a direct table without max_rows or with an eviction, an eviction that needs max_rows,
  // a table on a GPU with rows other than float32, a number of no GPU. kUnavailable without a
  // driver or NVRTC.
  static Result<std::unique_ptr<Table>> Make(const TableSpec& spec,
                                             std::shared_ptr<const Expiry> clock = nullptr);

  // Makes a table over an existing store, with the state that its rows were left in and an
  // admission that may have counted keys before. Without `kept`, slots may start anew, as they do
  // in memory.
  static Result<std::unique_ptr<Table>> Over(std::unique_ptr<RowStore> store, const TableSpec& spec,
                                             const TableState& state,
                                             std::shared_ptr<const Expiry> clock,
                                             std::shared_ptr<Admission> admission,
                                             std::optional<KeptSlots> kept = std::nullopt);

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
  // Returns the number of the GPU whose memory the rows lie in; -1: the host's.
  int gpu() const { return spec_.gpu; }
  // Returns the rows for calls whose keys and vectors lie in the memory of the device that a stream
  // belongs to; null if the rows lie elsewhere, and if the host must see each key, for an
  // admission, an eviction or a range of keys. Stats does not count the keys of such calls.
  gpu::DeviceRows* device_rows(void* stream) const;

  // Returns room for the numbers of the rows of n keys, for a Lookup that is to be trained; null in
  // a store that does not number rows.
  std::shared_ptr<RowNumbers> NumberRows(size_t n) const;
  // Returns true if there is an admission, which counts keys.
  bool counts_keys() const { return admission_ != nullptr; }
  // Returns a new LookupKeys::counted, for a lookup that makes no rows; null without an admission.
  std::shared_ptr<std::atomic<bool>> CountOnce() const {
    return counts_keys() ? std::make_shared<std::atomic<bool>>(false) : nullptr;
  }

  // The next functions are the parts of a Lookup, for callers that choose what new rows start from.
  //
  // Copies the embedding of every key that has a row, as `options` say. Appends the positions of
  // other keys to `missing`, in no order. If `missing` is null, other keys get the vector that
  // training would start from. Adds to `met`, unless it or `missing` is null.
  template <typename T>  // float or BFloat16
  Status Find(const Key* keys, size_t n, const GatherOptions& options, T* out,
              std::vector<uint32_t>* missing, LookupCounts* met,
              const ParallelFor& parallel_for) const;
  // Has the admission count the keys at `positions`, which have no row: counts[i] times, or once if
  // `counts` is null. Keeps the positions of keys that may have a row, in ascending order. Adds to
  // `met`.
  Status AdmitMissing(const Key* keys, const int64_t* counts, std::vector<uint32_t>* positions,
                      LookupCounts* met);
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

  // Returns the positions of keys without a row, in no order.
  Result<std::vector<uint32_t>> Missing(const Key* keys, size_t n, const ParallelFor& parallel_for);

  // Remove rows, and return them: the first function the rows that one of the policies chooses by
  // now, the second the rows of distinct keys.
  Result<EvictedRows> Evict(const std::vector<const Eviction*>& policies,
                            const ParallelFor& parallel_for);
  Result<EvictedRows> Evict(const Key* keys, size_t n, const ParallelFor& parallel_for);

  // Claims the rows of a lookup's keys, so that no eviction removes them until the claim ends: with
  // the last copy of the lookup's keys or, after a deposit, with the deposit. Returns null without
  // an eviction.
  std::shared_ptr<RowClaim> Claim(const LookupKeys& keys);
  // Hands the claim of a lookup on to its deposit.
  void HandOnClaim(LookupKeys* keys) const;

  // Keeps the gradients (keys.n, dim) until a Commit redeems them. `hold` keeps them alive. Exactly
  // one of the two pointers is set. Adds the mark of the deposit to the gradient of the anchor.
  // Error: a failed copy from a device, if the norm is computed.
  Status Deposit(LookupKeys keys, std::shared_ptr<const void> hold, const float* gradients,
                 const BFloat16* gradients_bf16, const AnchorGradient& anchor = {},
                 const ParallelFor& parallel_for = SerialFor);
  // Sums gradients by key, for deposits.
  std::shared_ptr<SummedGradients> SumByKey(const LookupKeys& keys, const float* gradients,
                                            const BFloat16* gradients_bf16,
                                            const ParallelFor& parallel_for) const;

  // Sums the redeemed gradients by key, and applies the rule once to each row. Without gradients it
  // does nothing. Keys without a row get one, unless an admission holds them back. If the table is
  // full and not enough rows may be evicted, the first keys, by deposit and position, get rows;
  // gradients of the others are dropped: see CommitOutcome::left_out. An error drops the gradients
  // and leaves all values of rows as they were; its text says if rows were evicted to make room.
  // kFailedPrecondition: the rule is another one, and the table keeps its slots; or the error of
  // DepositQueue::Redeem.
  Result<CommitOutcome> Commit(const CommitOptions& options, const ParallelFor& parallel_for);
  using Deposits = std::vector<DepositQueue<LookupKeys>::Deposit>;
  // Commits deposits that have waited elsewhere, in their order. `optimizer` is made of the
  // options' rule. The lock of LockCommits must be held meanwhile, perhaps by another thread.
  // Threads of a pool must not wait for that lock: its holder may wait for the pool.
  Result<CommitOutcome> CommitLocked(const CommitOptions& options, const RowOptimizer& optimizer,
                                     Deposits deposits, const ParallelFor& parallel_for);
  std::unique_lock<std::mutex> LockCommits() { return std::unique_lock<std::mutex>(commit_mu_); }

  // Returns true if lookups that make rows wait for each other, and for commits.
  bool makes_rows_in_turn() const { return spec_.max_rows > 0 || eviction_ != nullptr; }

  // Makes one step of `optimizer`, whose rule is `rule`, at once, on the rows of keys (n) with
  // gradients (n, dim). Each row counts its own updates. Keys without a row get one, unless
  // admission holds them back.
  // Errors: kFailedPrecondition if the table has been trained with another rule; those of Lookup.
  // After an error no values have changed, but some rows may have been made, and others evicted for
  // them, which the error says. If the rows have changed and could not be written to disk, it says
  // so.
  Status Update(const Key* keys, size_t n, const float* gradients, const std::string& rule,
                const RowOptimizer& optimizer, const UpdateOptions& options,
                const ParallelFor& parallel_for);

  bool has_deposits() const { return !deposits_.empty(); }
  // Drops all deposits. Returns how many gradients they had.
  uint64_t DropDeposits() { return deposits_.Drop(); }
  // Numbers lookups, for the order of their deposits.
  uint64_t NextLookup() { return deposits_.NextLookup(); }

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

  // Replaces everything that the table holds, and drops the deposits. Rows keep their times, but a
  // time in seconds that lies in the future, by another machine's clock, becomes the present. Rows
  // that have expired are left out. A step clock goes on from where it stood. Contents without
  // counts leave an admission that has counted nothing. Errors: kInvalidArgument for an unknown
  // rule, another slot_floats than the rule has, counts of another admission than the table's, and
  // rows that no training leaves: see CheckRows; kDataLoss for damaged counts; kOutOfRange and
  // kResourceExhausted as Lookup. Nothing has changed then, unless memory ended.
  Result<RestoreOutcome> Restore(const TableContents& contents, const ParallelFor& parallel_for);
  // Adds the rows of a piece of contents to the table, as Restore takes them up. So contents that
  // are larger than memory come back in pieces: a Restore of everything but rows, then an AddRows
  // for each piece, with the rule and clock of the Restore. Errors: those of Restore, and
  // kInvalidArgument for a key that has a row already. Nothing has changed then, unless memory
  // ended.
  Status AddRows(const TableContents& piece, const ParallelFor& parallel_for);
  // Returns the state that Restore would leave, or the error that it would return.
  Result<TableState> CheckRestore(const TableContents& contents,
                                  const ParallelFor& parallel_for) const;

  // Removes the rows of keys. Returns how many keys had one. The admission keeps its counts of keys
  // without a row. Keys that this table cannot hold have no row.
  Result<uint64_t> Remove(const Key* keys, size_t n, const ParallelFor& parallel_for);

  // Returns the keys whose rows have gone since the last call, by an eviction, a removal or the TTL
  // of a storage, and that have no row now. At most `most` keys are noted for the next call; with 0
  // noting ends. An expired row is noted when a call meets it, or when the database rewrites its
  // files.
  Result<RemovedSince> TakeRemoved(size_t most, const ParallelFor& parallel_for);

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
    friend class Table;
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

  int dim() const { return spec_.dim; }
  const RowForm& form() const { return spec_.form; }
  // Grows whenever rows may have gone.
  uint64_t removals() const { return removals_.load(); }
  uint64_t size() const { return store_->size(); }
  // Returns the time by the clock of the rows.
  uint32_t now() const { return ticks_ != nullptr ? ticks_->load() : clock_->Now(); }
  int64_t steps();
  TableStats Stats();

 private:
  // The parts of Visit, Assign and AssignRows that run while commit_mu_ is held. `values` has
  // `floats` floats for each row.
  Status VisitLocked(const Key* keys, size_t n, const VisitRow& visit,
                     const ParallelFor& parallel_for);
  // `rounded`, unless null, is the coding of the rows, which rounds the values at random.
  Status SetLocked(const Key* keys, size_t n, const float* values, int floats,
                   const RowCoding* rounded, const ParallelFor& parallel_for);
  // Returns the layout of the table's rows with these slots.
  std::shared_ptr<const RowLayout> LayoutOf(std::vector<Slot> slots) const {
    return std::make_shared<const RowLayout>(spec_.dim, std::move(slots), spec_.form);
  }
  // Returns kFailedPrecondition if n > 0 and the rows have another number of slot floats.
  Status CheckSlots(size_t n, int slot_floats) const;
  // Removes the rows that `choose` adds to its argument. commit_mu_ is held, so they have not
  // changed.
  Result<EvictedRows> EvictChosen(const std::function<Status(EvictedRows*)>& choose,
                                  const ParallelFor& parallel_for);
  // Removes the rows that one of the policies chooses, except keys in `staying`. commit_mu_ is
  // held.
  Result<EvictedRows> EvictBy(const std::vector<const Eviction*>& policies, const KeySet& staying,
                              const ParallelFor& parallel_for);
  // If the eviction removes rows after steps, does so after step number `step`, except rows of the
  // keys (n). commit_mu_ is held.
  Status EvictAfterStep(int64_t step, const Key* keys, size_t n, const ParallelFor& parallel_for);
  // Calls make(), which makes rows for the `newcomers` without one, at the time `now`. `keys` (n)
  // are all keys of the call, newcomers included. In a full table it evicts others first.
  // commit_mu_ is held if there is an eviction.
  // If not all newcomers fit in: `fitting` gets those that do, and make() must make rows for these;
  // if `fitting` is null, it is an error.
  Status MakeInRoom(const Key* keys, size_t n, const std::vector<Key>& newcomers, uint32_t now,
                    const std::function<Status()>& make, const ParallelFor& parallel_for,
                    std::vector<Key>* fitting = nullptr);
  // Does the same for all keys without a row.
  Status MakeInRoom(const Key* keys, size_t n, uint32_t now, const std::function<Status()>& make,
                    const ParallelFor& parallel_for);
  // Makes rows for the keys without one, in their order, as long as there is room. left_out becomes
  // the number of distinct keys that got none, and `made` gets the keys of the rows that were made.
  // commit_mu_ is held.
  Status MakeRowsThatFit(const std::vector<Key>& keys, uint32_t now, uint64_t* left_out,
                         std::vector<Key>* made, const ParallelFor& parallel_for);
  // Adds to the error of a call how many rows were evicted to make room for it. `evicted` is what
  // evicted_for_room() was before the call.
  Status WithEvictions(const Status& failed, uint64_t evicted) const;
  uint64_t evicted_for_room() const { return evictor_ == nullptr ? 0 : evictor_->evicted(); }
  // Copies deposits to the host, unless all can be applied on their device. `removals`, here and
  // below, is what removals() was when the step began.
  Status BringToHost(Deposits* deposits, uint64_t removals, bool lists_keys) const;

  Table(const TableSpec& spec, const Initializer& initializer, std::unique_ptr<RowStore> store);
  static Status CheckDim(int dim);
  Status CheckRange(const Key* keys, size_t n) const;
  // Makes rows of distinct keys without one. `now` is their update_time. Adds the keys of the rows
  // that it has made to `made`, unless that is null.
  Status MakeRows(const std::vector<Key>& keys, uint32_t now, std::vector<Key>* made,
                  const ParallelFor& parallel_for);
  // Takes back rows that were made for a call that failed. Returns the error of the call, which
  // says how many rows stay.
  Status TakeBack(const Status& failed, const std::vector<Key>& made,
                  const ParallelFor& parallel_for);
  // Has the admission forget the counts of keys that have got rows, or whose rows have gone. Most
  // keys of the latter kind have no count; but a key may have got its row without the admission, by
  // a load.
  void ForgetCounts(const std::vector<Key>& keys);
  // Does the same for rows that have gone, and notes their keys for TakeRemoved.
  void NoteRemoved(const std::vector<Key>& keys);
  // Removes the positions of keys that are not admitted. Has the admission count the keys first if
  // `observe`, and adds to `met` then.
  Status Admit(const Key* keys, const int64_t* counts, bool observe,
               std::vector<uint32_t>* positions, LookupCounts* met);
  Status Relayout(const std::string& rule, const std::vector<Slot>& slots, bool restart,
                  const ParallelFor& parallel_for);
  // Returns kFailedPrecondition for a rule that would drop slots which the table keeps. commit_mu_
  // is held, here and below.
  Status CheckRule(const std::string& rule) const;
  // Applies a step. The state becomes `after` as soon as rows have changed.
  Result<uint64_t> ApplyStep(const std::vector<GradientBatch>& batches,
                             const RowOptimizer& optimizer, CommitStep step, TableState after,
                             const ParallelFor& parallel_for);
  // Returns the counts of the contents, if the table has an admission; an error if the counts
  // belong to another admission.
  Result<AdmissionChunks> CountsOf(const TableContents& contents) const;
  // Returns true if contents and table have the same kind of clock.
  bool SharesClock(const TableContents& contents) const {
    return (ticks_ != nullptr) == (contents.step_clock != TableContents::kSeconds);
  }
  // Counts the keys of gradients that no lookup has counted, and makes missing rows. left_out and
  // made are as in MakeRowsThatFit.
  Status MakeDepositedRows(const Deposits& deposits, uint64_t removals, uint32_t now,
                           uint64_t* left_out, std::vector<Key>* made, LookupCounts* met,
                           const ParallelFor& parallel_for);
  // Gives the rows the slots of the rule, and applies the step to them: the part of CommitLocked
  // that follows once there are rows.
  Status StepLocked(const CommitOptions& options, const RowOptimizer& optimizer, uint32_t now,
                    Deposits* deposits, CommitOutcome* outcome, const ParallelFor& parallel_for);
  // Returns the gradients for the store to apply. If gradients of one deposit are summed by key,
  // all must be.
  std::vector<GradientBatch> BatchesOf(Deposits& deposits, const ParallelFor& parallel_for);

  const TableSpec spec_;
  const Initializer initializer_;
  const std::unique_ptr<RowStore> store_;
  std::shared_ptr<const Expiry> clock_;
  // With a step clock: the number of commits so far, which a Restore may set back. Otherwise null.
  std::unique_ptr<std::atomic<uint32_t>> ticks_;
  std::shared_ptr<Admission> admission_;  // null: every key gets a row
  std::shared_ptr<Eviction> eviction_;    // null: rows stay
  std::shared_ptr<RowsInUse> in_use_;     // null without eviction_
  std::unique_ptr<RowEvictor> evictor_;   // null without eviction_ and a limit of rows

  const std::shared_ptr<RemovedKeys> removed_ = std::make_shared<RemovedKeys>();
  const std::shared_ptr<SummedGradientsPool> summed_pool_ = std::make_shared<SummedGradientsPool>();
  DepositQueue<LookupKeys> deposits_;

  // Guards state_, and lets one commit, assignment, eviction, export or restore run at a time. With
  // evictor_, removals and lookups that make rows take it too.
  std::mutex commit_mu_;
  TableState state_;
  std::optional<KeptSlots> kept_;
  OptimizerHistory history_;
  std::atomic<uint64_t> removals_{0};
  // Figures of TableStats. Each call adds to them once, not once a key.
  std::atomic<uint64_t> evicted_{0}, left_out_{0}, refused_{0}, looked_up_{0}, found_{0};
};

}  // namespace sok
