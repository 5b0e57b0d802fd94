#include "core/collection/request.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/base/adaptive_bucket.h"
#include "core/base/grouping.h"
#include "core/base/hash.h"
#include "core/collection/for_each_table.h"
#include "core/partition/partition.h"

namespace sok {
namespace {

constexpr int64_t kKeyCost = 15;  // nanoseconds to find a distinct key

Status CheckLengths(const CollectionPlan& plan, size_t feature, const FeatureBags& bags) {
  const uint64_t most = feature < plan.max_lengths.size() ? plan.max_lengths[feature] : 0;
  if (most == 0 || bags.bags == 0 || (bags.splits == nullptr && bags.length <= most)) {
    return Status();
  }
  size_t bag = 0;
  while (bag < bags.bags && bags.end(bag) - bags.begin(bag) <= most) ++bag;
  if (bag == bags.bags) return Status();
  return InvalidArgument("feature '" + plan.features[feature] + "': expected at most max_length=" +
                         std::to_string(most) + " keys in an example, got " +
                         std::to_string(bags.end(bag) - bags.begin(bag)) + " in example " +
                         std::to_string(bag) + "; leave some out, or allow more");
}

// Sorts distinct keys by the worker that owns them, and renumbers the rows. The keys of one worker
// stay in the order in which they were.
void SortByOwner(const CollectedTable& table, uint32_t workers,
                 CollectionRequest::TablePart* part) {
  const auto distinct = static_cast<uint32_t>(part->keys.size());
  std::vector<uint32_t> owners(distinct), starts(workers + 1), number(distinct);
  CountingSort sort(starts.data(), workers);
  for (uint32_t row = 0; row < distinct; ++row) {
    owners[row] = OwnerOf(table, part->keys[row], workers);
    sort.Count(owners[row]);
  }
  sort.Start();
  std::vector<Key> sorted(distinct);
  for (uint32_t row = 0; row < distinct; ++row) {
    number[row] = sort.Take(owners[row]);
    sorted[number[row]] = part->keys[row];
  }
  sort.Finish();
  part->keys = std::move(sorted);
  for (uint32_t& row : part->row_of) row = number[row];
  for (uint32_t worker = 0; worker < workers; ++worker) {
    part->splits[worker] = starts[worker + 1] - starts[worker];
  }
}

}  // namespace

uint32_t CollectionOwner(Key key, uint64_t salt, uint32_t workers) {
  return static_cast<uint32_t>(Mix64(key ^ salt) % workers);
}

uint32_t OwnerOf(const CollectedTable& table, Key key, uint32_t workers) {
  const TablePlacement& placement = table.placement;
  switch (placement.kind) {
    case TablePlacement::kOnWorker:
      return placement.worker;
    case TablePlacement::kByModulo:
      return OwnerOf(key, workers);
    case TablePlacement::kByBucket:
      return static_cast<uint32_t>(AdaptiveBucket(key, placement.buckets) % workers);
    case TablePlacement::kByKey:
    case TablePlacement::kOnAll:
      break;
  }
  return CollectionOwner(key, table.salt, workers);
}

Status CollectionRequest::CheckBags(const CollectionPlan& plan, size_t feature,
                                    const FeatureBags& bags) {
  const auto refuse = [&](const std::string& what) {
    return InvalidArgument("feature '" + plan.features[feature] + "': " + what);
  };
  if (bags.n >= size_t{INT32_MAX}) {
    return refuse("expected fewer than 2^31 keys, got " + std::to_string(bags.n));
  }
  if (bags.splits == nullptr) {
    if (bags.bags * bags.length == bags.n) return CheckLengths(plan, feature, bags);
    return refuse("expected " + std::to_string(bags.bags) + " bags of " +
                  std::to_string(bags.length) + " keys, got " + std::to_string(bags.n) + " keys");
  }
  const int64_t *const splits = bags.splits, *const last = splits + bags.bags;
  const int64_t* const end = std::is_sorted_until(splits, last + 1);
  if (*splits == 0 && *last == static_cast<int64_t>(bags.n) && end == last + 1) {
    return CheckLengths(plan, feature, bags);
  }
  return refuse(
      "expected row splits that begin with 0, never fall and end with the number of "
      "keys, " +
      std::to_string(bags.n) + "; got splits from " + std::to_string(*splits) + " to " +
      std::to_string(*last) +
      (end == last + 1 ? ""
                       : ", with " + std::to_string(*end) + " behind " + std::to_string(end[-1])));
}

void CollectionRequest::FindRowsOfMany(size_t table, size_t n, const ParallelFor& parallel_for) {
  TablePart& part = tables_[table];
  const Key* keys = features_[part.features[0]].keys;
  std::vector<Key> joined;
  if (part.features.size() > 1) {
    joined.reserve(n);
    for (uint32_t feature : part.features) {
      const FeatureBags& bags = features_[feature];
      joined.insert(joined.end(), bags.keys, bags.keys + bags.n);
    }
    keys = joined.data();
  }
  const auto owner_of = [&of = plan_->tables[table], workers = plan_->workers](Key key) {
    return OwnerOf(of, key, workers);
  };
  static_assert(sizeof(uint32_t) == sizeof(int32_t), "rows are written as int32");
  Partition partition =
      UniqueAndPartition(keys, n, plan_->workers, owner_of,
                         reinterpret_cast<int32_t*>(part.row_of.data()), parallel_for);
  part.keys = std::move(partition.keys);
  part.splits.assign(partition.splits.begin(), partition.splits.end());
}

void CollectionRequest::FindRowsOfFew(size_t table, size_t n) {
  TablePart& part = tables_[table];
  thread_local DistinctIndex scratch;
  DistinctIndex& index = scratch;  // a local reference: its address is read once
  index.Reset(n);
  part.keys.resize(n);
  Key* const distinct = part.keys.data();
  uint32_t* row = part.row_of.data();
  for (uint32_t feature : part.features) {
    const FeatureBags& bags = features_[feature];
    for (size_t i = 0; i < bags.n; ++i, ++row) {
      *row =
          index.FindOrAdd(bags.keys[i], [distinct](uint32_t number) { return distinct[number]; });
      distinct[*row] = bags.keys[i];  // written even if it is there: a branch would be mispredicted
    }
  }
  part.keys.resize(index.size());
  part.splits.assign(plan_->workers, 0);
  if (plan_->workers == 1) {
    part.splits[0] = static_cast<uint32_t>(part.keys.size());
  } else {
    SortByOwner(plan_->tables[table], plan_->workers, &part);
  }
}

void CollectionRequest::AskForBags(size_t table) {
  TablePart& part = tables_[table];
  part.splits.assign(plan_->workers, 0);
  for (uint32_t feature : part.features) {
    FeatureBags& bags = features_[feature];
    starts_[feature] = part.rows;
    part.rows += bags.bags;
    part.bags.push_back(bags);
    bags = {nullptr, nullptr, bags.bags, bags.bags, nullptr, 1};
  }
  part.splits[plan_->tables[table].placement.worker] = static_cast<uint32_t>(part.rows);
  part.row_of.resize(part.rows);
  std::iota(part.row_of.begin(), part.row_of.end(), 0);
}

Status CollectionRequest::FindRows(size_t table, const ParallelFor& parallel_for) {
  constexpr size_t kMany = 16384;
  TablePart& part = tables_[table];
  const TablePlacement& placement = plan_->tables[table].placement;
  if (placement.pools) {
    Status status = CheckKeysOf(table);
    if (status.ok()) AskForBags(table);
    return status;
  }
  size_t n = 0;
  for (uint32_t feature : part.features) {
    starts_[feature] = n;
    n += features_[feature].n;
  }
  part.row_of.resize(n);
  if (n > kMany) {
    FindRowsOfMany(table, n, parallel_for);
  } else {
    FindRowsOfFew(table, n);
  }
  part.rows = part.keys.size();
  FindColumns(table);
  if (placement.kind == TablePlacement::kOnAll) {
    // This worker reads the rows of such a table itself, whether or not it sends the keys to other
    // workers too.
    part.splits.assign(plan_->workers, 0);
    part.splits[plan_->rank] = static_cast<uint32_t>(part.rows);
  }
  return CheckKeysOf(table);
}

void CollectionRequest::FindColumns(size_t table) {
  TablePart& part = tables_[table];
  if (plan_->tables[table].counts) {
    part.counts.assign(part.rows, 0);
    for (uint32_t row : part.row_of) ++part.counts[row];
  }
  if (!plan_->tables[table].says) return;
  part.said.assign(part.rows, INT64_MIN);
  for (uint32_t feature : part.features) {
    const FeatureBags& bags = features_[feature];
    for (size_t i = 0; i < bags.n; ++i) {
      int64_t& said = part.said[rows_of(feature)[i]];
      said = std::max(said, bags.said[i]);
    }
  }
}

Status CollectionRequest::CheckKeys(const CollectionPlan& plan, size_t feature,
                                    const FeatureBags& bags) {
  const CollectedTable& of = plan.tables[plan.feature_tables[feature]];
  if (of.key_limit == 0) return Status();
  for (size_t i = 0; i < bags.n; ++i) {
    if (bags.keys[i] < of.key_limit) continue;
    return Status(Code::kOutOfRange, "feature '" + plan.features[feature] +
                                         "': expected keys of table '" + of.name + "' in [0, " +
                                         std::to_string(of.key_limit) + "), got key " +
                                         std::to_string(static_cast<int64_t>(bags.keys[i])));
  }
  return Status();
}

Status CollectionRequest::CheckKeysOf(size_t table) const {
  for (uint32_t feature : tables_[table].features) {
    if (Status status = CheckKeys(*plan_, feature, features_[feature]); !status.ok()) return status;
  }
  return Status();
}

Result<std::shared_ptr<const CollectionRequest>> CollectionRequest::Make(
    std::shared_ptr<const CollectionPlan> plan, std::vector<FeatureBags> features,
    const ParallelFor& parallel_for) {
  std::shared_ptr<CollectionRequest> request(new CollectionRequest);
  request->plan_ = std::move(plan);
  request->features_ = std::move(features);
  const size_t tables = request->plan_->tables.size();
  request->starts_.resize(request->features_.size());
  request->tables_.resize(tables);
  std::vector<TableWork> work(tables);
  for (size_t table = 0; table < tables; ++table) work[table].table = table;
  for (size_t feature = 0; feature < request->features_.size(); ++feature) {
    if (Status status = CheckBags(*request->plan_, feature, request->features_[feature]);
        !status.ok()) {
      return status;
    }
    const uint32_t table = request->plan_->feature_tables[feature];
    request->tables_[table].features.push_back(static_cast<uint32_t>(feature));
    work[table].items += request->features_[feature].n;
  }
  std::vector<Status> found(tables);
  ForEachTable(work, kKeyCost, parallel_for, [&](size_t table, const ParallelFor& inner) {
    found[table] = request->FindRows(table, inner);
  });
  for (const Status& status : found) {
    if (!status.ok()) return status;
  }
  request->row_starts_.push_back(0);
  for (size_t table = 0; table < tables; ++table) {
    const size_t floats =
        request->tables_[table].rows * static_cast<size_t>(request->plan_->tables[table].dim);
    request->row_starts_.push_back(request->row_starts_.back() + floats);
  }
  return std::shared_ptr<const CollectionRequest>(std::move(request));
}

}  // namespace sok
