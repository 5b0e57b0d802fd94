#include "core/rows/shard_marks.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <mutex>
#include <new>
#include <utility>

#include "core/rows/row_copy.h"

namespace sok {
namespace {

constexpr size_t kChunkBytes = size_t{256} << 10;
// A row is prefetched so many entries before it is copied.
constexpr size_t kAhead = 12;

// Changed rows are listed with their keys up to an eighth of all, which is two bytes for each row;
// in a small shard up to 64.
size_t MostListed(uint32_t rows) { return std::max(64u, rows / 8); }

// Memory for copies that was used before: new memory costs the system more than the copy itself.
// Thread-safe.
class UsedChunks {
 public:
  static UsedChunks& OfProcess() {
    static auto* const chunks = new UsedChunks;
    return *chunks;
  }

  // Returns kChunkBytes, or null if there is no memory.
  std::unique_ptr<char[]> Take() {
    {
      std::lock_guard<std::mutex> guard(mu_);
      if (!free_.empty()) {
        auto chunk = std::move(free_.back());
        free_.pop_back();
        return chunk;
      }
    }
    return std::unique_ptr<char[]>(new (std::nothrow) char[kChunkBytes]);
  }
  void Give(std::unique_ptr<char[]> chunk) {
    std::lock_guard<std::mutex> guard(mu_);
    if (free_.size() < kMostFree) free_.push_back(std::move(chunk));
  }
  void Clear() {
    std::lock_guard<std::mutex> guard(mu_);
    free_.clear();
  }

 private:
  static constexpr size_t kMostFree = 256;  // 64 MiB

  std::mutex mu_;
  std::vector<std::unique_ptr<char[]>> free_;
};

// Writes rows of a layout into columns.
class RowColumns {
 public:
  RowColumns(const CapturedColumns& to, const RowLayout& layout)
      : to_(to),
        dim_(static_cast<size_t>(layout.dim())),
        slot_floats_(static_cast<size_t>(layout.slot_floats())),
        coding_(layout.coding()) {}

  // `row` is where the row lies, as its layout has it.
  void Put(size_t at, Key key, const RowMeta& meta, const char* row) const {
    to_.keys[at] = key;
    to_.update_nums[at] = meta.update_num;
    to_.update_times[at] = meta.update_time;
    float* const embedding = to_.embeddings + at * dim_;
    float* const slots = to_.slots + at * slot_floats_;
    if (coding_ != nullptr) {
      coding_->DecodeEmbedding(row, embedding);
      coding_->DecodeSlots(row, slots);
      return;
    }
    const auto* const floats = reinterpret_cast<const float*>(row);
    std::copy_n(floats, dim_, embedding);
    std::copy_n(floats + dim_, slot_floats_, slots);
  }

