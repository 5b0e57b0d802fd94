// Tables that are looked up and trained together: one lookup, one deposit and one commit for all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/base/types.h"
#include "core/collection/key_messages.h"
#include "core/collection/pooling.h"
#include "core/tables/deposit_queue.h"
#include "core/tables/resting_keys.h"
#include "core/tables/table.h"

namespace sok {

// Bags of one table that were pooled here, for the gradients of their vectors.
struct PooledBags {
  std::shared_ptr<const CollectionRequest> request;  // of that table; the bags are its features
  std::vector<Pooling> poolings;
  std::vector<float> rows;  // of the distinct keys
};

// Keys of one lookup in all tables, for the deposit that follows it.
struct CollectionKeys {
  std::vector<LookupKeys> tables;  // those of each table; of a deposit, those with gradients
  // (tables) Null where the rows of keys were asked.
  std::vector<std::shared_ptr<const PooledBags>> pooled;
  std::vector<size_t> starts;  // (tables) where the rows, or vectors, of each begin, in floats
  std::vector<const float*> gradients;  // (tables) of a deposit: those of each table's keys
  // (tables) What part of a table's norm is added up here, since all workers' are summed; none:
  // all.
  std::vector<double> shares;
  size_t n = 0;  // of all tables
  DepositOrder order = {};

  double square() const;
  double Dot(const CollectionKeys& other);
};

// Where the gradients of a collection wait for its commits, one of which runs at a time.
struct CollectionQueue {
  DepositQueue<CollectionKeys> deposits;
  std::mutex commit_mu;
};

// The tables of a collection, which may be put together anew for every call, with what outlives the
// calls. Thread-safe, as tables are.
class TableCollection {
 public:
  struct Member {
    std::string name;  // for messages
    std::shared_ptr<Table> table;
    bool stored = false;  // in a storage, whose lookups wait for more than locks of shards
    TablePlacement placement = {};
  };

  // No other caller may train the tables. This is worker `rank` of those that share the rows.
  TableCollection(std::vector<Member> members, std::shared_ptr<CollectionQueue> queue,
                  size_t rank = 0);

  // The tables as ReadKeys needs them.
  const ServedTables& served() const { return served_; }
  const std::vector<Member>& members() const { return members_; }

  // Reads the rows of keys, by table, and pools what bags are asked of. With make_rows keys without
  // a row get one in tables that are trainable (tables); gradients of the others are dropped.
  // `looked_up` becomes what a deposit of these rows' gradients takes. Errors: those of
  // Table::Lookup, with the name of the table. Some tables may have made rows then.
  Status Lookup(const AskedKeys& asked, bool make_rows, const std::vector<bool>& trainable,
                float* rows, CollectionKeys* looked_up, const ParallelFor& parallel_for);

  // Keeps gradients, which lie as the rows did, until a Commit redeems them. Rows of gradients that
  // begin with kUnusedBits are left out. `hold` keeps the gradients alive.
  void Deposit(CollectionKeys keys, std::shared_ptr<const void> hold, const float* gradients,
               const AnchorGradient& anchor, const ParallelFor& parallel_for);

  // Returns the order of the deposit of a lookup that begins now.
  DepositOrder NextOrder() { return {0, queue_->deposits.NextLookup(), 0}; }
  // Keeps gradients (n, dim) of the keys of each table, some of which may lie on GPUs; `hold` keeps
  // them alive. Errors: those of copies from a GPU, where norms are asked for.
  Status DepositByTable(CollectionKeys keys, std::shared_ptr<const void> hold,
                        const AnchorGradient& anchor, const ParallelFor& parallel_for);

  // One step of every table, by its own options (tables) of a few, all of which redeem as `common`
  // does. A table without options, or without gradients, stays as it is. Tables step one by one:
  // where one fails the others have stepped all the same, and the error is that of the first, with
  // its name. Outcomes by table.
  Result<std::vector<CommitOutcome>> Commit(const CommitOptions& common,
                                            const std::vector<const CommitOptions*>& options,
                                            const ParallelFor& parallel_for);

  // Forgets the deposits. Returns how many gradients there were.
  uint64_t DropDeposits();

 private:
  using Deposits = std::vector<DepositQueue<CollectionKeys>::Deposit>;

  // Reads the rows of a table's keys, which become rows, or vectors of bags.
  Status LookupInTable(size_t table, const AskedKeys& asked, bool make_rows, float* rows,
                       CollectionKeys* looked_up, const ParallelFor& parallel_for);

  const std::vector<Member> members_;
  ServedTables served_;
  const std::shared_ptr<CollectionQueue> queue_;
};

}  // namespace sok
