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
#include "core/tables/lookup_keys.h"
#include "core/tables/table.h"

namespace sok {

// Bags of one table that were pooled on this worker, kept for the gradients of their vectors.
struct PooledBags {
  std::shared_ptr<const CollectionRequest> request;  // has that table alone
  std::vector<Pooling> poolings;
  std::vector<float> rows;  // the rows of the distinct keys
};

// The keys of one lookup in all tables, kept for the deposit that follows it.
struct CollectionKeys {
  std::vector<LookupKeys> tables;  // the keys of each table; in a deposit, keys with gradients
  // (tables) The bags that were pooled; null for a table of which keys were asked.
  std::vector<std::shared_ptr<const PooledBags>> pooled;
  std::vector<size_t> starts;           // (tables) the float at which its rows or vectors begin
  std::vector<const float*> gradients;  // (tables) in a deposit: the gradients of its keys
  // (tables) The share of a table's squared norm that this worker adds, since the norms of all
  // workers are added up. None: all of it.
  std::vector<double> shares;
  size_t n = 0;  // the number of keys in all tables
  DepositOrder order = {};

  double square() const;
  double Dot(const CollectionKeys& other);
};

// The queue in which the gradients of a collection wait for its commits. One commit runs at a time.
struct CollectionQueue {
  DepositQueue<CollectionKeys> deposits;
  std::mutex commit_mu;
};

// The tables of a collection. The object may be made anew for every call; what must outlive a call
// is in the CollectionQueue. Thread-safe, as tables are.
class TableCollection {
 public:
  struct Member {
    std::string name;  // for messages
    std::shared_ptr<Table> table;
    bool stored = false;  // in a storage: its lookups may wait for other locks than a shard's
    TablePlacement placement = {};
  };

  // Nobody else may train the tables. `rank` is the number of this worker among the workers that
  // share the rows.
  TableCollection(std::vector<Member> members, std::shared_ptr<CollectionQueue> queue,
                  size_t rank = 0);

  // The tables as ReadKeys needs them.
  const ServedTables& served() const { return served_; }
  const std::vector<Member>& members() const { return members_; }

  // Reads the rows of keys, by table, and pools the bags that are asked for. With make_rows, keys
  // without a row get one in tables for which `trainable` (tables) is true; gradients of other
  // tables are dropped. `looked_up` becomes the first argument of the Deposit of these rows'
  // gradients. Errors: those of Table::Lookup, with the name of the table; some tables may have
  // made rows by then.
  Status Lookup(const AskedKeys& asked, bool make_rows, const std::vector<bool>& trainable,
                float* rows, CollectionKeys* looked_up, const ParallelFor& parallel_for);

  // Keeps gradients, which lie as the rows of the lookup did, until a Commit redeems them. A row
  // whose gradient begins with kUnusedBits gets none. `hold` keeps the gradients alive.
  void Deposit(CollectionKeys keys, std::shared_ptr<const void> hold, const float* gradients,
               const AnchorGradient& anchor, const ParallelFor& parallel_for);

  // Returns the place in the order of deposits for a lookup that begins now.
  DepositOrder NextOrder() { return {0, queue_->deposits.NextLookup(), 0}; }
  // Keeps gradients (n, dim) of the keys of each table, some of which may lie on devices; `hold`
  // keeps them alive. Error: a failed copy from a device, if norms are computed.
  Status DepositByTable(CollectionKeys keys, std::shared_ptr<const void> hold,
                        const AnchorGradient& anchor, const ParallelFor& parallel_for);

  // Makes one step of every table, and returns the outcomes by table. All tables redeem as `common`
  // says; `options` (tables) points to the options of each table; several tables may share one. A
  // table without options, or without gradients, stays as it is. Tables step one by one: if one
  // fails, the others step all the same, and the error is the first table's, with its name.
  Result<std::vector<CommitOutcome>> Commit(const CommitOptions& common,
                                            const std::vector<const CommitOptions*>& options,
                                            const ParallelFor& parallel_for);

  // Forgets all deposits. Returns how many gradients they had.
  uint64_t DropDeposits();

 private:
  using Deposits = std::vector<DepositQueue<CollectionKeys>::Deposit>;

  // Reads the rows of a table's keys, and pools them if bags are asked for.
  Status LookupInTable(size_t table, const AskedKeys& asked, bool make_rows, float* rows,
                       CollectionKeys* looked_up, const ParallelFor& parallel_for);

  const std::vector<Member> members_;
  ServedTables served_;
  const std::shared_ptr<CollectionQueue> queue_;
};

}  // namespace sok
