#include "core/adaptive/adaptive_table.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>
#include <utility>

#include "core/base/status_macros.h"
#include "core/partition/partition.h"

namespace sok {
namespace {

constexpr int32_t kOwn = 1, kStatic = 0;
constexpr size_t kBlock = 4096;  // keys that a thread reads at a time, of rows in the host's memory

// Adds counts that are at least 0. The sum is at most UINT32_MAX.
uint32_t Sum(uint32_t sum, int64_t count) {
  return static_cast<uint32_t>(sum + std::min<int64_t>(count, UINT32_MAX - sum));
}

int64_t CountOf(const AdaptiveKeys& batch, size_t i) {
  return batch.counts == nullptr ? 1 : batch.counts[i];
}

int32_t MaskOf(const AdaptiveKeys& batch, size_t i) {
  return batch.mask == nullptr ? -1 : batch.mask[i];
}

}  // namespace

AdaptiveTable::AdaptiveTable(std::shared_ptr<Table> own, std::shared_ptr<Table> statics,
                             const AdaptiveConfig& config, std::unique_ptr<CountMinSketch> sketch)
    : own_(std::move(own)),
      statics_(std::move(statics)),
      config_(config),
      sketch_(std::move(sketch)) {}

Result<std::unique_ptr<AdaptiveTable>> AdaptiveTable::Make(std::shared_ptr<Table> own,
                                                           std::shared_ptr<Table> statics,
                                                           const AdaptiveConfig& config) {
  if (config.static_buckets < 1 || config.owner >= config.owners || own->dim() != statics->dim()) {
    return InvalidArgument(
        "expected static_buckets of at least 1, an owner below owners and two "
        "tables of one dim, got " +
        std::to_string(config.static_buckets) + ", " + std::to_string(config.owner) + " of " +
        std::to_string(config.owners) + ", " + std::to_string(own->dim()) + " and " +
        std::to_string(statics->dim()));
  }
  if (!(config.demote_blend >= 0 && config.demote_blend <= 1)) {
    return InvalidArgument("expected demote_blend in [0, 1], got " +
                           std::to_string(config.demote_blend));
  }
  constexpr uint64_t kMostKeys = uint64_t{1} << 40;
  if (config.sketch_capacity < 1 || config.sketch_capacity > kMostKeys) {
    return InvalidArgument("expected sketch_capacity in [1, 2^40], got " +
                           std::to_string(config.sketch_capacity));
  }
  if (config.counter_bits != 8 && config.counter_bits != 16) {
    return InvalidArgument("expected counters of 8 or 16 bits, got " +
                           std::to_string(config.counter_bits));
  }
  auto made = CountMinSketch::Make(SketchOf(config));
  if (!made.ok()) {
    return made.status().Within("a sketch for a sketch_capacity of " +
                                std::to_string(config.sketch_capacity) + " and " +
                                std::to_string(config.static_buckets) + " static_buckets: ");
  }
  if (config.promote_after < 1 || config.promote_after > made.value()->max()) {
    return InvalidArgument("expected promote_after in [1, " + std::to_string(made.value()->max()) +
                           "], as " + std::to_string(config.counter_bits) + " bits count, got " +
                           std::to_string(config.promote_after));
  }
  std::unique_ptr<AdaptiveTable> table(
      new AdaptiveTable(std::move(own), std::move(statics), config, std::move(made.value())));
  if (config.ttl > 0) {
    EvictionConfig too_old;
    too_old.kind = "max_age";
    too_old.max_age = config.ttl;
    SOK_ASSIGN_OR_RETURN(table->too_old_, MakeEviction(too_old));
  }
  return table;
}

SketchConfig AdaptiveTable::SketchOf(const AdaptiveConfig& config) {
  SketchConfig sketch;
  sketch.buckets = (config.static_buckets + config.owners - 1) / config.owners;
  sketch.cells_per_bucket =
      CountMinSketch::CellsPerBucket(config.sketch_capacity, config.static_buckets);
  sketch.cell_bits = config.counter_bits;
  return sketch;
}

uint32_t AdaptiveTable::SketchBucketOf(Key key) const {
  return static_cast<uint32_t>(AdaptiveBucket(key, config_.static_buckets) / config_.owners);
}

std::vector<Key> AdaptiveTable::BucketsOf(const std::vector<Key>& keys) const {
  std::vector<Key> buckets(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    buckets[i] = AdaptiveBucket(keys[i], config_.static_buckets);
  }
  return buckets;
}

Status AdaptiveTable::CheckBatch(const AdaptiveKeys& batch) const {
  for (size_t i = 0; batch.mask != nullptr && i < batch.n; ++i) {
    if (batch.mask[i] >= -1 && batch.mask[i] <= 1) continue;
    return InvalidArgument(
        "expected a mask of 1 (own row), 0 (static row) or -1 (automatic), got " +
        std::to_string(batch.mask[i]) + " at position " + std::to_string(i));
  }
  for (size_t i = 0; batch.counts != nullptr && i < batch.n; ++i) {
    if (batch.counts[i] >= 0) continue;
    return InvalidArgument("expected counts of at least 0, got " + std::to_string(batch.counts[i]) +
                           " at position " + std::to_string(i));
  }
  for (size_t i = 0; config_.owners > 1 && i < batch.n; ++i) {
    const uint64_t owner = AdaptiveBucket(batch.keys[i], config_.static_buckets) % config_.owners;
    if (owner == config_.owner) continue;
    return InvalidArgument("key " + std::to_string(static_cast<int64_t>(batch.keys[i])) +
                           " belongs to worker " + std::to_string(owner) + ", and this is worker " +
                           std::to_string(config_.owner) + " of " + std::to_string(config_.owners));
  }
  return Status();
}

template <typename T>
Status AdaptiveTable::Read(const AdaptiveKeys& batch, size_t begin, size_t end, T* out,
                           std::vector<uint32_t>* missing, LookupCounts* met) const {
  const size_t n = end - begin;
  // Each thread reuses these arrays from one block to the next.
  thread_local std::vector<uint32_t> asking, absent, statics;  // positions in the batch
  thread_local std::vector<Key> keys, buckets;
  absent.clear();
  statics.clear();
  Status status;
  if (batch.mask == nullptr) {
    status = own_->Find(batch.keys + begin, n, {}, out + begin * dim(), &absent, met, SerialFor);
    for (uint32_t& i : absent) i += static_cast<uint32_t>(begin);
  } else {
    asking.resize(n);
    statics.resize(n);
    keys.resize(n);
    size_t asked = 0, sharing = 0;
    for (size_t i = begin; i < end; ++i) {
      // Written without a branch on the mask, which would be mispredicted.
      const bool shares = batch.mask[i] == kStatic;
      keys[asked] = batch.keys[i];
      asking[asked] = static_cast<uint32_t>(i);
      statics[sharing] = static_cast<uint32_t>(i);
      asked += !shares;
      sharing += shares;
    }
    statics.resize(sharing);
    GatherOptions asking_only;
    asking_only.places = asking.data();
    status = own_->Find(keys.data(), asked, asking_only, out, &absent, met, SerialFor);
    for (uint32_t& i : absent) i = asking[i];
  }
  if (!status.ok()) return status;
  statics.insert(statics.end(), absent.begin(), absent.end());
  buckets.resize(statics.size());
  for (size_t i = 0; i < statics.size(); ++i) {
    buckets[i] = AdaptiveBucket(batch.keys[statics[i]], config_.static_buckets);
  }
  if (missing != nullptr) *missing = absent;
  GatherOptions sharing_only;
  sharing_only.places = statics.data();
  return statics_->Find(buckets.data(), buckets.size(), sharing_only, out, nullptr, nullptr,
                        SerialFor);
}

template <typename T>
Status AdaptiveTable::Lookup(const AdaptiveKeys& batch, bool training, T* out,
                             const ParallelFor& parallel_for) {
  Status status = CheckBatch(batch);
  if (!status.ok()) return status;
  const uint64_t seen = changes_.load();
  // Rows on a GPU are read in one block.
  const size_t block_size = own_->gpu() < 0 ? kBlock : std::max<size_t>(batch.n, 1);
  const size_t blocks = (batch.n + block_size - 1) / block_size;
  std::vector<std::vector<uint32_t>> missing(training ? blocks : 0);
  std::mutex failure_mu;
  LookupCounts met;
  parallel_for(static_cast<int64_t>(blocks), kBlock * 30, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      const size_t begin = block * block_size;
      Status read = Read(batch, begin, std::min(begin + block_size, batch.n), out,
                         training ? &missing[block] : nullptr, &met);
      if (read.ok()) continue;
      std::lock_guard<std::mutex> guard(failure_mu);
      status = read;
    }
  });
  if (!status.ok()) return status;
  if (training) {
    std::vector<uint32_t> absent;
    for (const std::vector<uint32_t>& part : missing) {
      absent.insert(absent.end(), part.begin(), part.end());
    }
    // A row that is made now starts as the static row that was read.
    std::lock_guard<std::mutex> guard(mu_);
    SOK_RETURN_IF_ERROR(Learn(batch, std::move(absent), seen, parallel_for));
  }
  own_->Count(met);
  return Status();
}

