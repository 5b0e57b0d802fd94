// Decides which keys have a row: by admission, by room for new rows, and by eviction.
// gone.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "core/base/expiry.h"
#include "core/base/initializer.h"
#include "core/base/status.h"
#include "core/base/types.h"
#include "core/policies/admission.h"
#include "core/policies/eviction.h"
#include "core/rows/key_set.h"
#include "core/rows/row_store.h"
#include "core/tables/lookup_keys.h"
#include "core/tables/removed_keys.h"
#include "core/tables/row_evictor.h"
#include "core/tables/rows_in_use.h"
#include "core/tables/table_spec.h"

namespace sok {

// Returns kOutOfRange, with the key, if a key is not below `limit`. A limit of 0 lets every key
// pass.
Status CheckKeysBelow(const Key* keys, size_t n, uint64_t limit);

// The keys of a call, which the table counts once the call is done: one that fails is not
// counted. Threads may add at the same time.
struct LookupCounts {
  std::atomic<uint64_t> looked_up{0}, found{0}, refused{0};  // see TableStats
};

// Rows that were removed from a table.
struct EvictedRows {
  std::vector<Key> keys;
  std::vector<float> embeddings;  // (keys, dim)
};

// The part of a Table that decides which keys have a row. TableRows reads and writes the rows.
class TableUpkeep {
 public:
  // Returns true if there is an admission, which counts keys.
  bool counts_keys() const { return admission_ != nullptr; }
  // Returns a new LookupKeys::counted, for a lookup that makes no rows; null without an admission.
  std::shared_ptr<std::atomic<bool>> CountOnce() const {
    return counts_keys() ? std::make_shared<std::atomic<bool>>(false) : nullptr;
  }

  // Has the admission count the keys at `positions`, which have no row: counts[i] times, or once if
  // `counts` is null. Keeps the positions of keys that may have a row, in ascending order. Adds to
  // `met`.
  Status AdmitMissing(const Key* keys, const int64_t* counts, std::vector<uint32_t>* positions,
                      LookupCounts* met);
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
  void TransferPin(LookupKeys* keys) const;

  // Returns the keys whose rows have gone since the last call, by an eviction, a removal or the TTL
  // of a storage, and that have no row now. At most `most` keys are noted for the next call; with 0
  // noting ends. An expired row is noted when a call meets it, or when the database rewrites its
  // files.
  Result<RemovedSince> TakeRemoved(size_t most, const ParallelFor& parallel_for);

  // Returns true if lookups that make rows wait for each other, and for commits.
  bool makes_rows_in_turn() const { return spec_.max_rows > 0 || eviction_ != nullptr; }
  std::unique_lock<std::mutex> LockCommits() { return std::unique_lock<std::mutex>(commit_mu_); }

  int dim() const { return spec_.dim; }
  const RowForm& form() const { return spec_.form; }
  // Grows whenever rows may have gone.
  uint64_t removals() const { return removals_.load(); }
  uint64_t size() const { return store_->size(); }
  // Returns the time by the clock of the rows.
  uint32_t now() const { return ticks_ != nullptr ? ticks_->load() : clock_->Now(); }
  // Returns the number of the GPU whose memory the rows lie in; -1: the host's.
  int gpu() const { return spec_.gpu; }

 protected:
  TableUpkeep(const TableSpec& spec, const Initializer& initializer,
              std::unique_ptr<RowStore> store)
      : spec_(spec), initializer_(initializer), store_(std::move(store)) {}
  ~TableUpkeep() = default;

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

  // Lets one commit, assignment, eviction, export or restore run at a time. With evictor_, removals
  // and lookups that make rows take it too.
  std::mutex commit_mu_;
  std::atomic<uint64_t> removals_{0};
  std::atomic<uint64_t> evicted_{0};  // after steps and by calls of Evict: see TableStats
};

}  // namespace sok
