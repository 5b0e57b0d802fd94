#include "core/disk/disk_store.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <shared_mutex>
#include <string>
#include <thread>
#include <unordered_set>
#include <utility>

#include "core/base/status_macros.h"
#include "core/disk/disk_store_shard.h"
#include "core/rows/pipelined_find.h"
#include "core/rows/row_copy.h"

namespace sok {
namespace {

// At most so many shards of a call give back more memory than the call took.
constexpr uint32_t kTrimmedShards = 4;
constexpr int64_t kLookupCost = 30;  // nanoseconds a key, for ParallelFor

int ShardBits() {
  const unsigned wanted = 4 * std::max(1u, std::thread::hardware_concurrency());
  int bits = 3;
  while (bits < 6 && (1u << bits) < wanted) ++bits;
  return bits;
}

}  // namespace

DiskStore::DiskStore(std::shared_ptr<StorageCore> core, int group, const GroupMeta& meta)
    : core_(std::move(core)),
      group_(group),
      dim_(meta.dim),
      shard_bits_(ShardBits()),
      start_(meta),
      coding_(meta.form.plain() ? std::nullopt
                                : std::optional<RowCoding>(std::in_place, meta.form, dim_, 0)),
      rows_(static_cast<int64_t>(meta.rows)),
      counted_at_(meta.counted_at),
      layout_number_(meta.layout),
      layout_(std::make_shared<const RowLayout>(meta.dim, meta.state.slots, meta.form)),
      state_(meta.state) {
  for (uint32_t s = 0; s < shard_count(); ++s) {
    shards_.push_back(std::make_unique<Shard>(this, s, layout_));
    core_->memory.Register(shards_.back().get());
  }
}

DiskStore::~DiskStore() {
  for (const auto& shard : shards_) {
    core_->memory.Unregister(shard.get());
    core_->memory.Charge(shard->charged, 0);
  }
}

bool DiskStore::Expired(const Shard& shard, uint32_t row, uint32_t now) const {
  return core_->expiry->ttl() > 0 && core_->expiry->Expired(shard.rows.meta(row)->update_time, now);
}

bool DiskStore::IsCounted(const Shard& shard, uint32_t row) const {
  return (shard.rows.state(row) & kRowNew) != 0 || !Expired(shard, row, counted_at_);
}

uint32_t DiskStore::NotBeforeCount(uint32_t now) const {
  return core_->expiry->ttl() > 0 ? std::max<uint32_t>(now, counted_at_) : now;
}

void DiskStore::Partition(const std::vector<ShardPartition::Source>& sources,
                          const ParallelFor& parallel_for, ShardPartition* partition) const {
  partition->Build(
      sources, shard_count(), [this](Key key) { return ShardOf(Hash(key)); }, parallel_for);
}

template <typename Found>
std::vector<uint32_t> DiskStore::FindCached(const Key* keys, size_t n, const float* const* given,
                                            int prefetch_floats, uint32_t now,
                                            const ParallelFor& parallel_for,
                                            const Found& found) const {
  std::vector<uint32_t> rest;
  std::mutex rest_mu;
  parallel_for(n, kLookupCost + prefetch_floats / 4, [&](int64_t begin, int64_t end) {
    std::vector<uint32_t> absent;
    {
      const SharedLocks lock(shards_);
      FindRange<HashIndex, Shard>(
          keys, begin, end, given, prefetch_floats, [](Key key) { return Hash(key); },
          [this](uint64_t hash) -> const Shard& { return *shards_[ShardOf(hash)]; },
          [&](size_t i, const Shard* shard, uint32_t number, const float* row) {
            if (shard != nullptr && Expired(*shard, number, now)) {
              absent.push_back(static_cast<uint32_t>(i));
              return;
            }
            found(i, row, shard == nullptr);
            if (shard != nullptr) shard->rows.Touch(number);
          },
          [&](size_t i) { absent.push_back(static_cast<uint32_t>(i)); });
    }
    if (absent.empty()) return;
    std::lock_guard<std::mutex> guard(rest_mu);
    rest.insert(rest.end(), absent.begin(), absent.end());
  });
  return rest;
}

Status DiskStore::VisitShards(const ShardPartition& partition, const ParallelFor& parallel_for,
                              const std::function<Status(Shard& shard, const ShardEntry* entries,
                                                         size_t n, bool has_turn)>& visit) {
  Status failure;
  std::mutex failure_mu;
  // A shard that gives up rows has to write them, so in each call only some shards do that, in
  // turn.
  uint32_t shards = 0;
  for (uint32_t s = 0; s < shard_count(); ++s) shards += partition.size(s) > 0;
  const uint32_t turns = std::max<uint32_t>(1, shards / kTrimmedShards);
  const uint32_t turn = trims_.fetch_add(1, std::memory_order_relaxed);
  parallel_for(shard_count(), kShardCost, [&](int64_t first, int64_t last) {
    for (int64_t s = first; s < last; ++s) {
      if (partition.size(s) == 0) continue;
      Shard& shard = *shards_[s];
      const bool has_turn = (shard.number + turn) % turns == 0;
      const Status status = visit(shard, partition.begin(s), partition.size(s), has_turn);
      if (status.ok()) continue;
      std::lock_guard<std::mutex> guard(failure_mu);
      if (failure.ok()) failure = status;
    }
  });
  return failure;
}

Status DiskStore::ForEachShard(const ShardPartition& partition, const ParallelFor& parallel_for,
                               const VisitShard& fn, bool keep_room) {
  return VisitShards(partition, parallel_for,
                     [&](Shard& shard, const ShardEntry* entries, size_t n, bool has_turn) {
                       std::lock_guard<SharedMutex> lock(shard.mu);
                       Status status = fn(shard, entries, n);
                       if (status.ok() && !keep_room) TrimIfPossible(shard, has_turn);
                       return status;
                     });
}

template <typename Visit>
Status DiskStore::ForEachRest(const Key* keys, const std::vector<uint32_t>& rest, uint32_t now,
                              const ParallelFor& parallel_for, const Visit& visit) {
  std::vector<Key> wanted(rest.size());
  for (size_t i = 0; i < rest.size(); ++i) wanted[i] = keys[rest[i]];
  SOK_ASSIGN_OR_RETURN(const auto gate, core_->Enter(/*to_write=*/false));
  ShardPartition partition;
  Partition({{wanted.data(), wanted.size()}}, parallel_for, &partition);
  return ForEachShard(
      partition, parallel_for, [&](Shard& shard, const ShardEntry* entries, size_t n) {
        std::vector<uint32_t> rows(n);
        Status status = LoadEntries(shard, entries, n, now, /*keep=*/0, rows.data());
        if (status.ok()) visit(shard, entries, rows.data(), n);
        return status;
      });
}

template <typename T>
Status DiskStore::GatherAs(const Key* keys, size_t n, T* out, const GatherOptions& options,
                           const FillEmbedding& fill, std::vector<uint32_t>* missing,
                           const ParallelFor& parallel_for) {
  const uint32_t* const places = options.places;
  const auto place = [places](size_t i) -> size_t { return places == nullptr ? i : places[i]; };
  const uint32_t now = core_->expiry->Now();
  const std::optional<RowCoding>& coding = coding_;
  const auto lines = static_cast<int>(CodedBytes(start_.form.row, dim_) / sizeof(float));
  const auto copy = [&coding, dim = dim_](const float* row, T* to) {
    if (coding.has_value()) {
      coding->DecodeEmbedding(reinterpret_cast<const char*>(row), to);
    } else {
      CopyRow(row, dim, to);
    }
  };
  const std::vector<uint32_t> rest =
      FindCached(keys, n, options.given, lines, now, parallel_for,
                 [&](size_t i, const float* row, bool is_given) {
                   T* const to = out + place(i) * dim_;
                   is_given ? CopyRow(row, dim_, to) : copy(row, to);  // given rows are floats
                 });
  cache_hits_.fetch_add(options.asked(n) - rest.size(), std::memory_order_relaxed);
  if (rest.empty()) return Status();

  std::mutex missing_mu;
  return ForEachRest(keys, rest, now, parallel_for,
                     [&](Shard& shard, const ShardEntry* entries, const uint32_t* rows, size_t m) {
                       std::vector<uint32_t> absent;
                       std::vector<float> start(dim_);
                       std::vector<char> coded(coding.has_value() ? coding->bytes() : 0);
                       for (size_t i = 0; i < m; ++i) {
                         const uint32_t position = rest[entries[i].position];
                         T* to = out + place(position) * dim_;
                         if (rows[i] != CacheRows::kNone) {
                           copy(shard.rows.row(rows[i]), to);
                           continue;
                         }
                         if (fill) {
                           fill(entries[i].key, start.data());
                           // The vector has the bits of the row that training would make.
                           if (coding.has_value()) {
                             coding->RoundEmbedding(start.data(), coded.data());
                           }
                           CopyRow(start.data(), dim_, to);
                         }
                         absent.push_back(position);
                       }
                       if (missing == nullptr || absent.empty()) return;
                       std::lock_guard<std::mutex> guard(missing_mu);
                       missing->insert(missing->end(), absent.begin(), absent.end());
                     });
}

Status DiskStore::Gather(const Key* keys, size_t n, float* out, const GatherOptions& options,
                         const FillEmbedding& fill, std::vector<uint32_t>* missing,
                         const ParallelFor& parallel_for) {
  return GatherAs(keys, n, out, options, fill, missing, parallel_for);
}

Status DiskStore::Gather(const Key* keys, size_t n, BFloat16* out, const GatherOptions& options,
                         const FillEmbedding& fill, std::vector<uint32_t>* missing,
                         const ParallelFor& parallel_for) {
  return GatherAs(keys, n, out, options, fill, missing, parallel_for);
}

Result<std::vector<uint32_t>> DiskStore::Missing(const Key* keys, size_t n,
                                                 const ParallelFor& parallel_for) {
  const uint32_t now = core_->expiry->Now();
  const std::vector<uint32_t> rest = FindCached(keys, n, /*given=*/nullptr, 0, now, parallel_for,
                                                [](size_t, const float*, bool) {});
  std::vector<uint32_t> missing;
  if (rest.empty()) return missing;
  std::mutex missing_mu;
  SOK_RETURN_IF_ERROR(
      ForEachRest(keys, rest, now, parallel_for,
                  [&](Shard&, const ShardEntry* entries, const uint32_t* rows, size_t m) {
                    std::lock_guard<std::mutex> guard(missing_mu);
                    for (size_t i = 0; i < m; ++i) {
                      if (rows[i] == CacheRows::kNone) missing.push_back(rest[entries[i].position]);
                    }
                  }));
  return missing;
}

Status DiskStore::ReadMeta(const Key* keys, size_t n, RowMeta* metas, uint8_t* exists,
                           const ParallelFor& parallel_for) {
  std::vector<uint32_t> all(n);
  std::iota(all.begin(), all.end(), 0);
  return ForEachRest(keys, all, core_->expiry->Now(), parallel_for,
                     [&](Shard& shard, const ShardEntry* entries, const uint32_t* rows, size_t m) {
                       for (size_t i = 0; i < m; ++i) {
                         const uint32_t position = entries[i].position;
                         exists[position] = rows[i] != CacheRows::kNone;
                         metas[position] =
                             exists[position] != 0 ? *shard.rows.meta(rows[i]) : RowMeta{};
                       }
                     });
}

std::shared_ptr<const RowLayout> DiskStore::layout() const {
  std::lock_guard<std::mutex> guard(meta_mu_);
  return layout_;
}

GroupMeta DiskStore::meta() const {
  GroupMeta meta = start_;
  std::lock_guard<std::mutex> guard(meta_mu_);
  meta.state = state_;
  meta.layout = layout_number();
  meta.rows = size();
  meta.counted_at = counted_at_;
  return meta;
}

uint64_t DiskStore::index_bytes() const {
  const SharedLocks lock(shards_);
  uint64_t bytes = 0;
  for (const auto& shard : shards_) bytes += shard->index.bytes();
  return bytes;
}

uint64_t DiskStore::row_bytes() const {
  uint64_t bytes = 0;
  for (const auto& shard : shards_) bytes += shard->held();
  return bytes;
}

}  // namespace sok