template Status AdaptiveTable::Lookup(const AdaptiveKeys&, bool, float*, const ParallelFor&);
template Status AdaptiveTable::Lookup(const AdaptiveKeys&, bool, BFloat16*, const ParallelFor&);

Status AdaptiveTable::Learn(const AdaptiveKeys& batch, std::vector<uint32_t> missing, uint64_t seen,
                            const ParallelFor& parallel_for) {
  if (changes_.load() != seen) {
    // Another lookup has made rows since this one read them.
    std::vector<Key> keys;
    for (uint32_t i : missing) keys.push_back(batch.keys[i]);
    SOK_ASSIGN_OR_RETURN(auto still, own_->Missing(keys.data(), keys.size(), parallel_for));
    std::vector<uint32_t> positions;
    for (uint32_t i : still) positions.push_back(missing[i]);
    missing = std::move(positions);
  }
  const uint64_t lookups = lookups_, own_lookups = own_lookups_;
  const std::vector<uint32_t> counted = CountLookups(batch, missing);
  if (counted.empty()) return Status();
  std::vector<Newcomer> newcomers = Newcomers(batch, counted, missing, parallel_for);
  if (newcomers.empty()) return Status();
  Status status = Promote(batch, std::move(newcomers), parallel_for);
  if (!status.ok()) {  // the call is not counted
    lookups_ = lookups;
    own_lookups_ = own_lookups;
  }
  return status;
}

