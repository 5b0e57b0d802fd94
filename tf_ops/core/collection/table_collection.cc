#include "core/collection/table_collection.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "core/collection/for_each_table.h"

namespace sok {
namespace {

// The cost of a key in nanoseconds, roughly: what it takes to find a row, and to move its floats.
int64_t KeyCost(const std::vector<int>& dims) {
  const int64_t floats = std::accumulate(dims.begin(), dims.end(), int64_t{0});
  return 20 + floats / std::max<int64_t>(static_cast<int64_t>(dims.size()), 1) / 2;
}

bool Rests(const float* gradient) {
  uint32_t bits;
  std::memcpy(&bits, gradient, sizeof(bits));
  return bits == kRestsBits;
}

// The keys whose gradients (keys.n, dim) do not rest.
LookupKeys WithoutResting(const LookupKeys& keys, const float* gradients, int dim) {
  size_t first = 0;
  while (first < keys.n && !Rests(gradients + first * dim)) ++first;
  if (first == keys.n) return keys;
  struct Kept {
    std::vector<Key> keys;
    std::vector<uint32_t> positions;
  };
  auto kept = std::make_shared<Kept>();
  for (size_t i = 0; i < keys.n; ++i) {
    if (Rests(gradients + i * dim)) continue;
    kept->keys.push_back(keys.keys[i]);
    kept->positions.push_back(static_cast<uint32_t>(i));
  }
  LookupKeys left = keys;
  left.keys = kept->keys.data();
  left.positions = kept->positions.data();
  left.n = kept->keys.size();
  left.hold = std::move(kept);
  return left;
}

Status FirstError(const std::vector<Status>& statuses,
                  const std::vector<TableCollection::Member>& members) {
  for (size_t table = 0; table < statuses.size(); ++table) {
    if (!statuses[table].ok()) {
      return statuses[table].Within("table '" + members[table].name + "': ");
    }
  }
  return Status();
}

}  // namespace

double CollectionKeys::square() const {
  double sum = 0.0;
  for (const LookupKeys& keys : tables) sum += keys.square();
  return sum;
}

double CollectionKeys::Dot(const CollectionKeys& other) {
  double sum = 0.0;
  for (size_t table = 0; table < tables.size(); ++table) {
    sum += tables[table].Dot(other.tables[table]);
  }
  return sum;
}

TableCollection::TableCollection(std::vector<Member> members,
                                 std::shared_ptr<CollectionQueue> queue)
    : members_(std::move(members)), queue_(std::move(queue)) {
  for (const Member& member : members_) dims_.push_back(member.table->dim());
}

Status TableCollection::Lookup(const AskedKeys& asked, bool make_rows,
                               const std::vector<bool>& trainable, float* rows,
                               CollectionKeys* looked_up, const ParallelFor& parallel_for) {
  const size_t tables = members_.size();
  looked_up->tables.assign(tables, {});
  looked_up->starts.clear();
  looked_up->order = {0, queue_->deposits.NextLookup(), 0};
  std::vector<Status> statuses(tables);
  std::vector<TableWork> work;
  for (size_t table = 0; table < tables; ++table) {
    looked_up->starts.push_back(asked.segments.begin(table));
    if (asked.segments.rows(table) > 0) {
      const Member& member = members_[table];
      const bool waits = member.stored || (make_rows && member.table->makes_rows_in_turn());
      work.push_back({table, asked.segments.rows(table), waits});
    }
  }
  ForEachTable(work, KeyCost(dims_), parallel_for, [&](size_t t, const ParallelFor& inner) {
    Table& table = *members_[t].table;
    const bool makes_rows = make_rows && trainable[t];
    LookupKeys keys;
    keys.keys = asked.keys + asked.starts[t];
    keys.n = asked.segments.rows(t);
    keys.hold = asked.hold;
    keys.removals = table.removals();
    if (makes_rows) keys.claim = table.Claim(keys);
    statuses[t] =
        table.Lookup(keys.keys, keys.n, makes_rows, rows + asked.segments.begin(t), inner);
    keys.rows_made = makes_rows;
    if (trainable[t]) looked_up->tables[t] = std::move(keys);
  });
  return FirstError(statuses, members_);
}

void TableCollection::Deposit(CollectionKeys keys, std::shared_ptr<const void> hold,
                              const float* gradients, const AnchorGradient& anchor,
                              const ParallelFor& parallel_for) {
  std::vector<TableWork> work;
  for (size_t table = 0; table < members_.size(); ++table) {
    work.push_back({table, keys.tables[table].n, members_[table].stored});
  }
  const bool measures = anchor.gradient != nullptr && anchor.measures;
  ForEachTable(work, measures ? KeyCost(dims_) : 2, parallel_for,
               [&](size_t t, const ParallelFor& inner) {
                 LookupKeys& of_table = keys.tables[t];
                 const float* of_rows = gradients + keys.starts[t];
                 of_table = WithoutResting(of_table, of_rows, dims_[t]);
                 of_table.order = keys.order;
                 if (!measures) return;
                 of_table.summed = members_[t].table->SumByKey(of_table, of_rows, nullptr, inner);
               });
  keys.n = 0;
  for (const LookupKeys& of_table : keys.tables) keys.n += of_table.n;
  if (anchor.gradient == nullptr) {
    queue_->deposits.Add(std::move(keys), std::move(hold), gradients, nullptr);
  } else {
    queue_->deposits.Add(std::move(keys), std::move(hold), gradients, nullptr, anchor.gradient,
                         anchor.measures);
  }
}

uint64_t TableCollection::DropDeposits() {
  std::lock_guard<std::mutex> guard(queue_->commit_mu);  // not between the tables' parts of a step
  uint64_t gradients = queue_->deposits.Drop();
  for (const Member& member : members_) gradients += member.table->DropDeposits();
  return gradients;
}

Result<std::vector<CommitOutcome>> TableCollection::Commit(
    const std::vector<CommitOptions>& options, const ParallelFor& parallel_for) {
  std::lock_guard<std::mutex> guard(queue_->commit_mu);
  const size_t tables = members_.size();
  std::vector<CommitOutcome> outcomes(tables);
  if (tables == 0) return outcomes;
  const CommitOptions& common = options[0];
  auto redeemed = common.redeemed == nullptr
                      ? Result<Deposits>(queue_->deposits.TakeAll())
                      : queue_->deposits.Redeem(common.redeemed, common.plain, common.clipped_to);
  if (!redeemed.ok()) return redeemed.status();
  std::vector<TableWork> work(tables);
  std::vector<std::unique_lock<std::mutex>> locks;
  for (size_t table = 0; table < tables; ++table) {
    const Member& member = members_[table];
    work[table] = {table, 0, member.stored || member.table->makes_rows_in_turn()};
    locks.push_back(member.table->LockCommits());
  }
  for (auto& deposit : redeemed.value()) {
    for (size_t table = 0; table < tables; ++table) {
      LookupKeys& keys = deposit.keys.tables[table];
      if (keys.n == 0) continue;  // the table rests
      work[table].items += keys.n;
      keys.factor = deposit.factor;
      members_[table].table->Deposit(std::move(keys), deposit.hold,
                                     deposit.gradients + deposit.keys.starts[table], nullptr);
    }
  }
  std::vector<Status> statuses(tables);
  ForEachTable(work, KeyCost(dims_), parallel_for, [&](size_t table, const ParallelFor& inner) {
    if (options[table].rule.empty()) return;
    CommitOptions own = options[table];
    own.redeemed = nullptr;  // what it gets is redeemed
    auto outcome = members_[table].table->Commit(std::move(locks[table]), own, inner);
    if (outcome.ok()) outcomes[table] = std::move(outcome.value());
    statuses[table] = outcome.status();
  });
  if (Status status = FirstError(statuses, members_); !status.ok()) return status;
  return outcomes;
}

}  // namespace sok
