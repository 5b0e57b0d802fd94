// The dirty rows of DiskStore at one moment, for a flush beside other calls.
#include <algorithm>
#include <cstring>
#include <deque>
#include <mutex>
#include <random>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "core/base/status_macros.h"
#include "core/disk/disk_store.h"
#include "core/disk/disk_store_shard.h"

namespace sok {

bool DiskStore::can_spill() const {
  const std::shared_lock<SharedMutex> lock(shards_[0]->mu);
  return shards_[0]->spill->enabled();
}

Result<uint64_t> DiskStore::SpillDirty(uint32_t part) {
  Shard& shard = *shards_[part];
  CacheRows& cached = shard.rows;
  uint64_t count = 0;
  const Status status = OrNoMemory([&] {
    std::vector<uint32_t> dirty;
    std::vector<Spill::Row> rows;
    for (uint32_t block = 0;; ++block) {
      // A block at a time, so that other calls need not wait for all of them.
      const std::lock_guard<SharedMutex> lock(shard.mu);
      if (block >= cached.block_numbers()) {
        shard.ChargeIndexes();
        return Status();
      }
      dirty.clear();
      rows.clear();
      cached.ForEachOfBlock(block, [&](uint32_t row) {
        if ((cached.state(row) & kRowDirty) == 0) return;
        dirty.push_back(row);
        rows.push_back(SpillRowOf(shard, row));
      });
      if (rows.empty()) continue;
      bool spilled = false;
      SOK_RETURN_IF_ERROR(SpillOrWrite(shard, rows, &spilled));
      for (uint32_t row : dirty) {
        cached.Unmark(row, spilled ? kRowDirty : kRowDirty | kRowNew);
        if (spilled) cached.Mark(row, kRowSpilled);
      }
      count += rows.size();
    }
  });
  if (!status.ok()) return status;
  return count;
}

// The rows lie in the spill's file, where nothing writes over them before Thaw. They are sorted in
// two passes, each of which reads and writes the file in long pieces: into parts by ranges of keys,
// and then each part in memory.
class DiskStore::FrozenSpill final : public FrozenRows {
 public:
  explicit FrozenSpill(const DiskStore* store)
      : file_(*store->core_->spill),
        floats_(store->dim_ + store->layout()->slot_floats()),
        record_bytes_(sizeof(Spill::Head) + floats_ * sizeof(float)) {}

  void Add(std::vector<Spill::FrozenPart> segments) {
    for (Spill::FrozenPart& segment : segments) {
      for (uint64_t bits : segment.rows) rows_ += static_cast<size_t>(__builtin_popcountll(bits));
      segments_.push_back(std::move(segment));
    }
  }

  Status ForEach(const VisitDirty& fn) const override {
    return OrNoMemory([&] {
      std::vector<char> records;
      const size_t parts = rows_ * record_bytes_ / kPartBytes + 1;
      if (parts == 1) {
        records.reserve(rows_ * record_bytes_);
        SOK_RETURN_IF_ERROR(ForEachRecord([&](const char* record) {
          records.insert(records.end(), record, record + record_bytes_);
          return Status();
        }));
        return VisitSorted(records, fn);
      }
      SOK_ASSIGN_OR_RETURN(const std::vector<Key> bounds, Bounds(parts));
      std::deque<PieceFile> pieces;
      for (size_t i = 0; i < parts; ++i) pieces.emplace_back(&file_);
      SOK_RETURN_IF_ERROR(ForEachRecord([&](const char* record) {
        const auto part = std::upper_bound(bounds.begin(), bounds.end(), KeyOf(record));
        return pieces[part - bounds.begin()].Append(record, record_bytes_);
      }));
      for (; !pieces.empty(); pieces.pop_front()) {
        SOK_RETURN_IF_ERROR(pieces.front().ReadAll(&records));
        SOK_RETURN_IF_ERROR(VisitSorted(records, fn));
      }
      return Status();
    });
  }

 private:
  // About the bytes of rows that are sorted in memory at a time.
  static constexpr size_t kPartBytes = size_t{48} << 20;
  static constexpr size_t kSamplesOfPart = 256;
  static constexpr size_t kRowsAhead = 12;  // between a prefetch and its use

  // Bytes in segments of their own, which go with it.
  class PieceFile {
   public:
    explicit PieceFile(SpillFile* file) : file_(*file) {}
    PieceFile(const PieceFile&) = delete;
    ~PieceFile() {
      for (uint32_t segment : segments_) file_.FreeSegment(segment);
    }
    Status Append(const char* bytes, size_t n) {
      if (buffer_.capacity() == 0) buffer_.reserve(kBuffer);
      while (n > 0) {
        const size_t now = std::min(n, kBuffer - buffer_.size());
        buffer_.insert(buffer_.end(), bytes, bytes + now);
        bytes += now;
        n -= now;
        if (buffer_.size() == kBuffer) SOK_RETURN_IF_ERROR(WriteBuffer());
      }
      return Status();
    }
    Status ReadAll(std::vector<char>* bytes) {
      bytes->resize(written_ + buffer_.size());
      for (size_t at = 0; at < written_; at += SpillFile::kSegmentBytes) {
        const size_t n = std::min(SpillFile::kSegmentBytes, written_ - at);
        SOK_RETURN_IF_ERROR(
            file_.Read(segments_[at / SpillFile::kSegmentBytes], 0, bytes->data() + at, n));
      }
      std::copy(buffer_.begin(), buffer_.end(), bytes->begin() + static_cast<int64_t>(written_));
      return Status();
    }

