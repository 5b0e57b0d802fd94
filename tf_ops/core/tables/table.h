// A table: rows in a store, the initializer of new rows, and the gradients that wait for a commit.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/bfloat16.h"
#include "core/base/expiry.h"
#include "core/base/initializer.h"
#include "core/base/status.h"
#include "core/base/types.h"
#include "core/policies/admission.h"
#include "core/policies/eviction.h"
#include "core/rows/row_store.h"
#include "core/rows/summed_gradients.h"
#include "core/rules/row_optimizer.h"
#include "core/tables/commit.h"
#include "core/tables/deposit_queue.h"
#include "core/tables/lookup_keys.h"
#include "core/tables/optimizer_history.h"
#include "core/tables/table_contents.h"
#include "core/tables/table_rows.h"
#include "core/tables/table_spec.h"

namespace sok {

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
  // Rows of a storage that were read ahead of lookups, and keys that were not cached and for which
  // there was no room.
  uint64_t read_ahead, left_behind;
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

// Thread-safe. Lookups run at the same time; commits, exports and restores run one at a time. Which
// keys have a row is in TableUpkeep, what is done with rows in TableRows, and their training here.
class Table : public TableRows {
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

  int64_t steps();
  TableStats Stats();

 private:
  Table(const TableSpec& spec, const Initializer& initializer, std::unique_ptr<RowStore> store)
      : TableRows(spec, initializer, std::move(store)) {}
  static Status CheckDim(int dim);
  // Returns the layout of the table's rows with these slots.
  std::shared_ptr<const RowLayout> LayoutOf(std::vector<Slot> slots) const {
    return std::make_shared<const RowLayout>(spec_.dim, std::move(slots), spec_.form);
  }
  // Copies deposits to the host, unless all can be applied on their device. `removals`, here and
  // below, is what removals() was when the step began.
  Status BringToHost(Deposits* deposits, uint64_t removals, bool lists_keys) const;
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

  const std::shared_ptr<SummedGradientsPool> summed_pool_ = std::make_shared<SummedGradientsPool>();
  DepositQueue<LookupKeys> deposits_;
  std::optional<KeptSlots> kept_;
  OptimizerHistory history_;
  std::atomic<uint64_t> left_out_{0};  // see TableStats
};

}  // namespace sok
