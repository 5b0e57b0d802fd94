#include "core/collection/table_collection.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "core/collection/for_each_table.h"

namespace sok {
namespace {

// Returns roughly how many nanoseconds a key takes: to find its row, and to move its floats.
int64_t KeyCost(const std::vector<int>& dims) {
  const int64_t floats = std::accumulate(dims.begin(), dims.end(), int64_t{0});
  return 20 + floats / std::max<int64_t>(static_cast<int64_t>(dims.size()), 1) / 2;
}

// Joins the bags of one table that all workers have asked for into one batch.
Result<std::shared_ptr<PooledBags>> Gather(const std::vector<AskedBags>& asked, const Table& table,
                                           const ParallelFor& parallel_for) {
  auto plan = std::make_shared<CollectionPlan>();
  plan->tables.push_back({"", table.dim()});
  plan->tables[0].counts = table.counts_keys();
  plan->features.resize(asked.size());
  plan->feature_tables.resize(asked.size(), 0);
  auto pooled = std::make_shared<PooledBags>();
  std::vector<FeatureBags> features;
  for (const AskedBags& each : asked) {
    features.push_back(each.bags);
    pooled->poolings.push_back({each.combiner, nullptr});
  }
  auto request = CollectionRequest::Make(std::move(plan), std::move(features), parallel_for);
  if (!request.ok()) return request.status();
  pooled->request = std::move(request.value());
  pooled->rows.resize(pooled->request->row_starts().back());
  return pooled;
}

// Calls fn(feature, floats) with the place of each feature's vectors, which lie one after another.
template <typename Fn>
void ForEachVectors(const CollectionRequest& request, const Fn& fn) {
  const auto dim = static_cast<size_t>(request.plan().tables[0].dim);
  size_t begin = 0;
  for (size_t feature = 0; feature < request.plan().features.size(); ++feature) {
    fn(feature, begin);
    begin += request.feature(feature).bags * dim;
  }
}

void PoolAll(const PooledBags& pooled, float* vectors, const ParallelFor& parallel_for) {
  const auto dim = static_cast<size_t>(pooled.request->plan().tables[0].dim);
  std::vector<BagVectors<float>> out;
  ForEachVectors(*pooled.request, [&](size_t, size_t begin) {
    out.push_back({vectors + begin, dim});
  });
  Pool(*pooled.request, pooled.poolings, pooled.rows.data(), {pooled.request->row_starts(), {}},
       out, parallel_for);
}

// Returns the gradients of distinct rows, from the gradients of vectors. A worker's feature that
// was not used is passed over.
std::vector<float> GradientsOfRows(const PooledBags& pooled, const float* vectors,
                                   const ParallelFor& parallel_for) {
  const CollectionRequest& request = *pooled.request;
  const auto dim = static_cast<size_t>(request.plan().tables[0].dim);
  std::vector<BagVectors<const float>> upstream(pooled.poolings.size());
  ForEachVectors(request, [&](size_t feature, size_t begin) {
    const bool rests = request.feature(feature).bags > 0 && IsUnused(vectors + begin);
    if (!rests) upstream[feature] = {vectors + begin, dim};
  });
  std::vector<float> gradients(pooled.rows.size());
  const RowPlaces places{request.row_starts(), {}};
  PoolGradient(request, pooled.poolings, pooled.rows.data(), places, upstream, gradients.data(),
               places, std::vector<float*>(upstream.size(), nullptr), parallel_for);
  return gradients;
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
  for (size_t table = 0; table < tables.size(); ++table) {
    sum += shares[table] * tables[table].square();
  }
  return sum;
}

double CollectionKeys::Dot(const CollectionKeys& other) {
  double sum = 0.0;
  for (size_t table = 0; table < tables.size(); ++table) {
    sum += shares[table] * tables[table].Dot(other.tables[table]);
  }
  return sum;
}

TableCollection::TableCollection(std::vector<Member> members,
                                 std::shared_ptr<CollectionQueue> queue, size_t rank)
    : members_(std::move(members)), queue_(std::move(queue)) {
  served_.rank = rank;
  for (const Member& member : members_) {
    served_.dims.push_back(member.table->dim());
    served_.placements.push_back(member.placement);
    served_.counts.push_back(member.table->counts_keys());
  }
}

Status TableCollection::LookupInTable(size_t t, const AskedKeys& asked, bool make_rows, float* rows,
                                      CollectionKeys* looked_up, const ParallelFor& parallel_for) {
  Table& table = *members_[t].table;
  LookupKeys keys;
  keys.keys = asked.keys + asked.starts[t];
  keys.n = asked.starts[t + 1] - asked.starts[t];
  keys.hold = asked.hold;
  keys.distinct = asked.segments.workers() == 1;  // a worker asks for distinct keys
  if (served_.counts[t] && asked.counts != nullptr) keys.counts = asked.counts + asked.starts[t];
  std::shared_ptr<PooledBags> pooled;
  float* of_keys = rows;
  if (!asked.bags[t].empty()) {
    auto gathered = Gather(asked.bags[t], table, parallel_for);
    if (!gathered.ok()) return gathered.status();
    pooled = std::move(gathered.value());
    const CollectionRequest::TablePart& distinct = pooled->request->tables()[0];
    keys.keys = distinct.keys.data();
    keys.counts = distinct.counts.empty() ? nullptr : distinct.counts.data();
    keys.n = distinct.keys.size();
    keys.distinct = true;
    keys.hold = pooled;
    of_keys = pooled->rows.data();
  }
  keys.removals = table.removals();
  if (make_rows) keys.claim = table.Claim(keys);
  if (!make_rows) keys.counted = table.CountOnce();
  if (make_rows && keys.distinct) keys.found = table.NumberRows(keys.n);
  std::vector<int64_t> zeros;
  if (asked.counted && served_.counts[t]) zeros.resize(keys.n);
  Status status = table.Lookup(keys.keys, keys.n, make_rows, of_keys, parallel_for,
                               /*exists=*/nullptr, zeros.empty() ? keys.counts : zeros.data(),
                               keys.found.get());
  keys.rows_made = make_rows;
  if (status.ok() && pooled != nullptr) PoolAll(*pooled, rows, parallel_for);
  looked_up->tables[t] = std::move(keys);
  looked_up->pooled[t] = std::move(pooled);
  return status;
}

Status TableCollection::Lookup(const AskedKeys& asked, bool make_rows,
                               const std::vector<bool>& trainable, float* rows,
                               CollectionKeys* looked_up, const ParallelFor& parallel_for) {
  const size_t tables = members_.size();
  looked_up->tables.assign(tables, {});
  looked_up->pooled.assign(tables, nullptr);
  looked_up->starts.clear();
  looked_up->shares.clear();
  looked_up->order = {0, queue_->deposits.NextLookup(), 0};
  std::vector<Status> statuses(tables);
  std::vector<TableWork> work;
  for (size_t table = 0; table < tables; ++table) {
    looked_up->starts.push_back(asked.segments.begin(table));
    const bool on_all = members_[table].placement.kind == TablePlacement::kOnAll;
    looked_up->shares.push_back(on_all ? 1.0 / static_cast<double>(asked.segments.workers()) : 1.0);
    if (asked.segments.rows(table) > 0) {
      const Member& member = members_[table];
      const bool waits = member.stored || (make_rows && member.table->makes_rows_in_turn());
      size_t keys = asked.starts[table + 1] - asked.starts[table];
      for (const AskedBags& each : asked.bags[table]) keys += each.bags.n;
      work.push_back({table, keys, waits});
    }
  }
  ForEachTable(work, KeyCost(served_.dims), parallel_for, [&](size_t t, const ParallelFor& inner) {
    statuses[t] = OrNoMemory([&] {
      return LookupInTable(t, asked, make_rows && trainable[t], rows + asked.segments.begin(t),
                           looked_up, inner);
    });
    if (!trainable[t]) looked_up->tables[t] = {};
  });
  return FirstError(statuses, members_);
}

void TableCollection::Deposit(CollectionKeys keys, std::shared_ptr<const void> hold,
                              const float* gradients, const AnchorGradient& anchor,
                              const ParallelFor& parallel_for) {
  struct Kept {
    std::shared_ptr<const void> hold;
    std::vector<std::vector<float>> of_pooled;  // (tables)
  };
  auto kept = std::make_shared<Kept>();
  kept->hold = std::move(hold);
  kept->of_pooled.resize(members_.size());
  keys.gradients.assign(members_.size(), nullptr);
  std::vector<TableWork> work;
  for (size_t table = 0; table < members_.size(); ++table) {
    work.push_back({table, keys.tables[table].n, members_[table].stored});
  }
  const bool needs_norm = anchor.gradient != nullptr && anchor.needs_norm;
  ForEachTable(work, needs_norm ? KeyCost(served_.dims) : 2, parallel_for,
               [&](size_t t, const ParallelFor& inner) {
                 LookupKeys& of_table = keys.tables[t];
                 const float* of_rows = gradients + keys.starts[t];
                 if (keys.pooled[t] != nullptr && of_table.n > 0) {
                   kept->of_pooled[t] = GradientsOfRows(*keys.pooled[t], of_rows, inner);
                   of_rows = kept->of_pooled[t].data();
                 }
                 keys.gradients[t] = of_rows;
                 of_table = WithoutUnused(of_table, of_rows, served_.dims[t]);
                 of_table.order = keys.order;
                 if (!needs_norm) return;
                 of_table.summed = members_[t].table->SumByKey(of_table, of_rows, nullptr, inner);
               });
  keys.n = 0;
  for (const LookupKeys& of_table : keys.tables) keys.n += of_table.n;
  if (anchor.gradient == nullptr) {
    queue_->deposits.Add(std::move(keys), std::move(kept), gradients, nullptr);
  } else {
    queue_->deposits.Add(std::move(keys), std::move(kept), gradients, nullptr, anchor.gradient,
                         anchor.needs_norm);
  }
}

Status TableCollection::DepositByTable(CollectionKeys keys, std::shared_ptr<const void> hold,
                                       const AnchorGradient& anchor,
                                       const ParallelFor& parallel_for) {
  auto kept = std::make_shared<std::vector<std::shared_ptr<const void>>>();
  kept->push_back(std::move(hold));
  const bool needs_norm = anchor.gradient != nullptr && anchor.needs_norm;
  keys.shares.resize(members_.size(), 1.0);
  keys.n = 0;
  for (size_t t = 0; t < members_.size(); ++t) {
    LookupKeys& of_table = keys.tables[t];
    of_table.order = keys.order;
    keys.n += of_table.n;
    if (!needs_norm) continue;
    const Table& table = *members_[t].table;
    const BFloat16* none = nullptr;
    kept->emplace_back();
    Status status = ToHost(table.dim(), &of_table, &kept->back(), &keys.gradients[t], &none);
    if (!status.ok()) return status.Within("table '" + members_[t].name + "': ");
    of_table.summed = table.SumByKey(of_table, keys.gradients[t], nullptr, parallel_for);
  }
  if (anchor.gradient == nullptr) {
    queue_->deposits.Add(std::move(keys), std::move(kept), nullptr, nullptr);
  } else {
    queue_->deposits.Add(std::move(keys), std::move(kept), nullptr, nullptr, anchor.gradient,
                         anchor.needs_norm);
  }
  return Status();
}

uint64_t TableCollection::DropDeposits() {
  std::lock_guard<std::mutex> guard(queue_->commit_mu);  // a step of all tables runs alone
  uint64_t gradients = queue_->deposits.Drop();
  for (const Member& member : members_) gradients += member.table->DropDeposits();
  return gradients;
}

Result<std::vector<CommitOutcome>> TableCollection::Commit(
    const CommitOptions& common, const std::vector<const CommitOptions*>& options,
    const ParallelFor& parallel_for) {
  std::lock_guard<std::mutex> guard(queue_->commit_mu);
  const size_t tables = members_.size();
  std::vector<CommitOutcome> outcomes(tables);
  auto redeemed = common.redeemed == nullptr
                      ? Result<Deposits>(queue_->deposits.TakeAll())
                      : queue_->deposits.Redeem(common.redeemed, common.plain, common.clipped_to);
  if (!redeemed.ok()) return redeemed.status();
  std::map<const CommitOptions*, Result<std::unique_ptr<RowOptimizer>>> optimizers;
  std::vector<TableWork> work;
  std::vector<Table::Deposits> of_tables(tables);
  std::vector<std::unique_lock<std::mutex>> locks;
  for (size_t table = 0; table < tables; ++table) {
    const CommitOptions* const own = options[table];
    if (own == nullptr) continue;
    if (optimizers.find(own) == optimizers.end()) {
      optimizers.emplace(own, MakeRowOptimizer(own->rule, own->hypers));
    }
    const Member& member = members_[table];
    TableWork of_table{table, 0, member.stored || member.table->makes_rows_in_turn()};
    for (auto& deposit : redeemed.value()) {
      LookupKeys& keys = deposit.keys.tables[table];
      if (keys.n == 0) continue;  // no step for this table
      of_table.items += keys.n;
      member.table->TransferPin(&keys);
      of_tables[table].push_back(
          {std::move(keys), deposit.hold, deposit.keys.gradients[table], nullptr});
      of_tables[table].back().factor = deposit.factor;
    }
    work.push_back(of_table);
    locks.push_back(member.table->LockCommits());
  }
  std::vector<Status> statuses(tables);
  ForEachTable(work, KeyCost(served_.dims), parallel_for,
               [&](size_t table, const ParallelFor& inner) {
                 const auto& optimizer = optimizers.at(options[table]);
                 if (!optimizer.ok()) {
                   statuses[table] = optimizer.status();
                   return;
                 }
                 auto outcome = members_[table].table->CommitLocked(
                     *options[table], *optimizer.value(), std::move(of_tables[table]), inner);
                 if (outcome.ok()) outcomes[table] = std::move(outcome.value());
                 statuses[table] = outcome.status();
               });
  if (Status status = FirstError(statuses, members_); !status.ok()) return status;
  return outcomes;
}

}  // namespace sok
