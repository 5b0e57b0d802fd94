// Messages of rows, which answer messages of keys, and of their gradients, which have the same
// layout and go back. A message is a row of segments, one for each worker. A worker that has failed
// sends the text of its error to every worker instead, in a segment of another size than the rows
// would have.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/status.h"
#include "core/base/types.h"
#include "core/collection/request.h"

namespace sok {

// The places of the rows of tables in a message: each segment has the rows of table 0, of table 1,
// … "By table" is the other order: the rows of table 0 of all workers, then the rows of table 1 of
// all workers, …
class RowSegments {
 public:
  // counts (workers, tables) is the number of rows of each table in the segment of each worker.
  RowSegments(std::vector<int> dims, std::vector<uint32_t> counts);
  // Return a layout with the same rows by table. For the tables for which `tables` (tables) is
  // true, OnlyOf leaves the segments of all workers but `worker` empty, and ToAll has all rows in
  // each segment.
  RowSegments OnlyOf(size_t worker, const std::vector<bool>& tables) const;
  RowSegments ToAll(const std::vector<bool>& tables) const;

  size_t workers() const { return workers_; }
  size_t tables() const { return dims_.size(); }
  int dim(size_t table) const { return dims_[table]; }
  size_t count(size_t worker, size_t table) const { return counts_[worker * tables() + table]; }
  size_t floats() const { return segments_.back(); }  // of the message
  size_t segment(size_t worker) const { return segments_[worker]; }
  size_t rows(size_t table) const { return rows_[table]; }
  // Returns the float at which the rows of a table begin in the order by table.
  size_t begin(size_t table) const { return begins_[table]; }
  size_t floats_by_table() const { return begins_.back(); }
  // Returns the number of floats of each segment. Error: kInvalidArgument if a number does not fit
  // into int32.
  Result<std::vector<int32_t>> Splits() const;

  // Returns the rows of a message by table. If the message has them in this order, as with one
  // worker or one table, they are not copied. Otherwise they are in `copy`, which is made as large
  // as they need.
  const float* ByTable(const float* message, std::vector<float>* copy,
                       const ParallelFor& parallel_for) const;
  float* ByTable(float* message, std::vector<float>* copy) const;
  // Returns true if a message has its rows by table.
  bool is_by_table() const { return is_by_table_; }
  // Floats of one table that lie together in both orders.
  struct Piece {
    size_t table;
    size_t in_table;  // the first of them among the floats of the table
    size_t in_message;
    size_t floats;
  };
  std::vector<Piece> Pieces() const;
  // Returns where each row of each table lies in a message: the last of its places, if it has
  // several.
  RowPlaces Places() const;
  // Copies rows that go to several workers from their places of Places() to their other places.
  void Repeat(const RowPlaces& places, float* message, const ParallelFor& parallel_for) const;
  // Copies rows, which lie by table, into the message, unless they lie there already.
  void FromTables(const float* rows, float* message, const ParallelFor& parallel_for) const;

 private:
  void FindSegments();
  // Calls fn(table, in_table, in_message, floats) for every Piece.
  template <typename Fn>
  void ForEachPiece(const ParallelFor& parallel_for, const Fn& fn) const;

  std::vector<int> dims_;
  std::vector<uint32_t> counts_;   // (workers, tables)
  std::vector<uint32_t> offsets_;  // (workers, tables) where a worker's rows begin in the table's
  size_t workers_;
  std::vector<size_t> segments_, begins_, rows_;
  bool is_by_table_ = false;  // true if the message has the rows by table
};

// Returns the layout of the rows that answer a request.
RowSegments SegmentsOf(const CollectionRequest& request);
// Returns the layout of their gradients. Gradients of a table that lies on all workers go to every
// worker.
RowSegments GradientSegmentsOf(const CollectionRequest& request);

// Rows may travel as bfloat16, rounded to nearest, two to a float. Returns the number of floats of
// each segment then. Error: as RowSegments::Splits.
Result<std::vector<int32_t>> PackedSplits(const RowSegments& segments);
// Convert a message to its packed form, and back.
void PackRows(const RowSegments& segments, const float* message, float* packed,
              const ParallelFor& parallel_for);
void UnpackRows(const RowSegments& segments, const float* packed, float* message,
                const ParallelFor& parallel_for);

// A message of rows, or the message of a failure in its place.
struct RowMessage {
  std::vector<float> floats;
  std::vector<int32_t> splits;  // (workers) floats of each segment
};

// Makes the message that tells all workers that this one could not read the rows that they have
// asked for. `splits` are the splits that the rows would have had. Long texts are cut.
RowMessage WriteFailure(const std::vector<int32_t>& splits, const Status& failure);
// Finds failures in a message that has arrived. `expected` and `arrived` (workers) are the floats
// of each segment. Error: kInternal with the text of the first worker that has failed.
Status CheckArrived(const std::vector<int32_t>& expected, const int32_t* arrived,
                    const float* message);

}  // namespace sok