Status AdaptiveTable::LearnOnce(const AdaptiveKeys& batch, const ParallelFor& parallel_for) {
  if (batch.counted == nullptr || batch.counted->exchange(true)) return Status();
  std::lock_guard<std::mutex> guard(mu_);
  SOK_ASSIGN_OR_RETURN(std::vector<uint32_t> missing,
                       own_->Missing(batch.keys, batch.n, parallel_for));
  const auto shares = [&](uint32_t i) { return MaskOf(batch, i) == kStatic; };
  missing.erase(std::remove_if(missing.begin(), missing.end(), shares), missing.end());
  std::sort(missing.begin(), missing.end());
  return Learn(batch, std::move(missing), changes_.load(), parallel_for);
}

std::vector<uint32_t> AdaptiveTable::CountLookups(const AdaptiveKeys& batch,
                                                  const std::vector<uint32_t>& missing) {
  std::vector<uint32_t> with_use;
  uint64_t read = 0, absent = 0;
  for (size_t i = 0; i < batch.n; ++i) {
    const bool statics = MaskOf(batch, i) == kStatic;
    read += CountOf(batch, i);
    if (statics) absent += CountOf(batch, i);
    if (config_.max_rows > 0 && !statics) with_use.push_back(static_cast<uint32_t>(i));
  }
  for (uint32_t i : missing) absent += CountOf(batch, i);
  lookups_ += read;
  own_lookups_ += read - absent;
  return config_.max_rows == 0 ? missing : with_use;
}

