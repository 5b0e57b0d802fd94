// Messages of rows and of gradients, which go the other way and back by one layout. A message is a
// row of segments, one for each worker. A worker that has failed sends all of them a text instead,
// as a segment of another size than the rows would have.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/status.h"
#include "core/base/types.h"
#include "core/collection/request.h"

namespace sok {

// The places of the rows of tables in a message: each segment has the rows of table 0, of table 1,
// … "By table" is the other order: all rows of table 0, whichever worker they belong to, then those
// of table 1.
class RowSegments {
 public:
  // counts (workers, tables): how many rows of each table the segment of each worker has.
  RowSegments(std::vector<int> dims, std::vector<uint32_t> counts);
  // The same rows by table. Of some of the tables (tables) the segments of all workers but one are
  // left empty, or each segment has all rows.
  RowSegments OnlyOf(size_t worker, const std::vector<bool>& tables) const;
  RowSegments ToAll(const std::vector<bool>& tables) const;

  size_t workers() const { return workers_; }
  size_t tables() const { return dims_.size(); }
  int dim(size_t table) const { return dims_[table]; }
  size_t count(size_t worker, size_t table) const { return counts_[worker * tables() + table]; }
  size_t floats() const { return segments_.back(); }  // of the message
  size_t segment(size_t worker) const { return segments_[worker]; }
  size_t rows(size_t table) const { return rows_[table]; }
  // Where the rows of a table begin among those of all tables, by table.
  size_t begin(size_t table) const { return begins_[table]; }
  size_t floats_by_table() const { return begins_.back(); }
  // Floats of each segment. Error: kInvalidArgument if int32 does not hold them.
  Result<std::vector<int32_t>> Splits() const;

  // The rows of a message by table. A message of one worker or of one table has them in this order,
  // and they are not copied: `copy` is used, and made as large as it must be, for other messages.
  const float* ByTable(const float* message, std::vector<float>* copy,
                       const ParallelFor& parallel_for) const;
  float* ByTable(float* message, std::vector<float>* copy) const;
  // True if a message has the rows in the order by table.
  bool is_by_table() const { return is_by_table_; }
  // Floats of one table that lie together in both orders.
  struct Piece {
    size_t table;
    size_t in_table;  // the first of them among those of the table
    size_t in_message;
    size_t floats;
  };
  std::vector<Piece> Pieces() const;
  // Returns where each row by table lies in a message, the last of its places if there are several.
  RowPlaces Places() const;
  // Copies rows that go to several workers from there to their other places.
  void Repeat(const RowPlaces& places, float* message, const ParallelFor& parallel_for) const;
  // Puts rows into the message, unless they are there.
  void FromTables(const float* rows, float* message, const ParallelFor& parallel_for) const;

 private:
  void FindSegments();
  // Calls fn(table, in_table, in_message, floats) for every piece that lies together in both
  // orders.
  template <typename Fn>
  void ForEachPiece(const ParallelFor& parallel_for, const Fn& fn) const;

  std::vector<int> dims_;
  std::vector<uint32_t> counts_;   // (workers, tables)
  std::vector<uint32_t> offsets_;  // (workers, tables) where they begin among the table's rows
  size_t workers_;
  std::vector<size_t> segments_, begins_, rows_;
  bool is_by_table_ = false;  // true if the message has the rows by table
};

// The layout of the rows that a request is answered by.
RowSegments SegmentsOf(const CollectionRequest& request);
// The layout of their gradients: those of tables that lie on all workers go to every one.
RowSegments GradientSegmentsOf(const CollectionRequest& request);

// Rows may travel as bfloat16, rounded to nearest, two to a float. These are the floats of each
// segment then; the error is that of RowSegments::Splits.
Result<std::vector<int32_t>> PackedSplits(const RowSegments& segments);
// From a message to its packed form, and back.
void PackRows(const RowSegments& segments, const float* message, float* packed,
              const ParallelFor& parallel_for);
void UnpackRows(const RowSegments& segments, const float* packed, float* message,
                const ParallelFor& parallel_for);

// A message of rows, or what is sent in place of one.
struct RowMessage {
  std::vector<float> floats;
  std::vector<int32_t> splits;  // (workers) floats of each segment
};

// Tells all workers that this one could not read what they have asked for. splits: those of the
// rows. Long texts are cut.
RowMessage WriteFailure(const std::vector<int32_t>& splits, const Status& failure);
// Finds failures in a message that has arrived. expected, arrived (workers): floats of each
// segment. Errors: kInternal with the text of the first worker that has failed.
Status CheckArrived(const std::vector<int32_t>& expected, const int32_t* arrived,
                    const float* message);

}  // namespace sok
