// Keys whose rows have gone, for callers that keep a copy of a table elsewhere. Nothing is noted
// before the first call. Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>
#include <vector>

#include "core/base/types.h"
#include "core/rows/key_set.h"

namespace sok {

struct RemovedSince {
  std::vector<Key> keys;  // distinct, in no order
  // True if these are all keys whose rows have gone since the call before. False in the first call,
  // if more rows have gone than were to be noted, and if all rows have been replaced.
  bool complete = false;
};

class RemovedKeys {
 public:
  bool noting() const { return noting_.load(std::memory_order_relaxed); }

  // Throws nothing: callers are in the middle of a removal, or are threads of the database. If
  // memory ends, the next result is not complete.
  void Add(const Key* keys, size_t n) noexcept {
    if (!noting()) return;
    std::lock_guard<std::mutex> guard(mu_);
    try {
      for (size_t i = 0; i < n && complete_; ++i) {
        if (!met_.Insert(keys[i])) continue;
        keys_.push_back(keys[i]);
        if (keys_.size() > most_) Clear(false);
      }
    } catch (const std::bad_alloc&) {
      Clear(false);
    }
  }

  // Notes that all rows have been replaced.
  void AddAll() {
    std::lock_guard<std::mutex> guard(mu_);
    Clear(false);
  }

  // Returns what was noted since the call before, and from now on notes at most `most` keys; with 0
  // it stops noting. `replacements` is the number that the store returns.
  RemovedSince Take(size_t most, uint64_t replacements) {
    std::lock_guard<std::mutex> guard(mu_);
    RemovedSince taken{std::move(keys_), complete_ && replacements == replacements_};
    if (!taken.complete) taken.keys.clear();
    Clear(most > 0);
    most_ = most;
    replacements_ = replacements;
    noting_ = most > 0;
    return taken;
  }

 private:
  void Clear(bool complete) {
    keys_ = {};
    met_ = {};
    complete_ = complete;
  }

  std::atomic<bool> noting_{false};
  std::mutex mu_;  // guards the fields below
  std::vector<Key> keys_;
  KeySet met_;  // the same
  size_t most_ = 0;
  uint64_t replacements_ = 0;
  bool complete_ = false;  // keys_ has all since the last Take
};

}  // namespace sok
