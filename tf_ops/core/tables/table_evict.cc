// Removes rows of a table: by policies, by key, and to make room.
#include <algorithm>
#include <string>
#include <utility>

#include "core/base/status_macros.h"
#include "core/tables/table.h"

namespace sok {

std::shared_ptr<RowClaim> Table::Claim(const LookupKeys& keys) {
  return in_use_ == nullptr ? nullptr : in_use_->Claim(keys.keys, keys.n, keys.hold);
}

Result<EvictedRows> Table::EvictChosen(const std::function<Status(EvictedRows*)>& choose,
                                       const ParallelFor& parallel_for) {
  for (;;) {  // again if a dump has replaced the storage's rows meanwhile
    const uint64_t seen = store_->replacements();
    EvictedRows evicted;
    SOK_RETURN_IF_ERROR(choose(&evicted));
    auto erased =
        store_->EraseUnlessReplaced(seen, evicted.keys.data(), evicted.keys.size(), parallel_for);
    ++removals_;
    if (!erased.ok()) return erased.status();
    if (!erased.value().has_value()) continue;
    NoteRemoved(evicted.keys);
    return evicted;
  }
}

Result<EvictedRows> Table::Evict(const Key* keys, size_t n, const ParallelFor& parallel_for) {
  std::vector<float> embeddings(n * spec_.dim);
  std::lock_guard<std::mutex> commit(commit_mu_);  // a row that is to go must not change
  return EvictChosen(
      [&](EvictedRows* evicted) {
        std::vector<uint32_t> missing;
        SOK_RETURN_IF_ERROR(CheckRange(keys, n));
        SOK_RETURN_IF_ERROR(store_->Gather(keys, n, embeddings.data(), {}, /*fill=*/nullptr,
                                           &missing, parallel_for));
        std::vector<uint8_t> absent(n, 0);
        for (uint32_t i : missing) absent[i] = 1;
        for (size_t i = 0; i < n; ++i) {
          if (absent[i] != 0) continue;
          evicted->keys.push_back(keys[i]);
          const float* row = embeddings.data() + i * spec_.dim;
          evicted->embeddings.insert(evicted->embeddings.end(), row, row + spec_.dim);
        }
        return Status();
      },
      parallel_for);
}

Result<EvictedRows> Table::Evict(const std::vector<const Eviction*>& policies,
                                 const ParallelFor& parallel_for) {
  std::lock_guard<std::mutex> commit(commit_mu_);  // a row that is to go must not change
  return EvictBy(policies, {}, parallel_for);
}

Result<EvictedRows> Table::EvictBy(const std::vector<const Eviction*>& policies,
                                   const KeySet& staying, const ParallelFor& parallel_for) {
  const uint32_t now = this->now();
  const int dim = spec_.dim;
  auto evicted = EvictChosen(
      [&](EvictedRows* chosen) {
        SOK_ASSIGN_OR_RETURN(auto rows, store_->Freeze());
        return rows->ForEach([&](Key key, RowRef row) {
          bool goes = false;
          for (const Eviction* policy : policies) {
            goes |= policy->Rank(*row.meta, row.embedding, dim, now) < policy->Limit(now);
          }
          if (!goes || staying.Contains(key)) return;
          chosen->keys.push_back(key);
          chosen->embeddings.insert(chosen->embeddings.end(), row.embedding, row.embedding + dim);
        });
      },
      parallel_for);
  if (evicted.ok()) evicted_ += evicted.value().keys.size();
  return evicted;
}

Status Table::EvictAfterStep(int64_t step, const Key* keys, size_t n,
                             const ParallelFor& parallel_for) {
  if (eviction_ == nullptr) return Status();
  const uint32_t now = this->now();
  if (!eviction_->Due(step, now)) return Status();
  KeySet staying;
  staying.Reserve(n);
  for (size_t i = 0; i < n; ++i) staying.Insert(keys[i]);
  const auto claims = in_use_->AddTo(&staying);
  auto evicted = EvictBy({eviction_.get()}, staying, parallel_for);
  if (evicted.ok()) {
    eviction_->Passed(now);
    return Status();
  }
  return evicted.status().Within(
      "the step has been taken, and is not to be repeated; to evict rows by '" +
      eviction_->config().kind + "' after it failed: ");
}

Status Table::MakeInRoom(const Key* keys, size_t n, const std::vector<Key>& newcomers, uint32_t now,
                         const std::function<Status()>& make, const ParallelFor& parallel_for,
                         std::vector<Key>* fitting) {
  if (evictor_ == nullptr) return make();
  const uint64_t evicted = evictor_->evicted();
  for (;;) {
    const uint64_t seen = store_->replacements();
    auto room =
        evictor_->MakeRoom({keys, n}, newcomers, /*all=*/fitting == nullptr, now, parallel_for);
    if (!room.ok()) return WithEvictions(room.status(), evicted);
    if (!room.value().gone.empty()) ++removals_;
    NoteRemoved(room.value().gone);
    if (fitting != nullptr) *fitting = room.value().made;
    Status status = make();
    if (status.ok()) {
      evictor_->Add(room.value().made, now);
      return status;
    }
    // Rows may have been made in spite of the error, and the queue does not know them.
    evictor_->Forget();
    const Status failed = WithEvictions(status, evicted);
    if (status.code() != Code::kResourceExhausted) return failed;
    // A dump that has replaced the storage's rows meanwhile may have filled the table again.
    if (store_->replacements() != seen) continue;
    // Rows of the call may have expired meanwhile, and must be made anew, which needs more room.
    const auto missing = evictor_->Missing(newcomers, parallel_for);
    const size_t known = room.value().made.size() + room.value().left_out;
    if (!missing.ok() || missing.value().size() <= known) return failed;
  }
}

Status Table::MakeRowsThatFit(const std::vector<Key>& keys, uint32_t now, uint64_t* left_out,
                              std::vector<Key>* made, const ParallelFor& parallel_for) {
  const std::vector<Key> newcomers = DistinctKeys(keys);
  std::vector<Key> fitting = newcomers;
  const auto make = [&] { return MakeRows(fitting, now, made, parallel_for); };
  const uint64_t max_rows = spec_.max_rows;
  Status status;
  if (evictor_ != nullptr || max_rows == 0) {
    status = MakeInRoom(keys.data(), keys.size(), newcomers, now, make, parallel_for, &fitting);
  } else {
    status = store_->LeaveOutExpired(now);
    for (bool again = status.ok(); again;) {
      const uint64_t rows = store_->size();
      const uint64_t fit =
          std::min<uint64_t>(newcomers.size(), max_rows - std::min(rows, max_rows));
      fitting.assign(newcomers.begin(), newcomers.begin() + static_cast<std::ptrdiff_t>(fit));
      status = make();
      // Lookups that have made rows at the same time may have left less room.
      again = status.code() == Code::kResourceExhausted && store_->size() > rows;
    }
  }
  *left_out = newcomers.size() - fitting.size();
  return status;
}

Status Table::WithEvictions(const Status& failed, uint64_t evicted) const {
  const uint64_t rows = evictor_ == nullptr ? 0 : evictor_->evicted() - evicted;
  if (failed.ok() || rows == 0) return failed;
  return ErrorOrLiteral(
      failed.code(),
      "memory has ended in the midst of a call, for which other rows have gone by the eviction",
      [&] {
        return failed.Within("", "; to make room for the call " + std::to_string(rows) +
                                     " rows have gone by the eviction '" +
                                     eviction_->config().kind + "'");
      });
}

Status Table::MakeInRoom(const Key* keys, size_t n, uint32_t now,
                         const std::function<Status()>& make, const ParallelFor& parallel_for) {
  if (evictor_ == nullptr) return make();
  return MakeInRoom(keys, n, std::vector<Key>(keys, keys + n), now, make, parallel_for);
}

}  // namespace sok
