// A capture that is a copy of all rows in the host's memory, made when it begins.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "core/rows/row_capture.h"
#include "core/rows/row_store.h"

namespace sok::gpu {

// Keeps no copies of rows that change, and so uses nothing of the CaptureBudget.
class HostCapture final : public RowCapture {
 public:
  // `busy` is true as long as the capture is not released.
  HostCapture(int dim, int slot_floats, std::atomic<bool>* busy)
      : dim_(dim), slot_floats_(slot_floats), busy_(busy) {}
  ~HostCapture() override { Release(); }

  Status Copy(const RowStore::Frozen& rows) {
    keys_.reserve(rows.size());
    metas_.reserve(rows.size());
    floats_.reserve(rows.size() * Floats());
    return rows.ForEach([this](Key key, RowRef row) {
      keys_.push_back(key);
      metas_.push_back(*row.meta);
      floats_.insert(floats_.end(), row.embedding, row.embedding + Floats());
    });
  }

  uint64_t rows() const override { return keys_.size(); }
  uint64_t size() const override { return keys_.size(); }
  const std::vector<Key>& removed() const override { return removed_; }

  Result<size_t> Next(const CapturedColumns& to, size_t room) override {
    const size_t n = released_ ? 0 : std::min(room, keys_.size() - next_);
    for (size_t i = 0; i < n; ++i, ++next_) {
      const float* const row = floats_.data() + next_ * Floats();
      to.keys[i] = keys_[next_];
      to.update_nums[i] = metas_[next_].update_num;
      to.update_times[i] = metas_[next_].update_time;
      std::copy_n(row, dim_, to.embeddings + i * dim_);
      std::copy_n(row + dim_, slot_floats_, to.slots + i * slot_floats_);
    }
    return n;
  }
  Result<size_t> NextKept(const CapturedColumns& to, size_t room) override {
    return Next(to, room);
  }
  uint64_t kept_bytes() const override { return 0; }

  void Release() override {
    if (!std::exchange(released_, true)) *busy_ = false;
  }
  void Keep() override {}

 private:
  size_t Floats() const { return static_cast<size_t>(dim_ + slot_floats_); }

  const int dim_, slot_floats_;
  std::atomic<bool>* const busy_;
  std::vector<Key> keys_, removed_;
  std::vector<RowMeta> metas_;
  std::vector<float> floats_;  // (rows, Floats())
  size_t next_ = 0;
  bool released_ = false;
};

}  // namespace sok::gpu
