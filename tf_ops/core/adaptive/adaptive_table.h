// Rare keys share static rows, frequent keys have rows of their own, and a sketch decides which.
//
// A key's static row is the row of its bucket, a hash of the key. Lookups for training count keys
// without a row of their own; when the count of a key reaches promote_after, it gets a row, which
// starts as its static row, bit for bit. A key that loses its row uses its static row again.
//
// With n owners, owner i has the keys of the buckets b with b % n == i, and their static
// rows, so that a promotion concerns one owner alone. The sketch's counters belong to buckets, so
// the count of a key does not depend on n.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "core/adaptive/count_min_sketch.h"
#include "core/base/adaptive_bucket.h"
#include "core/base/status.h"
#include "core/base/types.h"
#include "core/policies/eviction.h"
#include "core/policies/eviction_queue.h"
#include "core/tables/deposit_queue.h"
#include "core/tables/table.h"

namespace sok {

struct AdaptiveConfig {
  // The number of static rows, of all owners together.
  uint64_t static_buckets = 1;
  uint64_t owners = 1;
  uint64_t owner = 0;

  // A key gets a row in the lookup in which it is counted for the promote_after-th time. At least
  // 1, and at most what a counter holds.
  // Default: 2
  uint32_t promote_after = 2;

  // The most own rows of this owner. When there are so many, a key gets a row in place of the least
  // used one, once the key has been used as often and the counter of that row is not full; with a
  // mask of 1, at once. 0: no limit.
  // Default: 0
  uint64_t max_rows = 0;

  // Counts are halved after every so many steps. 0: never.
  // Default: 0
  uint64_t decay_every = 0;

  // Own rows that were not updated for so many seconds are removed. The table looks for them at
  // most 16 times in that span, so a row may stay a sixteenth longer. 0: never.
  // Default: 0
  uint32_t ttl = 0;

  // If true, a new row copies the optimizer's slots of its static row; else its slots start anew.
  // Default: true
  bool copy_slots = true;

  // When a key loses its row, the static row moves by this share of the way to it. In [0, 1].
  // Default: 0
  double demote_blend = 0.0;

  // The number of distinct keys that the counters of all owners together are made for; then the
  // bits of a counter, 8 or 16.
  uint64_t sketch_capacity = 1000000;
  int counter_bits = 8;
};

// The gradients of a deposit, split into gradients of own rows and gradients of static rows.
struct AdaptiveSplit {
  uint64_t changes = 0;  // AdaptiveTable::changes_ when it was split
  LookupKeys own, statics;
};

// The keys of one lookup, kept for the deposit that follows it.
struct AdaptiveKeys {
  std::shared_ptr<const void> hold;  // keeps the arrays alive
  const Key* keys = nullptr;         // (n)
  // (n) How many keys of the batch each key stands for; null: 1.
  const int64_t* counts = nullptr;
  // (n) 1: read the own row, and make it if there is none; 0: the static row; -1: the own row if
  // there is one, else the static row. Null: all are -1. In a lookup that is not for training, 1 is
  // the same as -1.
  const int32_t* mask = nullptr;
  size_t n = 0;
  // For a lookup that was not for training: true once the keys have been counted. Null: the lookup
  // has counted them.
  std::shared_ptr<std::atomic<bool>> counted = nullptr;
  DepositOrder order = {};
  std::shared_ptr<AdaptiveSplit> split = nullptr;  // for a deposit whose norm is asked for

  double square() const { return split->own.square() + split->statics.square(); }
  double Dot(const AdaptiveKeys& other) {
    return split->own.summed->Dot(*other.split->own.summed) +
           split->statics.summed->Dot(*other.split->statics.summed);
  }
};

// The contents of an adaptive table: see TableContents.
struct AdaptiveContents {
  TableContents own, statics;
  std::string_view sketch;  // CountMinSketch::Dump
  // A version, then the figures that Stats has: promoted, demoted, lookups, own_lookups.
  std::vector<int64_t> counters;
};

struct AdaptiveStats {
  TableStats own, statics;
  uint64_t promoted, demoted;     // keys that got and that lost a row, ever
  uint64_t lookups, own_lookups;  // keys that lookups for training read, and how many had own rows
  uint64_t sketch_bytes;
  double sketch_saturation;  // the share of counters that are at their greatest value
};

// Thread-safe. Lookups run at the same time, but one of them counts keys at a time.
class AdaptiveTable {
 public:
  // `own` takes any key, without a limit of rows. `statics` is direct, for the buckets of this
  // owner. Both have one dim, and nobody else may train them. Errors: kInvalidArgument for a value
  // out of its range, kResourceExhausted.
  static Result<std::unique_ptr<AdaptiveTable>> Make(std::shared_ptr<Table> own,
                                                     std::shared_ptr<Table> statics,
                                                     const AdaptiveConfig& config);

