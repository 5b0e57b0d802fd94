#include "core/tables/row_evictor.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/base/status_macros.h"

namespace sok {
namespace {

// Bounds of the number of rows of a scan that the queue keeps, which is a quarter of the table.
// Each takes 16 bytes, and twice that while the queue is filled.
constexpr size_t kFewestRanked = 1024;
constexpr size_t kMostRanked = size_t{4} << 20;

// A scan that finds too few rows may have run while others removed rows; the next scan then needs
// fewer.
constexpr int kMostScans = 3;

std::vector<Key> KeysOf(const std::vector<RankedKey>& rows) {
  std::vector<Key> keys;
  keys.reserve(rows.size());
  for (const RankedKey& row : rows) keys.push_back(row.key);
  return keys;
}

}  // namespace

Result<std::vector<Key>> RowEvictor::Missing(const std::vector<Key>& newcomers,
                                             const ParallelFor& parallel_for) const {
  const std::vector<Key> distinct = DistinctKeys(newcomers);
  SOK_ASSIGN_OR_RETURN(auto positions,
                       store_->Missing(distinct.data(), distinct.size(), parallel_for));
  std::sort(positions.begin(), positions.end());
  std::vector<Key> missing;
  for (uint32_t i : positions) missing.push_back(distinct[i]);
  return missing;
}

Result<RowEvictor::Room> RowEvictor::MakeRoom(const Call& call, const std::vector<Key>& newcomers,
                                              bool all, uint32_t now,
                                              const ParallelFor& parallel_for) {
  Room room{DistinctKeys(newcomers), {}};
  if (Excess(room.made.size()) == 0) return room;
  SOK_ASSIGN_OR_RETURN(room.made, Missing(newcomers, parallel_for));
  if (room.made.empty() || Excess(room.made.size()) == 0) return room;
  SOK_RETURN_IF_ERROR(store_->LeaveOutExpired(now));
  while (Excess(room.made.size()) > 0) {  // again if all rows were replaced meanwhile
    const uint64_t seen = store_->replacements();
    if (seen != seen_) queue_.Clear();
    KeySet staying;
    staying.Reserve(call.n);
    for (size_t i = 0; i < call.n; ++i) staying.Insert(call.keys[i]);
    const auto claims = in_use_->AddTo(&staying);
    SOK_ASSIGN_OR_RETURN(auto chosen, Choose(room.made.size(), now, staying, parallel_for));
    const uint64_t excess = Excess(room.made.size());
    if (const size_t may_go = chosen.size(); may_go < excess) {
      const size_t fit = room.made.size() - std::min<size_t>(excess - may_go, room.made.size());
      if (all || fit == 0) queue_.PutBack(chosen);
      if (all) return Full(room.made.size(), may_go);
      room.left_out += room.made.size() - fit;
      room.made.resize(fit);
      if (fit == 0) return room;
    }
    room.gone = KeysOf(chosen);
    auto erased = store_->EraseForNewcomers(seen, room.gone.data(), room.gone.size(), parallel_for);
    if (erased.ok() && erased.value().has_value()) {
      evicted_ += *erased.value();
      break;
    }
    queue_.Clear();
    room.gone.clear();
    if (!erased.ok()) return erased.status();
  }
  return room;
}

Result<std::vector<RankedKey>> RowEvictor::Choose(size_t added, uint32_t now, const KeySet& staying,
                                                  const ParallelFor& parallel_for) {
  const uint64_t limit = policy_->Limit(now);
  const auto ranks_of = [&](const std::vector<Key>& keys,
                            std::vector<std::optional<uint64_t>>* ranks) {
    return RanksOf(keys, now, parallel_for, ranks);
  };
  std::vector<RankedKey> chosen;
  KeySet passed = staying;  // and the chosen rows: the queue may have them twice
  // RanksOf may remove rows that have expired, and then fewer must go.
  for (int scans = 0; chosen.size() < Excess(added);) {
    if (!queue_.filled() && scans == kMostScans) return chosen;
    if (!queue_.filled()) {
      ++scans;
      chosen.clear();  // Fill puts them into the queue again
      passed = staying;
      const size_t least = 2 * (staying.size() + Excess(added));
      SOK_RETURN_IF_ERROR(Fill(least, now));
      continue;
    }
    auto taken = queue_.Take(Excess(added) - chosen.size(), limit, ranks_of, passed);
    if (!taken.ok()) {
      queue_.Clear();
      return taken.status();
    }
    if (taken.value().empty() && queue_.filled()) return chosen;
    for (const RankedKey& row : taken.value()) {
      chosen.push_back(row);
      passed.Insert(row.key);
    }
  }
  const size_t needed = std::min<uint64_t>(chosen.size(), Excess(added));
  std::sort(chosen.begin(), chosen.end());
  queue_.PutBack({chosen.begin() + static_cast<std::ptrdiff_t>(needed), chosen.end()});
  chosen.resize(needed);
  return chosen;
}

Status RowEvictor::Fill(size_t least, uint32_t now) {
  const uint64_t seen = store_->replacements();
  SOK_ASSIGN_OR_RETURN(auto rows, store_->Freeze());
  const bool reads = policy_->reads_embedding();
  const uint64_t limit = policy_->Limit(now);
  queue_.Begin(
      std::max<size_t>(least, std::clamp<uint64_t>(max_rows_ / 4, kFewestRanked, kMostRanked)));
  Status status = rows->ForEach([&](Key key, RowRef row) {
    const uint64_t rank = policy_->Rank(*row.meta, reads ? row.embedding : nullptr, dim_, now);
    // A rank of the embedding may fall later, so rows that would stay now are not kept in the
    // queue.
    if (!reads || rank < limit) queue_.Offer({rank, key});
  });
  if (!status.ok()) {
    queue_.Clear();
    return status;
  }
  queue_.End();
  seen_ = seen;
  return status;
}

Status RowEvictor::RanksOf(const std::vector<Key>& keys, uint32_t now,
                           const ParallelFor& parallel_for,
                           std::vector<std::optional<uint64_t>>* ranks) const {
  std::vector<RowMeta> metas(keys.size());
  std::vector<uint8_t> exists(keys.size());
  Status status =
      store_->ReadMeta(keys.data(), keys.size(), metas.data(), exists.data(), parallel_for);
  std::vector<float> embeddings;
  if (status.ok() && policy_->reads_embedding()) {
    embeddings.resize(keys.size() * dim_);
    std::vector<uint32_t> missing;
    status = store_->Gather(keys.data(), keys.size(), embeddings.data(), {}, nullptr, &missing,
                            parallel_for);
    for (uint32_t i : missing) exists[i] = 0;
  }
  if (!status.ok()) return status;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (exists[i] == 0) continue;
    const float* row = embeddings.empty() ? nullptr : &embeddings[i * dim_];
    (*ranks)[i] = policy_->Rank(metas[i], row, dim_, now);
  }
  return status;
}

void RowEvictor::Add(const std::vector<Key>& keys, uint32_t now) {
  if (!queue_.filled() || policy_->reads_embedding()) return;
  const uint64_t rank = policy_->Rank(RowMeta{0, now}, nullptr, dim_, now);
  for (Key key : keys) queue_.Add({rank, key});
}

Status RowEvictor::Full(size_t added, size_t may_go) const {
  return Status(Code::kResourceExhausted,
                "the table is full: it holds " + std::to_string(store_->size()) + " of at most " +
                    std::to_string(max_rows_) + " rows, this call brings " + std::to_string(added) +
                    " new keys, and by the eviction '" + policy_->config().kind + "' only " +
                    std::to_string(may_go) +
                    " rows may go: never those of keys of the same call, nor of lookups whose "
                    "gradients wait to be applied; raise the limit, make batches smaller, or drop "
                    "gradients that nobody will apply");
}

}  // namespace sok
