// The messages of an exchange: what workers ask each other for, and rows and gradients, which go
// the other way and back by one layout. A message is a row of segments, one for each worker. A
// worker that has failed sends all of them a text instead: in the header of keys, or as a segment
// of another size than the rows would have.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/base/types.h"
#include "core/collection/request.h"

namespace sok {

// A message of keys, by the worker that it goes to: a header, how many words of each table follow,
// and the words of table 0, of table 1, … They are distinct keys, behind them how often each stands
// in the batch if the table counts keys, and the numbers that are told of them if the table says
// so; or, of a table that the receiver pools, the bags of each feature: how many there are, their
// combiner, their length, or -1 and the length of each, two to a word, and their keys.
struct KeyMessage {
  std::vector<int64_t> words;
  std::vector<int32_t> splits;  // (workers) words of each segment
};

// Words of each segment of the message of a request. Error: kInvalidArgument if int32 does not hold
// them.
Result<std::vector<int32_t>> KeySplits(const CollectionRequest& request);
// Writes the message, which has as many words as these segments together.
void PutKeys(const CollectionRequest& request, int64_t* message);
// Tells all workers that this one has failed before it could ask for anything. Long texts are cut.
KeyMessage WriteFailure(const CollectionPlan& plan, const Status& failure);

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

// Bags of one feature of one worker, which this one is to pool.
struct AskedBags {
  FeatureBags bags;
  Combiner combiner;
};

// The keys that all workers have asked this one for.
struct AskedKeys {
  // Of everything that is looked up, by table; in a message it is the layout of the gradients.
  RowSegments segments;
  RowSegments answers;                   // of the rows that go back
  std::shared_ptr<const void> hold;      // keeps the keys alive
  std::vector<const int64_t*> sections;  // (workers, tables) of the message
  const Key* keys = nullptr;             // by table
  // By table, like the keys: how often each stands in a batch, 1 in tables that do not count. Null:
  // no table counts.
  const int64_t* counts = nullptr;
  // By table: the number that is told of each key, 0 in tables that say nothing. Null: none does.
  const int64_t* said = nullptr;
  std::vector<size_t> starts;  // (tables + 1) where the keys of each table begin
  // (tables) In the order of the rows that they become; empty where keys are asked.
  std::vector<std::vector<AskedBags>> bags;
};

// The tables as the worker that answers knows them.
struct ServedTables {
  std::vector<int> dims;
  std::vector<TablePlacement> placements;  // (tables)
  size_t rank = 0;                         // of this worker
  std::vector<bool> counts = {};           // (tables) whether each counts keys; empty: none does
  std::vector<bool> says = {};             // (tables) CollectedTable::says; empty: none does

  bool has_counts(size_t table) const { return !counts.empty() && counts[table]; }
  bool has_said(size_t table) const { return !says.empty() && says[table]; }
  // Returns the words of each key that is asked for.
  size_t words_of_key(size_t table) const { return 1 + has_counts(table) + has_said(table); }
};

// Checks a message, and finds what it asks for. The result has no keys, counts and numbers yet.
// `hold` keeps the message alive. Errors: kInternal with the text of the first worker that has
// failed; kFailedPrecondition for workers with different configurations; kInvalidArgument for a
// message that this release has not written.
Result<AskedKeys> FindKeys(const ServedTables& tables, const int64_t* message, size_t words,
                           const int32_t* splits, size_t workers, std::shared_ptr<const void> hold);
// Copies what is asked of a table, by worker. counts and said are left alone if the table has none.
void CopyKeys(const ServedTables& tables, const AskedKeys& asked, size_t table, Key* keys,
              int64_t* counts, int64_t* said);
// Does both for all tables.
Result<AskedKeys> ReadKeys(const ServedTables& tables, const int64_t* message, size_t words,
                           const int32_t* splits, size_t workers, std::shared_ptr<const void> hold);

}  // namespace sok
