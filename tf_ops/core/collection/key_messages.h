// Messages of keys, by which workers ask each other for rows. A message is a row of segments, one
// for each worker. A worker that has failed sends the text of its error to every worker instead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/base/status.h"
#include "core/base/types.h"
#include "core/collection/request.h"
#include "core/collection/row_messages.h"

namespace sok {

// A message of keys. The segment for a worker has a header, the number of words of each table, and
// the words of table 0, of table 1, … The words of a table are distinct keys; then, if the table
// counts keys, how often each key stands in the batch; then, if the table has CollectedTable::says,
// a number for each key. If the receiver pools the table, its words are the bags of each feature
// instead: the number of bags, their combiner, their length (or -1 and the length of each bag, two
// to a word), and their keys. A message may end with keys to come: how many of each table, and the
// keys.
struct KeyMessage {
  std::vector<int64_t> words;
  std::vector<int32_t> splits;  // (workers) words of each segment
};

// Keys that this worker will ask for in later steps. Owners that hear of them read the rows from
// the disk ahead.
struct KeysToCome {
  std::vector<std::shared_ptr<const CollectionRequest>> requests;
  std::vector<bool> tables;  // those that the owners hear of
};

// Returns the number of words of each segment of a request's message. Error: kInvalidArgument if a
// number does not fit into int32.
Result<std::vector<int32_t>> KeySplits(const CollectionRequest& request,
                                       const KeysToCome& to_come = {});
// Writes the message of a request; `message` has room for the words of all segments of KeySplits.
void PutKeys(const CollectionRequest& request, int64_t* message, const KeysToCome& to_come = {});
// Makes the message that tells all workers that this one has failed before it could ask for
// anything. Long texts are cut.
KeyMessage WriteFailure(const CollectionPlan& plan, const Status& failure);

// Passes on the keys of a table that a request asks a worker for, in one piece or more.
using VisitKeys = std::function<void(const Key* keys, size_t n)>;
void ForKeysOf(const CollectionRequest& request, size_t table, uint32_t worker,
               const VisitKeys& visit);

// Bags of one feature of another worker, which this worker is to pool.
struct AskedBags {
  FeatureBags bags;
  Combiner combiner;
};

// The keys that all workers have asked this one for.
struct AskedKeys {
  // The layout of all rows that are looked up, by table, and of their gradients in a message.
  RowSegments segments;
  RowSegments answers;                   // the layout of the rows that go back
  std::shared_ptr<const void> hold;      // keeps the keys alive
  std::vector<const int64_t*> sections;  // (workers, tables) parts of the message
  const Key* keys = nullptr;             // by table
  // The number of times that each key stands in a batch, in the order of the keys; 1 in tables that
  // do not count. Null: no table counts.
  const int64_t* counts = nullptr;
  // The number that the asking worker gives for each key, in the order of the keys; 0 in tables
  // without CollectedTable::says. Null: no table has it.
  const int64_t* said = nullptr;
  std::vector<size_t> starts;  // (tables + 1) where the keys of each table begin
  // (tables) The bags, in the order of the vectors that they become; empty for a table of which
  // keys are asked.
  std::vector<std::vector<AskedBags>> bags;
  bool counted = false;  // true if another lookup has counted the keys already
};

// The properties of the tables that a worker needs to answer a request.
struct ServedTables {
  std::vector<int> dims;
  std::vector<TablePlacement> placements;  // (tables)
  size_t rank = 0;                         // the number of this worker
  std::vector<bool> counts = {};           // (tables) whether each counts keys; empty: none does
  std::vector<bool> says = {};             // (tables) CollectedTable::says; empty: none does

  bool has_counts(size_t table) const { return !counts.empty() && counts[table]; }
  bool has_said(size_t table) const { return !says.empty() && says[table]; }
  // Returns how many words a message has for each key of a table.
  size_t words_of_key(size_t table) const { return 1 + has_counts(table) + has_said(table); }
};

// Checks a message, and finds where its keys and bags lie. The result has no keys, counts and
// numbers yet: CopyKeys copies them. `hold` keeps the message alive. Errors: kInternal with the
// text of the first worker that has failed; kFailedPrecondition for workers with different
// configurations; kInvalidArgument for a message in another format.
Result<AskedKeys> FindKeys(const ServedTables& tables, const int64_t* message, size_t words,
                           const int32_t* splits, size_t workers, std::shared_ptr<const void> hold);
// Passes on the keys to come of each table. A segment that FindKeys would refuse has none.
using VisitTableKeys = std::function<void(size_t table, const Key* keys, size_t n)>;
void ForKeysToCome(size_t tables, const int64_t* message, size_t words, const int32_t* splits,
                   size_t workers, const VisitTableKeys& visit);
// Copies the keys that workers have asked of a table, worker by worker, with their counts and
// numbers. `counts` and `said` are not written if the table has none.
void CopyKeys(const ServedTables& tables, const AskedKeys& asked, size_t table, Key* keys,
              int64_t* counts, int64_t* said);
// Does what FindKeys does, and what CopyKeys does for every table.
Result<AskedKeys> ReadKeys(const ServedTables& tables, const int64_t* message, size_t words,
                           const int32_t* splits, size_t workers, std::shared_ptr<const void> hold);

}  // namespace sok
