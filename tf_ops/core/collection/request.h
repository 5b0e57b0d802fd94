// The request of a batch to the tables of a collection: the distinct keys of each table over all
// features that share it, by the worker that owns them; or whole bags, which the worker that holds
// the table pools.
//
// A request is made once a call, by one thread, and is read by any number of threads from then on.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/base/types.h"
#include "core/collection/placement.h"

namespace sok {

// The properties of a table that a request for its rows needs.
struct CollectedTable {
  std::string name;  // for messages
  int dim = 1;
  uint64_t salt = 0;       // for CollectionOwner
  uint64_t key_limit = 0;  // keys are below it; 0: any key
  TablePlacement placement = {};
  bool counts = false;  // true if its admission counts how often each key stands in the batch
  // True if a request sends a number along with each key: the greatest FeatureBags::said of equal
  // keys. Adaptive tables get routes of keys this way.
  bool says = false;
};

// The configuration that all calls of a collection have in common.
struct CollectionPlan {
  std::vector<CollectedTable> tables;
  std::vector<std::string> features;     // names, for messages
  std::vector<uint32_t> feature_tables;  // (features) the table in which each looks its keys up
  // (features) The most keys that a bag of the feature may have. 0, or no entry for the feature:
  // any number.
  std::vector<uint64_t> max_lengths;
  // (features) how the holder of a table pools the bags of each feature, if it pools them
  std::vector<Combiner> combiners;
  uint32_t workers = 1;
  uint32_t rank = 0;  // the number of this worker
  // True if the rows are trained. If not, the keys of replicated tables are not sent to other
  // workers.
  bool trains = true;
  // True if the gradient of a row that no feature used begins with kUnusedBits; otherwise it is
  // zeros.
  bool marks_unused = true;
  // A fingerprint of the configuration. Workers refuse messages with another one.
  int64_t fingerprint = 0;
};

// Returns the worker that holds a key of a table, by a hash. Salts differ between tables, so that a
// key that many tables have, such as 0, is not on the same worker for all of them.
uint32_t CollectionOwner(Key key, uint64_t salt, uint32_t workers);

// Returns the worker that is asked for the row of a key, by the placement of the table.
uint32_t OwnerOf(const CollectedTable& table, Key key, uint32_t workers);

// The keys of one feature in a batch, and the bags that they are in.
struct FeatureBags {
  std::shared_ptr<const void> hold;  // keeps the arrays alive
  const Key* keys = nullptr;         // (n)
  size_t n = 0;
  size_t bags = 0;
  const int64_t* splits = nullptr;  // (bags + 1) where each bag begins; null: all are equally long
  size_t length = 1;                // the keys of each bag, without splits
  const int64_t* said = nullptr;    // (n) for a table with CollectedTable::says

  size_t begin(size_t bag) const { return splits != nullptr ? splits[bag] : bag * length; }
  size_t end(size_t bag) const { return begin(bag + 1); }
  bool is_key_a_bag() const { return splits == nullptr && length == 1; }
};

// The places of the rows of tables, in floats.
struct RowPlaces {
  std::vector<size_t> starts;               // (tables) the place of the first row
  std::vector<std::vector<size_t>> places;  // (tables)(rows) none: rows lie one after another

  size_t at(size_t table, size_t row, size_t dim) const {
    return places.empty() ? starts[table] + row * dim : places[table][row];
  }
};

// The rows of one table among the rows of all tables. Float is float or const float.
template <typename Float>
class PlacedRows {
 public:
  PlacedRows(Float* rows, const RowPlaces& places, size_t table, size_t dim)
      : dim_(dim),
        places_(places.places.empty() ? nullptr : places.places[table].data()),
        first_(places.places.empty() ? rows + places.starts[table] : rows) {}
  Float* at(size_t row) const { return first_ + (places_ == nullptr ? row * dim_ : places_[row]); }

 private:
  const size_t dim_;
  const size_t* const places_;
  Float* const first_;
};

class CollectionRequest {
 public:
  // The part of a request that concerns one table, for all features that share it. The answer has
  // rows of distinct keys or, where the worker that holds the table pools, vectors of bags.
  struct TablePart {
    std::vector<Key> keys;          // distinct, keys of worker 0 first; none if bags are asked
    std::vector<int64_t> counts;    // (keys) how often each stands in the batch; empty: not counted
    std::vector<int64_t> said;      // (keys) the number that is sent with each; empty: none
    std::vector<FeatureBags> bags;  // (its features) bags that the holder pools; empty: none
    size_t rows = 0;                // how many rows, or vectors of bags, come back
    std::vector<uint32_t> splits;   // (workers) how many of these each worker sends
    std::vector<uint32_t> features;  // the features that share the table, in order
    std::vector<uint32_t> row_of;    // the row of each key of its features, one after another
  };

  // Errors, which name the feature: kInvalidArgument unless splits begin with 0, end with the
  // number of keys and never fall; kOutOfRange for a key that is not below the limit of its table.
  static Result<std::shared_ptr<const CollectionRequest>> Make(
      std::shared_ptr<const CollectionPlan> plan, std::vector<FeatureBags> features,
      const ParallelFor& parallel_for);

  // The checks of a feature that Make does, for callers who look keys up without a request:
  // CheckBags checks its bags without reading a key, CheckKeys its keys. They return the errors of
  // Make.
  static Status CheckBags(const CollectionPlan& plan, size_t feature, const FeatureBags& bags);
  static Status CheckKeys(const CollectionPlan& plan, size_t feature, const FeatureBags& bags);

  const CollectionPlan& plan() const { return *plan_; }
  const std::vector<TablePart>& tables() const { return tables_; }
  // Returns the bags of a feature. If the holder of the table has pooled them, each is a bag of one
  // key, since one vector comes back for it.
  const FeatureBags& feature(size_t feature) const { return features_[feature]; }
  // Returns (n) the row of each key of a feature: the number of the distinct key in its table.
  const uint32_t* rows_of(size_t feature) const {
    return tables_[plan_->feature_tables[feature]].row_of.data() + starts_[feature];
  }
  // Where the rows of each table begin, in floats, if those of all tables lie one after another;
  // then the number of all floats. (tables + 1)
  const std::vector<size_t>& row_starts() const { return row_starts_; }

 private:
  CollectionRequest() = default;
  // Finds the distinct keys of a table, and the row of every key.
  Status FindRows(size_t table, const ParallelFor& parallel_for);
  void FindRowsOfFew(size_t table, size_t n);
  void FindRowsOfMany(size_t table, size_t n, const ParallelFor& parallel_for);
  void AskForBags(size_t table);
  // Finds the count and the number that are sent with each distinct key.
  void FindColumns(size_t table);
  Status CheckKeysOf(size_t table) const;

  std::shared_ptr<const CollectionPlan> plan_;
  std::vector<FeatureBags> features_;
  std::vector<size_t> starts_;  // (features) where its keys begin in row_of of its table
  std::vector<TablePart> tables_;
  std::vector<size_t> row_starts_;
};

}  // namespace sok
