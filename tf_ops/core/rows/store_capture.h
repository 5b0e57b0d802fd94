// The capture of a store in memory, shard by shard. Only memory_store.cc includes it.
#pragma once

#include <algorithm>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/rows/memory_store.h"

namespace sok {

template <typename Index>
class MemoryStore<Index>::StoreCapture final : public RowCapture {
 public:
  static Result<std::unique_ptr<RowCapture>> Begin(MemoryStore& store,
                                                   const CaptureOptions& options) {
    if (store.capturing_.exchange(true)) {
      return Status(Code::kFailedPrecondition,
                    "expected no save of the table to be under way, got one that is; wait for it");
    }
    auto capture = std::unique_ptr<StoreCapture>(new StoreCapture(store, options));
    if (Status status = capture->Start(); !status.ok()) return status;
    return std::unique_ptr<RowCapture>(std::move(capture));
  }

  ~StoreCapture() override {
    Release();
    if (!kept_) PutBack();
  }

  void Release() override {
    if (std::exchange(released_, true)) return;
    for (const auto& shard : store_.shards_) {
      std::lock_guard<SharedMutex> lock(shard->mu);
      if (shard->marks != nullptr) shard->marks->EndCapture();
    }
    store_.capturing_ = false;
    CaptureBudget::OfProcess().Wake();
  }

  uint64_t rows() const override { return rows_; }
  uint64_t size() const override { return size_; }
  const std::vector<Key>& removed() const override { return removed_; }

  Result<size_t> Next(const CapturedColumns& to, size_t room) override {
    if (released_) return size_t{0};
    size_t n = copies_.TakeInto(to, 0, room);
    while (n < room && shard_ < store_.shards_.size()) {
      Shard& shard = *store_.shards_[shard_];
      {
        std::shared_lock<SharedMutex> lock(shard.mu);
        if (options_.since != 0 && before_[shard_].is_listed) {
          const auto& listed = before_[shard_].listed;
          n += shard.marks->CopyListed(listed, shard.rows, to, n, room, &from_);
        } else {
          if (!listed_) ListKeys(shard);
          n += shard.marks->CopyOut(keys_, shard.rows, to, n, room, &from_);
        }
      }
      if (n == room) break;
      // No row waits any more, so no more copies are made.
      if (Status status = TakeKept(shard); !status.ok()) return status;
      ++shard_;
      from_ = 0;
      listed_ = false;
      n += copies_.TakeInto(to, n, room);
    }
    return n;
  }

  Result<size_t> NextKept(const CapturedColumns& to, size_t room) override {
    if (released_) return size_t{0};
    size_t n = copies_.TakeInto(to, 0, room);
    for (size_t s = shard_; n < room && s < store_.shards_.size(); ++s) {
      if (Status status = TakeKept(*store_.shards_[s]); !status.ok()) return status;
      n += copies_.TakeInto(to, n, room);
    }
    return n;
  }

  uint64_t kept_bytes() const override {
    uint64_t bytes = copies_.bytes();
    if (released_) return bytes;
    for (size_t s = shard_; s < store_.shards_.size(); ++s) {
      Shard& shard = *store_.shards_[s];
      std::shared_lock<SharedMutex> lock(shard.mu);
      bytes += shard.marks->kept()->bytes();
    }
    return bytes;
  }

  void Keep() override { kept_ = true; }

 private:
  StoreCapture(MemoryStore& store, const CaptureOptions& options)
      : store_(store), options_(options), copies_(store.layout()), before_(store.shards_.size()) {}

  std::atomic<uint64_t>& mark() { return store_.marks_[static_cast<size_t>(options_.reader)]; }

  // All shards are locked for the moment, so that what is captured is of one time.
  Status Start() {
    const bool noting = options_.mark != 0;
    for (const auto& shard : store_.shards_) shard->mu.lock();
    mark_before_ = mark();
    Status status;
    if (options_.since != 0 && options_.since != mark_before_) {
      status = Status(Code::kFailedPrecondition,
                      "expected the changes since the state that was saved before to be known, got "
                      "a table that has been replaced or saved by others since; save all rows");
    }
    for (size_t s = 0; s < store_.shards_.size() && status.ok(); ++s) {
      Shard& shard = *store_.shards_[s];
      if (shard.marks == nullptr) shard.marks = std::make_unique<ShardMarks>();
      RowBits waiting;
      waiting.words() = shard.rows.taken();
      if (noting) {
        before_[s] = shard.marks->StartNoting(options_.reader, shard.rows);
      } else if (options_.since != 0) {
        before_[s] = shard.marks->changes(options_.reader, shard.rows);
      }
      if (options_.since != 0) {
        waiting.KeepThoseOf(before_[s].rows);
        removed_.insert(removed_.end(), before_[s].removed.begin(), before_[s].removed.end());
      }
      rows_ += waiting.Count();
      size_ += shard.index.size();
      shard.marks->StartCapture(std::move(waiting), shard.rows.shared_layout());
    }
    if (status.ok() && noting) mark() = options_.mark;
    for (const auto& shard : store_.shards_) shard->mu.unlock();
    if (!status.ok()) options_.mark = 0;  // nothing was noted
    std::sort(removed_.begin(), removed_.end());
    removed_.erase(std::unique(removed_.begin(), removed_.end()), removed_.end());
    return status;
  }

  // Gives back the noted changes that this capture has taken, unless the store has forgotten them
  // meanwhile.
  void PutBack() {
    if (options_.mark == 0 || mark() != options_.mark) return;
    for (size_t s = 0; s < store_.shards_.size(); ++s) {
      Shard& shard = *store_.shards_[s];
      std::lock_guard<SharedMutex> lock(shard.mu);
      // Another capture may have begun, or all rows been replaced.
      if (mark() != options_.mark) return;
      if (!shard.marks->noting(options_.reader)) continue;
      if (mark_before_ == 0) {
        shard.marks->StopNoting(options_.reader);
      } else {
        shard.marks->PutBack(options_.reader, std::move(before_[s]), shard.rows);
      }
    }
    uint64_t own = options_.mark;
    mark().compare_exchange_strong(own, mark_before_);
  }

  // Finds the keys of the rows that wait. The shard's lock is shared.
  void ListKeys(const Shard& shard) {
    keys_.assign(shard.marks->waiting().words().size() * 64, 0);
    if (shard.marks->waiting().Count() > 0) {
      shard.index.ForEach([&](Key key, uint32_t row) {
        if (row < keys_.size()) keys_[row] = key;
      });
    }
    listed_ = true;
  }

  // Takes the copies that a shard has kept.
  Status TakeKept(Shard& shard) {
    std::lock_guard<SharedMutex> lock(shard.mu);
    if (shard.marks->lost()) {
      return Status(Code::kResourceExhausted,
                    "no memory for copies of rows that change while the table is saved; make more "
                    "available, or save without training meanwhile");
    }
    copies_.TakeAll(*shard.marks->kept());
    return Status();
  }

  MemoryStore& store_;
  CaptureOptions options_;
  uint64_t rows_ = 0, size_ = 0;
  std::vector<Key> removed_;
  bool kept_ = false, released_ = false;

  RowCopies copies_;                         // taken from shards and not written yet
  size_t shard_ = 0;                         // the one whose rows are copied
  uint32_t from_ = 0;                        // its next row
  bool listed_ = false;                      // whether keys_ is of that shard
  std::vector<Key> keys_;                    // by row
  uint64_t mark_before_ = 0;                 // what noted changes were since
  std::vector<ShardMarks::Changes> before_;  // by shard, for a capture that fails
};

}  // namespace sok
