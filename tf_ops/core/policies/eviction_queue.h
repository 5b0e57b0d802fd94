// Finds the rows to evict next: a heap of the rows of the lowest ranks, whose entries may be out of
// date.
//
// Filling it looks at every row. It keeps the rows of the lowest ranks, up to `most`, so every row
// whose rank is below the ranks that it has left out is in it. As ranks only rise, that stays so:
// rows that are made later are added if they belong there, rows whose ranks have risen beyond are
// dropped, and once none is left it has to be filled again.
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
  // ranks_rise: false where ranks may fall too. What comes out is in the order that rows had when
  // it was filled then.
  explicit EvictionQueue(bool ranks_rise = true) : ranks_rise_(ranks_rise) {}

  // Returns true if the queue has the rows of the lowest ranks. If not, it must be filled first.
  bool filled() const { return filled_; }
  void Clear();
  // Filling: Begin, Offer of every row, End.
  void Begin(size_t most);
  void Offer(RankedKey row);
  void End();
  // A row that was made since.
  void Add(RankedKey row);

  // Takes out up to n rows below `limit`, the lowest first, but for those in `staying`.
  // ranks_of(keys, ranks) says what their ranks are by now, nothing for keys without a row; its
  // error is returned, and everything is where it was. There are fewer if it has no more, or if it
  // is to be filled again: see filled().
  using RanksOf =
      std::function<Status(const std::vector<Key>& keys, std::vector<std::optional<uint64_t>>*)>;
  Result<std::vector<RankedKey>> Take(size_t n, uint64_t limit, const RanksOf& ranks_of,
                                      const KeySet& staying);

  // Takes rows back in that Take has given out, and that have not gone.
  void PutBack(const std::vector<RankedKey>& rows) {
    for (const RankedKey& row : rows) Push(row);
  }

  size_t size() const { return heap_.size(); }
  uint64_t bytes() const { return heap_.capacity() * sizeof(RankedKey); }

 private:
  bool Covers(const RankedKey& row) const { return !beyond_.has_value() || row < *beyond_; }
  void Push(RankedKey row);
  RankedKey Pop();
  // Pops up to n entries below the limit, each key once; those in `staying` go to `kept`.
  std::vector<RankedKey> PopSome(size_t n, uint64_t limit, const KeySet& staying,
                                 const KeySet& taken, std::vector<RankedKey>* kept);
  // Leaves the `most_` lowest of what was offered.
  void Cut();

  const bool ranks_rise_;
  std::vector<RankedKey> heap_;
  std::optional<RankedKey> beyond_;  // the lowest row that was left out; unset: none was
  size_t most_ = 0;
  bool filled_ = false;
};

}  // namespace sok