std::vector<AdaptiveTable::Newcomer> AdaptiveTable::Newcomers(const AdaptiveKeys& batch,
                                                              const std::vector<uint32_t>& counted,
                                                              const std::vector<uint32_t>& missing,
                                                              const ParallelFor& parallel_for) {
  std::vector<Key> keys(counted.size());
  for (size_t i = 0; i < counted.size(); ++i) keys[i] = batch.keys[counted[i]];
  std::vector<int32_t> inverse(keys.size());
  const std::vector<Key> distinct =
      UniqueAndPartition(keys.data(), keys.size(), 1, inverse.data(), parallel_for).keys;
  std::vector<uint32_t> counts(distinct.size(), 0);
  std::vector<uint8_t> forced(distinct.size(), 0);
  for (size_t i = 0; i < counted.size(); ++i) {
    counts[inverse[i]] = Sum(counts[inverse[i]], CountOf(batch, counted[i]));
    forced[inverse[i]] |= MaskOf(batch, counted[i]) == kOwn;
  }
  const std::vector<uint32_t> uses = Count(distinct, counts);
  std::vector<uint8_t> has_row(distinct.size(), config_.max_rows > 0);
  if (config_.max_rows > 0) {
    std::unordered_set<Key> without;
    for (uint32_t i : missing) without.insert(batch.keys[i]);
    for (size_t u = 0; u < distinct.size(); ++u) has_row[u] = without.count(distinct[u]) == 0;
  }
  std::vector<Newcomer> newcomers;
  for (size_t u = 0; u < distinct.size(); ++u) {
    if (has_row[u] == 0 && (forced[u] != 0 || uses[u] >= config_.promote_after)) {
      newcomers.push_back({{uses[u], distinct[u]}, forced[u] != 0});
    }
  }
  return newcomers;
}

Status AdaptiveTable::Promote(const AdaptiveKeys& batch, std::vector<Newcomer> newcomers,
                              const ParallelFor& parallel_for) {
  EvictedRows gone;
  if (config_.max_rows > 0 && own_->size() + newcomers.size() > config_.max_rows) {
    SOK_ASSIGN_OR_RETURN(gone, MakeRoom(batch, &newcomers, parallel_for));
  }
  std::vector<Key> promoted;
  for (const Newcomer& newcomer : newcomers) promoted.push_back(newcomer.used.key);
  Status status = Promote(promoted, parallel_for);
  // Only now, after the new rows have copied their static rows: this may move them.
  Status moved = Demoted(gone, parallel_for);
  if (!status.ok() || !moved.ok()) return status.ok() ? moved : status;
  if (least_used_.filled()) {
    for (const Newcomer& newcomer : newcomers) least_used_.Add(newcomer.used);
  }
  return status;
}

std::vector<uint32_t> AdaptiveTable::Count(const std::vector<Key>& keys,
                                           const std::vector<uint32_t>& counts) {
  std::vector<uint32_t> buckets(keys.size()), estimates(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) buckets[i] = SketchBucketOf(keys[i]);
  sketch_->Add(keys.data(), buckets.data(), counts.data(), keys.size(), estimates.data());
  return estimates;
}

std::vector<uint32_t> AdaptiveTable::Estimate(const std::vector<Key>& keys) const {
  std::vector<uint32_t> buckets(keys.size()), estimates(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) buckets[i] = SketchBucketOf(keys[i]);
  sketch_->Estimate(keys.data(), buckets.data(), keys.size(), estimates.data());
  return estimates;
}