   private:
    static constexpr size_t kBuffer = size_t{64} << 10;  // a divisor of a segment's bytes

    Status WriteBuffer() {
      const size_t offset = written_ % SpillFile::kSegmentBytes;
      if (offset == 0) {
        segments_.reserve(segments_.size() + 1);
        segments_.push_back(file_.AllocateSegment());
      }
      SOK_RETURN_IF_ERROR(file_.Write(segments_.back(), offset, buffer_.data(), kBuffer));
      written_ += kBuffer;
      buffer_.clear();
      return Status();
    }

    SpillFile& file_;
    std::vector<uint32_t> segments_;
    std::vector<char> buffer_;
    size_t written_ = 0;
  };

  static Key KeyOf(const char* record) {
    Spill::Head head;
    std::memcpy(&head, record, sizeof(head));
    return head.key;
  }

  // Calls fn(record) for all of them, in no order.
  template <typename Fn>
  Status ForEachRecord(const Fn& fn) const {
    std::vector<char> bytes;
    for (const Spill::FrozenPart& segment : segments_) {
      size_t words = segment.rows.size();
      while (segment.rows[words - 1] == 0) --words;
      const auto last = static_cast<size_t>(__builtin_clzll(segment.rows[words - 1]));
      bytes.resize((64 * words - last) * record_bytes_);
      SOK_RETURN_IF_ERROR(file_.Read(segment.segment, 0, bytes.data(), bytes.size()));
      for (size_t word = 0; word < words; ++word) {
        for (uint64_t bits = segment.rows[word]; bits != 0; bits &= bits - 1) {
          const size_t row = 64 * word + static_cast<size_t>(__builtin_ctzll(bits));
          SOK_RETURN_IF_ERROR(fn(bytes.data() + row * record_bytes_));
        }
      }
    }
    return Status();
  }

  // Returns the keys between the parts, by rows that are drawn at random.
  Result<std::vector<Key>> Bounds(size_t parts) const {
    std::mt19937_64 rng(rows_);
    std::vector<Key> keys(parts * kSamplesOfPart);
    for (Key& key : keys) {
      const Spill::FrozenPart& segment = segments_[rng() % segments_.size()];
      uint64_t bits = 0;
      size_t word = 0;
      while (bits == 0) bits = segment.rows[word = rng() % segment.rows.size()];
      const size_t row = 64 * word + static_cast<size_t>(__builtin_ctzll(bits));
      Spill::Head head;
      SOK_RETURN_IF_ERROR(file_.Read(segment.segment, row * record_bytes_,
                                     reinterpret_cast<char*>(&head), sizeof(head)));
      key = head.key;
    }
    std::sort(keys.begin(), keys.end());
    std::vector<Key> bounds;
    for (size_t i = 1; i < parts; ++i) bounds.push_back(keys[i * kSamplesOfPart]);
    return bounds;
  }

  Status VisitSorted(const std::vector<char>& records, const VisitDirty& fn) const {
    std::vector<std::pair<Key, const char*>> sorted;
    sorted.reserve(records.size() / record_bytes_);
    for (size_t at = 0; at < records.size(); at += record_bytes_) {
      sorted.emplace_back(KeyOf(records.data() + at), records.data() + at);
    }
    std::sort(sorted.begin(), sorted.end());
    std::vector<float> row(floats_);
    for (size_t i = 0; i < sorted.size(); ++i) {
      if (i + kRowsAhead < sorted.size()) {
        const char* const ahead = sorted[i + kRowsAhead].second;
        for (size_t at = 0; at < record_bytes_; at += 64) __builtin_prefetch(ahead + at);
      }
      Spill::Head head;
      std::memcpy(&head, sorted[i].second, sizeof(head));
      std::memcpy(row.data(), sorted[i].second + sizeof(head), floats_ * sizeof(float));
      SOK_RETURN_IF_ERROR(fn(head.key, head.header, row.data(), floats_));
    }
    return Status();
  }

  SpillFile& file_;
  const size_t floats_;
  const size_t record_bytes_;
  std::vector<Spill::FrozenPart> segments_;
  size_t rows_ = 0;
};

std::unique_ptr<DurableStore::FrozenRows> DiskStore::FreezeDirty() {
  auto frozen = std::make_unique<FrozenSpill>(this);
  for (const auto& shard : shards_) {
    const std::lock_guard<SharedMutex> lock(shard->mu);
    frozen->Add(shard->spill->Freeze());
    shard->rows.ForEach([&](uint32_t row) { shard->rows.Unmark(row, kRowNew); });
  }
  return frozen;
}

void DiskStore::Thaw(bool published) {
  for (const auto& shard : shards_) {
    const std::lock_guard<SharedMutex> lock(shard->mu);
    shard->spill->Thaw(/*dirty=*/!published);
  }
}

}  // namespace sok
