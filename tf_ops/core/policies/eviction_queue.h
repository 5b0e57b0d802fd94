// Finds the rows to evict next: a heap of the rows of the lowest ranks, whose entries may be out of
// date.
//
// Filling the queue visits every row, and keeps the up to `most` rows of the lowest ranks. So it
// has every row whose rank is below the lowest rank that it left out. As ranks only rise, this
// stays true: later rows are added if their ranks are low enough, and rows whose ranks have risen
// too far are dropped. When it is empty, it has to be filled again.
//
// Not thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/base/types.h"
#include "core/rows/key_set.h"

namespace sok {

struct RankedKey {
  uint64_t rank = 0;
  Key key = 0;
  friend bool operator<(const RankedKey& a, const RankedKey& b) {
    return std::tie(a.rank, a.key) < std::tie(b.rank, b.key);
  }
  friend bool operator>(const RankedKey& a, const RankedKey& b) { return b < a; }
  friend bool operator==(const RankedKey& a, const RankedKey& b) {
    return a.rank == b.rank && a.key == b.key;
  }
};

class EvictionQueue {
 public:
  // ranks_rise: false if ranks may fall too. Take then returns rows in the order of their ranks at
  // the time of filling.
  explicit EvictionQueue(bool ranks_rise = true) : ranks_rise_(ranks_rise) {}

  // Returns true if the queue has the rows of the lowest ranks. If not, it must be filled first.
  bool filled() const { return filled_; }
  void Clear();
  // Fill the queue: Begin, then Offer for every row, then End.
  void Begin(size_t most);
  void Offer(RankedKey row);
  void End();
  // Adds a row that was made after the filling.
  void Add(RankedKey row);

  // Takes out up to n rows with ranks below `limit`, the lowest first, but none in `staying`.
  // ranks_of(keys, ranks) must return their present ranks, nullopt for keys without a row. If it
  // fails, its error is returned and the queue is unchanged. Returns fewer rows if there are no
  // more, or if the queue must be filled again: see filled().
  using RanksOf =
      std::function<Status(const std::vector<Key>& keys, std::vector<std::optional<uint64_t>>*)>;
  Result<std::vector<RankedKey>> Take(size_t n, uint64_t limit, const RanksOf& ranks_of,
                                      const KeySet& staying);

  // Puts rows back that Take has returned and that were not removed.
  void PutBack(const std::vector<RankedKey>& rows) {
    for (const RankedKey& row : rows) Push(row);
  }

  size_t size() const { return heap_.size(); }
  uint64_t bytes() const { return heap_.capacity() * sizeof(RankedKey); }

 private:
  bool Covers(const RankedKey& row) const { return !beyond_.has_value() || row < *beyond_; }
  void Push(RankedKey row);
  RankedKey Pop();
  // Pops up to n entries below the limit, each key once. Entries of keys in `staying` go to `kept`.
  std::vector<RankedKey> PopSome(size_t n, uint64_t limit, const KeySet& staying,
                                 const KeySet& taken, std::vector<RankedKey>* kept);
  // Keeps the `most_` lowest of the offered rows.
  void Cut();

  const bool ranks_rise_;
  std::vector<RankedKey> heap_;
  std::optional<RankedKey> beyond_;  // the lowest row that was left out; unset: none
  size_t most_ = 0;
  bool filled_ = false;
};

}  // namespace sok
