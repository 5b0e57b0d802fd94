// Keys whose rows must not be evicted: keys of lookups whose gradients are still to come, and of
// gradients that wait for their commit. Only for tables with an eviction. Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <utility>

#include "core/base/types.h"
#include "core/rows/key_set.h"

namespace sok {

class RowClaim;

class RowsInUse : public std::enable_shared_from_this<RowsInUse> {
 public:
  // Claims the rows of keys (n) until the claim ends. `hold` keeps the array of keys alive.
  std::shared_ptr<RowClaim> Claim(const Key* keys, size_t n, std::shared_ptr<const void> hold);

  // Returns the claim of a deposit's rows: the claim of its lookup, or a new claim if that one has
  // ended or was handed to another deposit. It ends with the last copy of the result, so that it
  // does not outlive the gradients even if, say, a tape still holds the output of the lookup.
  std::shared_ptr<RowClaim> HandOn(const std::shared_ptr<RowClaim>& claim, const Key* keys,
                                   size_t n, std::shared_ptr<const void> hold);

  // Adds the claimed keys to a set. No claim begins or ends while the returned lock is held. So a
  // row is not evicted between a lookup's claim and its reading: the lookup finds the row, or finds
  // that it has gone.
  std::unique_lock<std::mutex> AddTo(KeySet* keys) const;

 private:
  friend class RowClaim;

  mutable std::mutex mu_;
  std::unordered_set<const RowClaim*> claims_;
};

// A claim, which ends in its destructor or by End.
class RowClaim {
 public:
  RowClaim(std::shared_ptr<RowsInUse> of, const Key* keys, size_t n,
           std::shared_ptr<const void> hold)
      : of_(std::move(of)), keys_(keys), n_(n), hold_(std::move(hold)) {}
  ~RowClaim() { End(); }
  RowClaim(const RowClaim&) = delete;

  void End() {
    if (ended_.exchange(true)) return;
    std::lock_guard<std::mutex> guard(of_->mu_);
    of_->claims_.erase(this);
  }

 private:
  friend class RowsInUse;

  const std::shared_ptr<RowsInUse> of_;
  const Key* const keys_;  // (n)
  const size_t n_;
  const std::shared_ptr<const void> hold_;
  std::atomic<bool> ended_{false}, handed_on_{false};
};

inline std::shared_ptr<RowClaim> RowsInUse::Claim(const Key* keys, size_t n,
                                                  std::shared_ptr<const void> hold) {
  auto claim = std::make_shared<RowClaim>(shared_from_this(), keys, n, std::move(hold));
  std::lock_guard<std::mutex> guard(mu_);
  claims_.insert(claim.get());
  return claim;
}

inline std::shared_ptr<RowClaim> RowsInUse::HandOn(const std::shared_ptr<RowClaim>& claim,
                                                   const Key* keys, size_t n,
                                                   std::shared_ptr<const void> hold) {
  const bool goes_on = claim != nullptr && !claim->ended_ && !claim->handed_on_.exchange(true);
  if (!goes_on) return Claim(keys, n, std::move(hold));
  return {claim.get(), [claim](RowClaim* ending) { ending->End(); }};
}

inline std::unique_lock<std::mutex> RowsInUse::AddTo(KeySet* keys) const {
  std::unique_lock<std::mutex> lock(mu_);
  size_t most = keys->size();
  for (const RowClaim* claim : claims_) most += claim->n_;
  keys->Reserve(most);
  for (const RowClaim* claim : claims_) {
    for (size_t i = 0; i < claim->n_; ++i) keys->Insert(claim->keys_[i]);
  }
  return lock;
}

}  // namespace sok
