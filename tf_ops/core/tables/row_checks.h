// Checks that rows from outside, a file or a caller's arrays, can be the result of training.
// Damaged rows would load silently and train to NaN.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/base/types.h"
#include "core/rows/row_store.h"
#include "core/tables/table_contents.h"

namespace sok {

// Checks the slots of rows of one rule. Slots that sum squares must be at least 0, or NaN beside an
// embedding that is NaN too: a model that has diverged has such rows, and loads as it was saved, as
// Keras' weights do.
class SlotChecks {
 public:
  // Checks nothing for an unknown rule.
  SlotChecks(const std::string& rule, int dim);

  // Checks a row: embedding (dim) and all slots. Error: kInvalidArgument, with the key, the slot
  // and the value.
  Status Check(Key key, const float* embedding, const float* slots) const;
  int dim() const { return dim_; }

 private:
  struct Squares {
    std::string name;
    size_t begin;  // where it begins in the slots of a row
    size_t end;
  };
  std::vector<Squares> squares_;
  int dim_;
};

// Returns kInvalidArgument unless the rule is known and has these slots, the slots start from
// finite numbers (sums of squares from at least 0), and the steps are in [0, 2^53].
Status CheckState(const TableState& state, int dim);

// Returns kInvalidArgument if a key stands twice.
Status CheckDistinct(const Key* keys, size_t n, const ParallelFor& parallel_for);

// Does the same, and sorts the keys on the way.
Status SortAndCheckDistinct(std::vector<Key>* keys);

// Makes all checks above, of rows that have the slots of the state. Update counts and times must be
// in [0, 2^32 - 1], if the rows have them. Times of a step clock must not lie ahead of it; times in
// seconds may, since clocks of machines differ.
Status CheckRows(const TableState& state, int dim, const TableContents& contents,
                 const ParallelFor& parallel_for);

}  // namespace sok
