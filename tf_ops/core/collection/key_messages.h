// Messages of keys: what workers ask each other for. A message is a row of segments, one for each
// worker. A worker that has failed sends all of them a text instead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/status.h"
#include "core/base/types.h"
#include "core/collection/request.h"
#include "core/collection/row_messages.h"

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

// Bags of one feature of one worker, which this one is to pool.
struct AskedBags {
  FeatureBags bags;
  Combiner combiner;
};

// The keys that all workers have asked this one for.
struct AskedKeys {
  // The layout of all rows that are looked up, by table; in a message, of their gradients.
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