  // Copies embeddings into out (n, dim). With training it counts keys and makes rows; otherwise it
  // changes nothing. A key that gets its row in this call reads the vector that the row starts
  // from.
  // Errors: kInvalidArgument for a mask other than -1, 0 and 1, a negative count or a key of
  // another owner; nothing has changed then. kResourceExhausted if memory ends.
  template <typename T>  // float or BFloat16
  Status Lookup(const AdaptiveKeys& batch, bool training, T* out, const ParallelFor& parallel_for);

  // Keeps the gradients (batch.n, dim) until a Commit redeems them. The commit gives a key's
  // gradient to its own row, if the key has one by then and its mask is not 0, and otherwise to the
  // static row. The norm is computed for the rows that keys have now, and so that with it the sum
  // of all deposits since the last commit has the norm for these rows, too. If the lookup was not
  // for training, its first deposit counts the keys and makes rows, as a lookup for training does.
  // Pointers are as in Table::Deposit. Errors: those of Lookup.
  Status Deposit(AdaptiveKeys batch, std::shared_ptr<const void> hold, const float* gradients,
                 const BFloat16* gradients_bf16, const AnchorGradient& anchor = {},
                 const ParallelFor& parallel_for = SerialFor);

  // Forgets the deposits. Returns how many gradients there were.
  uint64_t DropDeposits();
  // Numbers lookups, for the order of their deposits.
  uint64_t NextLookup() { return deposits_.NextLookup(); }

  // Makes one step of both tables: see Table::Commit. Afterwards it halves counts and removes old
  // rows, if it is time to.
  Result<CommitOutcome> Commit(const CommitOptions& options, const ParallelFor& parallel_for);

  // Removes the own rows of keys. Returns how many keys had one.
  Result<uint64_t> Demote(const Key* keys, size_t n, const ParallelFor& parallel_for);

  // The AdaptiveContents of one moment. While a snapshot lives, no commit runs and no row is made,
  // and its thread must not use the table otherwise.
  struct Snapshot {
    std::unique_lock<std::mutex> lock;
    Table::Snapshot own, statics;
    std::string sketch;
    std::vector<int64_t> counters;
  };
  Result<Snapshot> Freeze();

  // Replaces everything by the contents of a snapshot. Rows keep their times: see Table::Restore.
  // The outcome is the outcome of both tables together.
  // Errors: kInvalidArgument for parts that do not fit this table or each other, kDataLoss for a
  // damaged sketch. Nothing has changed then, unless memory ended.
  Result<RestoreOutcome> Restore(const AdaptiveContents& contents, const ParallelFor& parallel_for);
  // Returns the error that Restore would have for these contents.
  Status CheckRestore(const AdaptiveContents& contents, const ParallelFor& parallel_for) const;

  int dim() const { return own_->dim(); }
  const AdaptiveConfig& config() const { return config_; }
  const std::shared_ptr<Table>& own() const { return own_; }
  const std::shared_ptr<Table>& statics() const { return statics_; }
  AdaptiveStats Stats();

 private:
  using Deposits = std::vector<DepositQueue<AdaptiveKeys>::Deposit>;
  // A key that is to get a row.
  struct Newcomer {
    RankedKey used;  // its rank is its count
    bool forced;     // by a mask of 1
  };
  AdaptiveTable(std::shared_ptr<Table> own, std::shared_ptr<Table> statics,
                const AdaptiveConfig& config, std::unique_ptr<CountMinSketch> sketch);
  static SketchConfig SketchOf(const AdaptiveConfig& config);
  Status CheckBatch(const AdaptiveKeys& batch) const;
  // Reads positions [begin, end) of a batch. `missing`, unless it is null, gets the positions that
  // ask for an own row of keys that have none.
  template <typename T>
  Status Read(const AdaptiveKeys& batch, size_t begin, size_t end, T* out,
              std::vector<uint32_t>* missing, LookupCounts* met) const;
  uint32_t SketchBucketOf(Key key) const;
  std::vector<Key> BucketsOf(const std::vector<Key>& keys) const;