Result<EvictedRows> AdaptiveTable::MakeRoom(const AdaptiveKeys& batch,
                                            std::vector<Newcomer>* newcomers,
                                            const ParallelFor& parallel_for) {
  if (!least_used_.filled()) {
    std::vector<Key> keys;
    SOK_RETURN_IF_ERROR(own_->ForEachRow([&](Key key, RowRef) { keys.push_back(key); }));
    const std::vector<uint32_t> uses = Estimate(keys);
    least_used_.Begin(keys.size());
    for (size_t i = 0; i < keys.size(); ++i) least_used_.Offer({uses[i], keys[i]});
    least_used_.End();
  }
  std::sort(newcomers->begin(), newcomers->end(), [](const Newcomer& a, const Newcomer& b) {
    if (a.forced != b.forced) return a.forced;
    return a.used.rank != b.used.rank ? a.used.rank > b.used.rank : a.used.key < b.used.key;
  });
  const uint64_t room = config_.max_rows - std::min(config_.max_rows, own_->size());
  size_t entering = std::min<size_t>(room, newcomers->size());
  // Rows of keys of the batch stay, even of keys whose mask asks for the static row.
  KeySet in_use;
  in_use.Reserve(batch.n);
  for (size_t i = 0; i < batch.n; ++i) in_use.Insert(batch.keys[i]);
  const auto uses_of = [&](const std::vector<Key>& keys,
                           std::vector<std::optional<uint64_t>>* uses) {
    SOK_ASSIGN_OR_RETURN(auto without, own_->Missing(keys.data(), keys.size(), parallel_for));
    const std::vector<uint32_t> estimates = Estimate(keys);
    std::copy(estimates.begin(), estimates.end(), uses->begin());
    for (uint32_t i : without) (*uses)[i].reset();
    return Status();
  };
  SOK_ASSIGN_OR_RETURN(const auto taken, least_used_.Take(newcomers->size() - entering,
                                                          /*limit=*/UINT64_MAX, uses_of, in_use));
  std::vector<Key> leaving;
  for (const RankedKey& row : taken) {
    const Newcomer& newcomer = (*newcomers)[entering];
    // Counts at their greatest value do not say which row was used more: the old row stays.
    const bool used_as_often = newcomer.used.rank >= row.rank && row.rank < sketch_->max();
    if (!newcomer.forced && !used_as_often) break;
    leaving.push_back(row.key);
    ++entering;
  }
  const auto stay = taken.begin() + static_cast<std::ptrdiff_t>(leaving.size());
  least_used_.PutBack({stay, taken.end()});
  newcomers->resize(entering);
  return own_->Evict(leaving.data(), leaving.size(), parallel_for);
}

Status AdaptiveTable::Promote(const std::vector<Key>& keys, const ParallelFor& parallel_for) {
  if (keys.empty()) return Status();
  const std::vector<Key> buckets = BucketsOf(keys);
  const int dim = this->dim();
  std::vector<std::vector<float>> starts(keys.size());  // static rows with their slots
  SOK_RETURN_IF_ERROR(statics_->Visit(
      buckets.data(), buckets.size(),
      [&](size_t i, float* row, int slot_floats) {
        starts[i].assign(row, row + dim + slot_floats);
      },
      parallel_for));
  const uint64_t before = own_->size();
  Status status = own_->MakeRowsAs(
      keys.data(), keys.size(),
      [&](size_t i, float* row, int slot_floats) {
        const bool slots = config_.copy_slots && starts[i].size() == size_t(dim + slot_floats);
        std::copy_n(starts[i].begin(), slots ? dim + slot_floats : dim, row);
      },
      parallel_for);
  promoted_ += own_->size() - before;
  NoteMoved(keys);
  return status;
}

}  // namespace sok