 private:
  const CapturedColumns& to_;
  const size_t dim_, slot_floats_;
  const RowCoding* const coding_;
};

// Returns the bytes of a row that hold something.
size_t BytesOf(const RowLayout& layout) {
  if (layout.coding() != nullptr) return layout.row_bytes();
  return (static_cast<size_t>(layout.dim()) + static_cast<size_t>(layout.slot_floats())) *
         sizeof(float);
}

void PrefetchRow(const RowSlabs& rows, uint32_t row) {
  PrefetchForCopy(rows.row(row), static_cast<int>(BytesOf(rows.layout()) / sizeof(float)));
  __builtin_prefetch(rows.meta(row));
}

}  // namespace

void RowBits::Add(const RowBits& other) {
  if (words_.size() < other.words_.size()) words_.resize(other.words_.size());
  for (size_t i = 0; i < other.words_.size(); ++i) words_[i] |= other.words_[i];
}

void RowBits::KeepThoseOf(const RowBits& other) {
  for (size_t i = 0; i < words_.size(); ++i) {
    words_[i] &= i < other.words_.size() ? other.words_[i] : 0;
  }
}

uint64_t RowBits::Count() const {
  uint64_t count = 0;
  for (uint64_t word : words_) count += static_cast<uint64_t>(__builtin_popcountll(word));
  return count;
}

size_t RowCopies::chunk_rows() const { return std::max<size_t>(1, kChunkBytes / record_bytes()); }

RowCopies::RowCopies(std::shared_ptr<const RowLayout> layout)
    : layout_(std::move(layout)), row_bytes_(BytesOf(*layout_)) {}

RowCopies::~RowCopies() {
  if (!chunks_.empty()) CaptureBudget::OfProcess().Remove(bytes());
}

RowCopies::RowCopies(RowCopies&& other) noexcept
    : layout_(other.layout_), row_bytes_(other.row_bytes_), chunks_(std::move(other.chunks_)) {
  other.chunks_.clear();
}

bool RowCopies::Add(Key key, const char* row, const RowMeta& meta) {
  if (chunks_.empty() || chunks_.back().rows == chunk_rows()) {
    Chunk chunk{chunk_bytes() <= kChunkBytes
                    ? UsedChunks::OfProcess().Take()
                    : std::unique_ptr<char[]>(new (std::nothrow) char[chunk_bytes()])};
    if (chunk.records == nullptr) return false;
    chunks_.push_back(std::move(chunk));
    CaptureBudget::OfProcess().Add(chunk_bytes());
  }
  Chunk& chunk = chunks_.back();
  char* const record = chunk.records.get() + chunk.rows++ * record_bytes();
  const Record head{key, meta};
  std::memcpy(record, &head, sizeof(head));
  std::memcpy(record + sizeof(head), row, row_bytes_);
  return true;
}

void RowCopies::TakeAll(RowCopies& other) {
  std::move(other.chunks_.begin(), other.chunks_.end(), std::back_inserter(chunks_));
  other.chunks_.clear();
}

size_t RowCopies::TakeInto(const CapturedColumns& to, size_t begin, size_t end) {
  size_t at = begin, freed = 0;
  const RowColumns columns(to, *layout_);
  while (at < end && !chunks_.empty()) {
    Chunk& chunk = chunks_.back();
    while (at < end && chunk.rows > 0) {
      const char* const record = chunk.records.get() + --chunk.rows * record_bytes();
      Record head;
      std::memcpy(&head, record, sizeof(head));
      columns.Put(at++, head.key, head.meta, record + sizeof(head));
    }
    if (chunk.rows > 0) break;
    if (chunk_bytes() <= kChunkBytes) UsedChunks::OfProcess().Give(std::move(chunk.records));
    chunks_.pop_back();
    freed += chunk_bytes();
  }
  if (freed > 0) CaptureBudget::OfProcess().Remove(freed);
  return at - begin;
}

void ShardMarks::Changes::List(Key key, uint32_t row, uint32_t end) {
  if (listed.size() < MostListed(end)) {
    listed.push_back({key, row});
  } else {
    is_listed = false;
    listed = {};
  }
}

ShardMarks::Changes ShardMarks::StartNoting(int reader, const RowSlabs& rows) {
  for (int other = 0; other < CaptureOptions::kReaders; ++other) {
    Notes& notes = notes_[other];
    if (other == reader || !notes.on) continue;
    notes.earlier = Joined(std::move(notes.earlier), changes_, rows);
  }
  noting_ = notes_[reader].on = true;
  const size_t listed = changes_.listed.size();
  Changes before =
      Joined(std::exchange(notes_[reader].earlier, {}), std::exchange(changes_, {}), rows);
  // The next round is likely to have as many changes, and growing the list while training waits
  // costs more than noting a change.
  changes_.listed.reserve(listed);
  return before;
}

void ShardMarks::StopNoting() {
  noting_ = false;
  changes_ = {};
  notes_ = {};
}

void ShardMarks::StopNoting(int reader) {
  notes_[reader] = {};
  if (std::none_of(notes_.begin(), notes_.end(), [](const Notes& each) { return each.on; })) {
    StopNoting();
  }
}

void ShardMarks::PutBack(int reader, Changes earlier, const RowSlabs& rows) {
  Notes& notes = notes_[reader];
  notes.earlier = Joined(std::move(earlier), std::move(notes.earlier), rows);
}

ShardMarks::Changes ShardMarks::Joined(Changes earlier, Changes later, const RowSlabs& rows) {
  if (earlier.rows.words().empty() && earlier.removed.empty()) return later;
  // A row that was changed and then removed is noted as removed. Its number may belong to another
  // row now, which was noted when it was made, or to a later one.
  RowBits taken;
  taken.words() = rows.taken();
  earlier.rows.KeepThoseOf(taken);
  later.removed.insert(later.removed.begin(), earlier.removed.begin(), earlier.removed.end());
  std::vector<NumberedKey> listed;
  if (later.is_listed && earlier.is_listed) {
    // Rows that were listed again since then have their last entries there.
    for (const NumberedKey& each : earlier.listed) {
      if (earlier.rows.Has(each.row) && !later.rows.Has(each.row)) listed.push_back(each);
    }
    listed.insert(listed.end(), later.listed.begin(), later.listed.end());
    later.is_listed = listed.size() <= MostListed(rows.end());
  } else {
    later.is_listed = false;
  }
  later.listed = later.is_listed ? std::move(listed) : std::vector<NumberedKey>();
  later.rows.Add(earlier.rows);
  return later;
}

void ShardMarks::StartCapture(RowBits waiting, std::shared_ptr<const RowLayout> layout) {
  waiting_ = std::move(waiting);
  kept_ = std::make_unique<RowCopies>(std::move(layout));
  lost_ = false;
}

void ShardMarks::EndCapture() {
  waiting_ = {};
  kept_.reset();
  UsedChunks::OfProcess().Clear();
}

void ShardMarks::KeepCopy(Key key, uint32_t row, const RowSlabs& rows) {
  lost_ |= !kept_->Add(key, rows.place(row), *rows.meta(row));
  waiting_.Clear(row);
}

void ShardMarks::KeepCopies(const NumberedKey* some, size_t n, const RowSlabs& rows) {
  for (size_t i = 0; i < n + kAhead; ++i) {
    if (i < n) PrefetchRow(rows, some[i].row);
    if (i < kAhead) continue;
    const auto [key, row] = some[i - kAhead];
    if (waiting_.Has(row)) KeepCopy(key, row, rows);
  }
}

size_t ShardMarks::CopyOut(const std::vector<Key>& keys, const RowSlabs& rows,
                           const CapturedColumns& to, size_t begin, size_t end, uint32_t* from) {
  std::vector<uint64_t>& words = waiting_.words();
  const RowColumns columns(to, rows.layout());
  size_t at = begin;
  size_t word = *from / 64;
  while (word < words.size() && at < end) {
    if (words[word] == 0) {
      ++word;
      continue;
    }
    const auto row = static_cast<uint32_t>(word * 64 + __builtin_ctzll(words[word]));
    words[word] &= words[word] - 1;
    columns.Put(at++, keys[row], *rows.meta(row), rows.place(row));
  }
  *from = static_cast<uint32_t>(word * 64);
  return at - begin;
}

size_t ShardMarks::CopyListed(const std::vector<NumberedKey>& listed, const RowSlabs& rows,
                              const CapturedColumns& to, size_t begin, size_t end, uint32_t* from) {
  const RowColumns columns(to, rows.layout());
  size_t at = begin, done = *from;
  // The walk goes backwards, so that it meets the last entry of a row first.
  for (; done < listed.size() && at < end; ++done) {
    const size_t left = listed.size() - done;
    if (left > kAhead) {
      const uint32_t ahead = listed[left - 1 - kAhead].row;
      if (waiting_.Has(ahead)) PrefetchRow(rows, ahead);
    }
    const auto [key, row] = listed[left - 1];
    if (!waiting_.Has(row)) continue;
    waiting_.Clear(row);
    columns.Put(at++, key, *rows.meta(row), rows.place(row));
  }
  *from = static_cast<uint32_t>(done);
  return at - begin;
}

}  // namespace sok
