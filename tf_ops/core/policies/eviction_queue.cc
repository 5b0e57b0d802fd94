#include "core/policies/eviction_queue.h"

namespace sok {
namespace {

// If the queue has more than twice the entries that it was filled with, the others are of rows that
// were removed in other ways.
constexpr size_t kSlack = 1024;
// The most ranks that are asked for at a time.
constexpr size_t kMostAsked = 8192;

}  // namespace

void EvictionQueue::Clear() {
  heap_.clear();
  heap_.shrink_to_fit();
  beyond_.reset();
  filled_ = false;
}

void EvictionQueue::Begin(size_t most) {
  Clear();
  most_ = std::max<size_t>(1, most);
}

void EvictionQueue::Offer(RankedKey row) {
  if (!Covers(row)) return;
  heap_.push_back(row);
  // The heap may hold twice as many, so that each row takes part in few cuts.
  if (heap_.size() >= 2 * most_) Cut();
}

void EvictionQueue::Cut() {
  const auto end = heap_.begin() + static_cast<std::ptrdiff_t>(most_);
  std::nth_element(heap_.begin(), end, heap_.end());
  beyond_ = *end;
  heap_.erase(end, heap_.end());
}

void EvictionQueue::End() {
  if (heap_.size() > most_) Cut();
  heap_.shrink_to_fit();
  std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
  most_ = heap_.size();
  filled_ = true;
}

void EvictionQueue::Add(RankedKey row) {
  if (!filled_ || !ranks_rise_ || !Covers(row)) return;
  if (heap_.size() >= 2 * most_ + kSlack) {
    // Rows that were removed in other ways have left entries, or the table has grown.
    Clear();
    return;
  }
  Push(row);
}

void EvictionQueue::Push(RankedKey row) {
  heap_.push_back(row);
  std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
}

RankedKey EvictionQueue::Pop() {
  std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
  const RankedKey row = heap_.back();
  heap_.pop_back();
  return row;
}

std::vector<RankedKey> EvictionQueue::PopSome(size_t n, uint64_t limit, const KeySet& staying,
                                              const KeySet& taken, std::vector<RankedKey>* kept) {
  std::vector<RankedKey> rows;
  KeySet met;
  while (rows.size() < n && !heap_.empty() && heap_.front().rank < limit) {
    const RankedKey row = Pop();
    if (staying.Contains(row.key)) {
      kept->push_back(row);
    } else if (!taken.Contains(row.key) && met.Insert(row.key)) {
      rows.push_back(row);  // a key that was removed and came back may have several entries
    }
  }
  return rows;
}

Result<std::vector<RankedKey>> EvictionQueue::Take(size_t n, uint64_t limit,
                                                   const RanksOf& ranks_of, const KeySet& staying) {
  std::vector<RankedKey> out, kept;
  KeySet taken;
  Status status;
  std::vector<Key> keys;
  std::vector<std::optional<uint64_t>> ranks;
  // Entries may be out of date, so each round asks for twice as many as the round before.
  for (size_t ask = n; filled_ && out.size() < n && status.ok(); ask *= 2) {
    std::vector<RankedKey> met =
        PopSome(std::clamp<size_t>(ask, 1, kMostAsked), limit, staying, taken, &kept);
    if (met.empty()) break;
    keys.clear();
    for (const RankedKey& row : met) keys.push_back(row.key);
    ranks.assign(keys.size(), std::nullopt);
    status = ranks_of(keys, &ranks);
    if (!status.ok()) {
      for (const RankedKey& row : met) Push(row);
      break;
    }
    std::vector<RankedKey> now;
    for (size_t i = 0; i < met.size(); ++i) {
      if (!ranks[i].has_value()) continue;
      const RankedKey row{ranks_rise_ ? *ranks[i] : met[i].rank, keys[i]};
      if (ranks_rise_ || *ranks[i] < limit) now.push_back(row);
    }
    std::sort(now.begin(), now.end());
    // The other entries belong to rows whose ranks are at least as high.
    for (const RankedKey& row : now) {
      const bool lowest = row.rank < limit && (heap_.empty() || !(row > heap_.front()));
      if (out.size() < n && lowest && Covers(row)) {
        out.push_back(row);
        taken.Insert(row.key);
      } else if (Covers(row)) {
        Push(row);
      }
    }
  }
  for (const RankedKey& row : kept) Push(row);
  if (!status.ok()) {
    for (const RankedKey& row : out) Push(row);
    return status;
  }
  // Rows that were left out may have the lowest ranks by now; or any rows, if ranks may fall.
  const bool ran_out = out.size() < n && (heap_.empty() || heap_.front().rank < limit);
  if (ran_out && (!ranks_rise_ || (beyond_.has_value() && beyond_->rank < limit))) filled_ = false;
  return out;
}

}  // namespace sok
