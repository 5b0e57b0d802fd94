// Makes room in a full table: removes exactly as many rows as newcomers need, the rows of the
// lowest ranks. Internal to this room.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/base/types.h"
#include "core/policies/eviction.h"
#include "core/policies/eviction_queue.h"
#include "core/rows/key_set.h"
#include "core/rows/row_store.h"
#include "core/tables/rows_in_use.h"

namespace sok {

// One thread at a time may use it, and must keep all others from making and training rows
// meanwhile. evicted() and bytes() may be called at any time.
class RowEvictor {
 public:
  RowEvictor(RowStore* store, int dim, uint64_t max_rows, std::shared_ptr<Eviction> policy,
             std::shared_ptr<const RowsInUse> in_use)
      : store_(store),
        dim_(dim),
        max_rows_(max_rows),
        policy_(std::move(policy)),
        in_use_(std::move(in_use)),
        queue_(!policy_->reads_embedding()) {}

  // The keys of a call, whose rows stay.
  struct Call {
    const Key* keys;  // (n)
    size_t n;
  };

  struct Room {
    // The newcomers without a row, each once, in their order. If nothing had to go, newcomers with
    // a row may be among them.
    std::vector<Key> made;
    std::vector<Key> gone;  // the rows that were removed for them
    size_t left_out = 0;    // newcomers without a row that do not fit in: the last ones
  };

  // Removes rows until the `newcomers` that have none fit in; without `all`, until as many of them
  // fit in as can. Error with `all`: kResourceExhausted if not enough rows may go. After an error
  // nothing has changed.
  Result<Room> MakeRoom(const Call& call, const std::vector<Key>& newcomers, bool all, uint32_t now,
                        const ParallelFor& parallel_for);
  // Returns the `newcomers` without a row, each once, in their order.
  Result<std::vector<Key>> Missing(const std::vector<Key>& newcomers,
                                   const ParallelFor& parallel_for) const;
  // Notes that rows have been made, at `now`.
  void Add(const std::vector<Key>& keys, uint32_t now);
  // Empties the queue, after rows were replaced or may have been made.
  void Forget() { queue_.Clear(); }

  uint64_t evicted() const { return evicted_; }

 private:
  uint64_t Excess(size_t added) const {
    const uint64_t rows = store_->size() + added;
    return rows > max_rows_ ? rows - max_rows_ : 0;
  }
  // Takes rows out of the queue, but none in `staying`, so that `added` newcomers fit in. Returns
  // fewer if no more may go.
  Result<std::vector<RankedKey>> Choose(size_t added, uint32_t now, const KeySet& staying,
                                        const ParallelFor& parallel_for);
  Status Fill(size_t least, uint32_t now);
  Status RanksOf(const std::vector<Key>& keys, uint32_t now, const ParallelFor& parallel_for,
                 std::vector<std::optional<uint64_t>>* ranks) const;
  Status Full(size_t added, size_t may_go) const;

  RowStore* const store_;
  const int dim_;
  const uint64_t max_rows_;
  const std::shared_ptr<Eviction> policy_;
  const std::shared_ptr<const RowsInUse> in_use_;
  EvictionQueue queue_;
  uint64_t seen_ = 0;  // the store's replacements when the queue was filled
  std::atomic<uint64_t> evicted_{0};
};

}  // namespace sok
