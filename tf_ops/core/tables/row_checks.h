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

// Checks the slots of rows of one rule. Slots that sum squares are at least 0. They are NaN only
// beside an embedding that is NaN too: a model that has diverged holds such rows, and loads as it
// was saved, as Keras' weights do.
class SlotChecks {
 public:
  // Checks nothing for an unknown rule.
  SlotChecks(const std::string& rule, int dim);

  // kInvalidArgument, with the key, the slot and the value. embedding (dim), slots (all of them).
  Status Check(Key key, const float* embedding, const float* slots) const;
  int dim() const { return dim_; }

 private:
  struct Squares {
    std::string name;
    size_t begin;  // in the slots of a row
    size_t end;
  };
  std::vector<Squares> squares_;
  int dim_;
};

// kInvalidArgument unless the rule is known and has these slots, which start from finite numbers,
// squares from at least 0; and unless steps is in [0, 2^53].
Status CheckState(const TableState& state, int dim);

// kInvalidArgument for a key that stands twice.
Status CheckDistinct(const Key* keys, size_t n, const ParallelFor& parallel_for);

// The same of keys that may be sorted on the way.
Status SortAndCheckDistinct(std::vector<Key>* keys);

// All of the above, of rows with the slots of the state; and update counts and times in
// [0, 2^32 - 1], as far as rows count, of which those of a step clock do not lie ahead of it. Times
// in seconds may: clocks of machines differ.
Status CheckRows(const TableState& state, int dim, const TableContents& contents,
                 const ParallelFor& parallel_for);

}  // namespace sok