  // The functions below are called with mu_ held.
  //
  // Counts keys, and makes rows for keys whose counts are high enough. `missing`: the positions of
  // the batch whose keys had no row when changes_ was `seen`.
  Status Learn(const AdaptiveKeys& batch, std::vector<uint32_t> missing, uint64_t seen,
               const ParallelFor& parallel_for);
  // Learns from a batch that has gradients, unless it has been counted.
  Status LearnOnce(const AdaptiveKeys& batch, const ParallelFor& parallel_for);
  // The first part of Learn: adds to the statistics, which an error takes back, and returns the
  // positions of keys to be counted. These are the keys without a row or, if a limit makes uses
  // decide which rows stay, all keys that do not ask for static rows.
  std::vector<uint32_t> CountLookups(const AdaptiveKeys& batch,
                                     const std::vector<uint32_t>& missing);
  // The second part: counts these keys, and returns the ones without a row that are to get one.
  std::vector<Newcomer> Newcomers(const AdaptiveKeys& batch, const std::vector<uint32_t>& counted,
                                  const std::vector<uint32_t>& missing,
                                  const ParallelFor& parallel_for);
  // The third part: makes their rows, as far as there is room or room can be made.
  Status Promote(const AdaptiveKeys& batch, std::vector<Newcomer> newcomers,
                 const ParallelFor& parallel_for);
  // Counts distinct keys, each `counts` times more, and returns their estimates.
  std::vector<uint32_t> Count(const std::vector<Key>& keys, const std::vector<uint32_t>& counts);
  std::vector<uint32_t> Estimate(const std::vector<Key>& keys) const;
  // Removes the least used rows, but none of the batch, in favor of newcomers that were used as
  // often, or that must have a row; takes the other newcomers out of the list. Returns the removed
  // rows, for Demoted.
  Result<EvictedRows> MakeRoom(const AdaptiveKeys& batch, std::vector<Newcomer>* newcomers,
                               const ParallelFor& parallel_for);
  // Checks the contents as a whole, and returns the sketch that they have.
  Result<std::unique_ptr<CountMinSketch>> Checked(const AdaptiveContents& contents,
                                                  const ParallelFor& parallel_for) const;
  // Checks all parts of the contents but own rows, static rows and the sketch.
  Status CheckContents(const AdaptiveContents& contents) const;
  Status Promote(const std::vector<Key>& keys, const ParallelFor& parallel_for);
  Result<uint64_t> DemoteLocked(std::vector<Key> keys, const ParallelFor& parallel_for);
  // Counts own rows that were removed, and moves their static rows towards them.
  Status Demoted(const EvictedRows& rows, const ParallelFor& parallel_for);
  uint64_t DropDepositsLocked();
  Result<std::shared_ptr<AdaptiveSplit>> Split(const AdaptiveKeys& batch,
                                               const ParallelFor& parallel_for);
  // Splits a deposit, and sums its gradients by row.
  Result<std::shared_ptr<AdaptiveSplit>> SummedSplit(const AdaptiveKeys& batch,
                                                     const float* gradients,
                                                     const BFloat16* gradients_bf16,
                                                     const ParallelFor& parallel_for);
  // Splits the deposits since the last commit anew, if their keys have got or lost rows.
  Status SplitAnew(const ParallelFor& parallel_for);
  // Notes that keys have got or lost their rows.
  void NoteMoved(const std::vector<Key>& keys);
  // Returns each of the two tables with the keys of its part of the gradients.
  std::array<std::pair<Table*, LookupKeys*>, 2> PartsOf(AdaptiveSplit* split) const;
  // Splits deposits, and hands the parts to the two tables.
  Status Route(const Deposits& deposits, const ParallelFor& parallel_for);
  Status AfterStep(const ParallelFor& parallel_for);

  const std::shared_ptr<Table> own_;
  const std::shared_ptr<Table> statics_;
  const AdaptiveConfig config_;

  DepositQueue<AdaptiveKeys> deposits_;

  // Guards the rest, and lets one promotion, commit, export or restore run at a time.
  std::mutex mu_;
  std::unique_ptr<CountMinSketch> sketch_;
  EvictionQueue least_used_;           // of own rows by their counts
  std::unique_ptr<Eviction> too_old_;  // chooses own rows to remove after steps; null: none
  std::atomic<uint64_t> changes_{0};   // grows whenever a key gets or loses its row
  std::vector<Key> moved_;             // such keys since the last commit, while deposits wait
  uint64_t promoted_ = 0, demoted_ = 0, lookups_ = 0, own_lookups_ = 0;
};

}  // namespace sok
