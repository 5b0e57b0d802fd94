#include "core/tables/table_upkeep.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/base/status_macros.h"
#include "core/tables/row_checks.h"

namespace sok {

Status CheckKeysBelow(const Key* keys, size_t n, uint64_t limit) {
  if (limit == 0) return Status();
  for (size_t i = 0; i < n; ++i) {
    if (keys[i] < limit) continue;
    return Status(Code::kOutOfRange,
                  "expected keys in [0, " + std::to_string(limit) + "), got " +
                      std::to_string(static_cast<int64_t>(keys[i])) +
                      "; make the table larger, or give it a hash index for keys of any value");
  }
  return Status();
}

Status TableUpkeep::CheckRange(const Key* keys, size_t n) const {
  if (!spec_.direct) return Status();
  Status status = CheckKeysBelow(keys, n, spec_.max_rows * spec_.owners);
  if (!status.ok() || spec_.owners == 1) return status;
  for (size_t i = 0; i < n; ++i) {
    if (keys[i] % spec_.owners == spec_.owner) continue;
    return InvalidArgument("key " + std::to_string(keys[i]) + " belongs to worker " +
                           std::to_string(keys[i] % spec_.owners) + ", and this is worker " +
                           std::to_string(spec_.owner) + " of " + std::to_string(spec_.owners));
  }
  return Status();
}

Status TableUpkeep::MakeRows(const std::vector<Key>& keys, uint32_t now, std::vector<Key>* made,
                             const ParallelFor& parallel_for) {
  std::vector<uint8_t> is_made(made == nullptr ? 0 : keys.size());
  SOK_RETURN_IF_ERROR(store_->Upsert(
      keys.data(), keys.size(), spec_.max_rows, now,
      [&](size_t i, RowRef row, bool is_new) {
        if (!is_new) return;
        initializer_.Fill(keys[i], row.embedding, spec_.dim);
        if (made != nullptr) is_made[i] = 1;
      },
      parallel_for));
  for (size_t i = 0; i < is_made.size(); ++i) {
    if (is_made[i] != 0) made->push_back(keys[i]);
  }
  return Status();
}

Status TableUpkeep::TakeBack(const Status& failed, const std::vector<Key>& made,
                             const ParallelFor& parallel_for) {
  if (failed.ok() || made.empty()) return failed;
  uint64_t stay = made.size();
  static_cast<void>(OrNoMemory([&] {
    SOK_ASSIGN_OR_RETURN(stay, store_->Unmake(made.data(), made.size(), parallel_for));
    return Status();
  }));
  ++removals_;  // lookups of other threads may have found the rows
  if (evictor_ != nullptr) evictor_->Forget();
  return WithRowsThatStay(failed, stay);
}

Status TableUpkeep::Admit(const Key* keys, const int64_t* counts, bool observe,
                          std::vector<uint32_t>* positions, LookupCounts* met) {
  if (admission_ == nullptr || positions->empty()) return Status();
  std::sort(positions->begin(), positions->end());
  std::vector<Key> held(positions->size());
  std::vector<int64_t> times(counts == nullptr ? 0 : held.size());
  for (size_t i = 0; i < held.size(); ++i) held[i] = keys[(*positions)[i]];
  for (size_t i = 0; i < times.size(); ++i) times[i] = counts[(*positions)[i]];
  std::vector<uint8_t> admitted(held.size());
  if (observe) {
    SOK_RETURN_IF_ERROR(admission_->Observe(held.data(), counts == nullptr ? nullptr : times.data(),
                                            held.size(), admitted.data()));
  } else {
    admission_->Admitted(held.data(), held.size(), admitted.data());
  }
  size_t kept = 0;
  for (size_t i = 0; i < held.size(); ++i) {
    if (admitted[i] != 0) (*positions)[kept++] = (*positions)[i];
  }
  if (observe) met->refused += positions->size() - kept;
  positions->resize(kept);
  return Status();
}

Status TableUpkeep::AdmitMissing(const Key* keys, const int64_t* counts,
                                 std::vector<uint32_t>* positions, LookupCounts* met) {
  return Admit(keys, counts, /*observe=*/true, positions, met);
}

Result<std::vector<uint32_t>> TableUpkeep::Missing(const Key* keys, size_t n,
                                                   const ParallelFor& parallel_for) {
  return store_->Missing(keys, n, parallel_for);
}

void TableUpkeep::ForgetCounts(const std::vector<Key>& keys) {
  if (admission_ != nullptr) admission_->Forget(keys.data(), keys.size());
}

void TableUpkeep::NoteRemoved(const std::vector<Key>& keys) {
  ForgetCounts(keys);
  removed_->Add(keys.data(), keys.size());
}

Result<RemovedSince> TableUpkeep::TakeRemoved(size_t most, const ParallelFor& parallel_for) {
  if (!removed_->noting() && most > 0) {
    clock_->Watch(spec_.group, [removed = removed_](Key key) { removed->Add(&key, 1); });
  }
  RemovedSince taken = removed_->Take(most, store_->replacements());
  auto missing = store_->Missing(taken.keys.data(), taken.keys.size(), parallel_for);
  if (!missing.ok()) {
    removed_->AddAll();  // the keys that were taken are lost
    return missing.status();
  }
  std::vector<Key> gone;
  for (uint32_t i : missing.value()) gone.push_back(taken.keys[i]);
  taken.keys = std::move(gone);
  return taken;
}

std::shared_ptr<RowClaim> TableUpkeep::Claim(const LookupKeys& keys) {
  return in_use_ == nullptr ? nullptr : in_use_->Claim(keys.keys, keys.n, keys.hold);
}

void TableUpkeep::TransferPin(LookupKeys* keys) const {
  if (in_use_ == nullptr) return;
  keys->claim = in_use_->HandOn(keys->claim, keys->keys, keys->n, keys->hold);
}

Result<EvictedRows> TableUpkeep::EvictChosen(const std::function<Status(EvictedRows*)>& choose,
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

Result<EvictedRows> TableUpkeep::Evict(const Key* keys, size_t n, const ParallelFor& parallel_for) {
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

Result<EvictedRows> TableUpkeep::Evict(const std::vector<const Eviction*>& policies,
                                       const ParallelFor& parallel_for) {
  std::lock_guard<std::mutex> commit(commit_mu_);  // a row that is to go must not change
  return EvictBy(policies, {}, parallel_for);
}

Result<EvictedRows> TableUpkeep::EvictBy(const std::vector<const Eviction*>& policies,
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

Status TableUpkeep::EvictAfterStep(int64_t step, const Key* keys, size_t n,
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

Status TableUpkeep::MakeInRoom(const Key* keys, size_t n, const std::vector<Key>& newcomers,
                               uint32_t now, const std::function<Status()>& make,
                               const ParallelFor& parallel_for, std::vector<Key>* fitting) {
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

Status TableUpkeep::MakeRowsThatFit(const std::vector<Key>& keys, uint32_t now, uint64_t* left_out,
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

Status TableUpkeep::WithEvictions(const Status& failed, uint64_t evicted) const {
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

Status TableUpkeep::MakeInRoom(const Key* keys, size_t n, uint32_t now,
                               const std::function<Status()>& make,
                               const ParallelFor& parallel_for) {
  if (evictor_ == nullptr) return make();
  return MakeInRoom(keys, n, std::vector<Key>(keys, keys + n), now, make, parallel_for);
}

}  // namespace sok
