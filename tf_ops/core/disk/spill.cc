#include "core/disk/spill.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/status_macros.h"

namespace sok {
namespace {

// Rows between a prefetch and its use.
constexpr size_t kAhead = 12;
// A spill may have so much more than an equal part of the rows: a 64th at least, since the numbers
// of keys differ, up to nine of them. So their indexes have different sizes, and are made anew at
// different times.
constexpr uint64_t kPartMore = 64, kSharesMore = 8;
constexpr uint64_t kFewestPlaces = 4096;

void Prefetch(const char* values, size_t bytes) {
  for (size_t at = 0; at < bytes; at += 64) __builtin_prefetch(values + at);
}

}  // namespace

Spill::Spill(SpillFile* file, size_t row_bytes, uint32_t number, uint32_t shards) : file_(file) {
  const uint64_t rows = file == nullptr ? 0 : file->most_rows() / shards;
  most_rows_ =
      std::max(kFewestPlaces, rows + rows / kPartMore * (1 + kSharesMore * number / shards));
  Reset(row_bytes);
}

void Spill::Reset(size_t row_bytes) {
  Clear();
  row_bytes_ = row_bytes;
  record_bytes_ = sizeof(Head) + row_bytes;
  shift_ = 0;
  rows_per_segment_ = static_cast<uint32_t>(SpillFile::kSegmentBytes / record_bytes_);
  while ((uint32_t{1} << shift_) < rows_per_segment_) ++shift_;
}

Spill::~Spill() { Clear(); }

void Spill::Clear() {
  for (uint32_t s = 0; s < segments_.size(); ++s) {
    if (segments_[s].number != kNone) Free(s);
  }
  if (file_ != nullptr) file_->Unreserve(index_.size());
  segments_.clear();
  index_ = HashIndex::ForAtMost(most_rows_);
  filling_ = kNone;
  dirty_ = 0;
}

void Spill::FindAll(const std::vector<Key>& keys, std::vector<uint32_t>* places) const {
  constexpr size_t kKeysAhead = 16;  // between a prefetch of the index and its use
  const size_t n = keys.size();
  places->assign(n, kNone);
  if (index_.size() == 0) return;
  for (size_t i = 0; i < n + 2 * kKeysAhead; ++i) {
    if (i < n) (*places)[i] = index_.Place(HashIndex::Hash(keys[i]));
    if (i >= kKeysAhead && i - kKeysAhead < n) {
      uint32_t& place = (*places)[i - kKeysAhead];
      place = index_.Candidate(HashIndex::Hash(keys[i - kKeysAhead]), place);
    }
    if (i >= 2 * kKeysAhead) {
      uint32_t& place = (*places)[i - 2 * kKeysAhead];
      const Key key = keys[i - 2 * kKeysAhead];
      place = index_.Resolve(key, HashIndex::Hash(key), place);
    }
  }
}

Status Spill::Read(uint32_t place, Head* head, char* values) const {
  const size_t offset = (place & ((uint32_t{1} << shift_) - 1)) * record_bytes_;
  return file_->Read(segments_[place >> shift_].number, offset, reinterpret_cast<char*>(head),
                     sizeof(*head), values, row_bytes_);
}

std::vector<uint32_t> Spill::Oldest() const {
  std::vector<uint32_t> oldest;
  for (uint32_t s = 0; s < segments_.size(); ++s) {
    if (segments_[s].number == kNone || s == filling_ || !segments_[s].frozen.empty()) continue;
    oldest.push_back(s);
  }
  std::sort(oldest.begin(), oldest.end(),
            [this](uint32_t a, uint32_t b) { return segments_[a].filled < segments_[b].filled; });
  oldest.resize(std::min(kMostDropped, (oldest.size() + 7) / 8));
  return oldest;
}

bool Spill::OldestAreDirty() const {
  uint64_t rows = 0, dirty = 0;
  for (const uint32_t s : Oldest()) {
    rows += segments_[s].valid_rows;
    for (const uint64_t bits : segments_[s].dirty) {
      dirty += static_cast<uint64_t>(__builtin_popcountll(bits));
    }
  }
  return dirty > rows / 2;
}

uint32_t Spill::Filling() {
  if (filling_ != kNone && segments_[filling_].rows < rows_per_segment_) return filling_;
  if (filling_ != kNone) FreeIfEmpty(std::exchange(filling_, kNone));
  const auto unused = std::find_if(segments_.begin(), segments_.end(),
                                   [](const Segment& s) { return s.number == kNone; });
  const auto s = static_cast<uint32_t>(unused - segments_.begin());
  // Allocations that may fail come first, so that no half-made segment is left.
  Segment segment;
  segment.valid.assign((rows_per_segment_ + 63) / 64, 0);
  segment.dirty = segment.valid;
  if (unused == segments_.end()) segments_.emplace_back();
  segment.number = file_->AllocateSegment();
  segment.filled = ++filled_;
  segments_[s] = std::move(segment);
  return filling_ = s;
}

Status Spill::Append(const std::vector<Row>& rows) {
  Status status = index_.Reserve(static_cast<uint32_t>(rows.size()));
  // A shard may have twice the segments that its valid rows need, and two more, beside those with
  // frozen rows. A tighter limit would make emptying segments more work.
  const auto in_use = [&] {
    return std::count_if(segments_.begin(), segments_.end(),
                         [](const Segment& s) { return s.number != kNone && s.frozen.empty(); });
  };
  while (status.ok() && static_cast<uint64_t>(in_use()) * rows_per_segment_ >
                            2 * (index_.size() + rows.size()) + 2 * uint64_t{rows_per_segment_}) {
    status = OrNoMemory([&] { return Compact(); });
  }
  if (!status.ok()) {
    file_->Unreserve(rows.size());
    return status;
  }
  return WriteRows(rows);
}

std::vector<uint32_t> Spill::RunsWith(const Segment& segment, const Row* rows, size_t n) {
  std::vector<uint32_t> runs = segment.runs;
  Key last = segment.last;
  for (size_t i = 0; i < n && runs.size() <= kMostRuns; ++i) {
    const auto at = static_cast<uint32_t>(segment.rows + i);
    if (at == 0 || rows[i].head.key < last) runs.push_back(at);
    last = rows[i].head.key;
  }
  return runs;
}

Status Spill::WriteRows(const std::vector<Row>& rows) {
  std::vector<char> bytes;
  std::vector<uint32_t> runs;
  size_t done = 0;
  Status status;
  while (done < rows.size()) {
    uint32_t s = kNone, first = 0;
    size_t n = 0;
    status = OrNoMemory([&] {
      s = Filling();
      first = segments_[s].rows;
      n = std::min<size_t>(rows.size() - done, rows_per_segment_ - first);
      bytes.resize(n * record_bytes_);
      runs = RunsWith(segments_[s], rows.data() + done, n);
      return Status();
    });
    if (!status.ok()) break;
    for (size_t i = 0; i < n; ++i) {
      const Row& row = rows[done + i];
      if (done + i + kAhead < rows.size()) Prefetch(rows[done + i + kAhead].values, row_bytes_);
      char* record = bytes.data() + i * record_bytes_;
      std::memcpy(record, &row.head, sizeof(Head));
      std::memcpy(record + sizeof(Head), row.values, row_bytes_);
    }
    status =
        file_->Write(segments_[s].number, first * record_bytes_, bytes.data(), n * record_bytes_);
    if (!status.ok()) break;
    segments_[s].runs.swap(runs);
    segments_[s].last = rows[done + n - 1].head.key;
    const auto key_of = [&](size_t i) { return rows[done + i].head.key; };
    index_.ForEachAhead(n, key_of, [&](size_t i) {
      const Row& row = rows[done + i];
      const Key key = row.head.key;
      Remove(key);
      const auto at = static_cast<uint32_t>(first + i);
      index_.Insert(key, HashIndex::Hash(key), (s << shift_) | at);
      Segment& segment = segments_[s];
      SetBit(&segment.valid, at);
      if (row.dirty) {
        SetBit(&segment.dirty, at);
        ++dirty_;
      }
      ++segment.valid_rows;
      ++segment.rows;
    });
    done += n;
  }
  if (!status.ok()) file_->Unreserve(rows.size() - done);
  return status;
}

Status Spill::Compact() {
  uint32_t emptiest = kNone;
  for (uint32_t s = 0; s < segments_.size(); ++s) {
    if (segments_[s].number == kNone || s == filling_ || !segments_[s].frozen.empty()) continue;
    if (emptiest == kNone || segments_[s].valid_rows < segments_[emptiest].valid_rows) emptiest = s;
  }
  if (emptiest == kNone) return Status();
  struct Copy {
    Row row;
    std::vector<char> values;
  };
  std::vector<Copy> copies;
  SOK_RETURN_IF_ERROR(
      ForEachOfSegment(emptiest, [&](uint32_t i, const Head& head, const char* values) {
        const bool dirty = Bit(segments_[emptiest].dirty, i);
        copies.push_back({{head, nullptr, dirty}, {values, values + row_bytes_}});
        return Status();
      }));
  std::vector<Row> rows;
  for (Copy& copy : copies) {
    copy.row.values = copy.values.data();
    rows.push_back(copy.row);
  }
  file_->ReserveAnyway(rows.size());  // they count twice until WriteRows removes the old ones
  Status status = WriteRows(rows);
  FreeIfEmpty(emptiest);
  return status;
}

void Spill::Invalidate(uint32_t place) {
  const uint32_t s = place >> shift_, i = place & ((uint32_t{1} << shift_) - 1);
  Segment& segment = segments_[s];
  ClearBit(&segment.valid, i);
  if (Bit(segment.dirty, i)) {
    ClearBit(&segment.dirty, i);
    --dirty_;
  }
  --segment.valid_rows;
  if (s != filling_) FreeIfEmpty(s);
}

void Spill::Remove(Key key) {
  const uint32_t place = index_.Erase(key, HashIndex::Hash(key));
  if (place == kNone) return;
  Invalidate(place);
  file_->Unreserve(1);
}

void Spill::RemoveAll(const std::vector<Key>& keys) {
  if (index_.size() == 0) return;
  index_.ForEachAhead(
      keys.size(), [&](size_t i) { return keys[i]; }, [&](size_t i) { Remove(keys[i]); });
}

void Spill::Free(uint32_t s) {
  file_->FreeSegment(segments_[s].number);
  segments_[s] = Segment();
}

void Spill::FreeIfEmpty(uint32_t s) {
  const Segment& segment = segments_[s];
  if (segment.number != kNone && segment.valid_rows == 0 && segment.frozen.empty()) Free(s);
}

void Spill::SetAllClean() {
  for (Segment& segment : segments_) std::fill(segment.dirty.begin(), segment.dirty.end(), 0);
  dirty_ = 0;
}

std::vector<Spill::FrozenPart> Spill::Freeze() {
  std::vector<FrozenPart> parts;
  std::vector<std::pair<uint32_t, std::vector<uint64_t>>> kept;
  for (uint32_t s = 0; s < segments_.size(); ++s) {
    const std::vector<uint64_t>& dirty = segments_[s].dirty;
    if (std::all_of(dirty.begin(), dirty.end(), [](uint64_t bits) { return bits == 0; })) continue;
    const bool in_runs = segments_[s].runs.size() <= kMostRuns;
    parts.push_back({segments_[s].number, dirty, segments_[s].rows, in_runs, segments_[s].runs});
    kept.emplace_back(s, dirty);
  }
  for (auto& [s, rows] : kept) segments_[s].frozen = std::move(rows);
  SetAllClean();
  return parts;
}

void Spill::Thaw(bool dirty) {
  for (uint32_t s = 0; s < segments_.size(); ++s) {
    Segment& segment = segments_[s];
    if (segment.frozen.empty()) continue;
    for (size_t i = 0; dirty && i < segment.frozen.size(); ++i) {
      const uint64_t again = segment.frozen[i] & segment.valid[i] & ~segment.dirty[i];
      segment.dirty[i] |= again;
      dirty_ += static_cast<uint64_t>(__builtin_popcountll(again));
    }
    segment.frozen = std::vector<uint64_t>();
    if (s != filling_) FreeIfEmpty(s);
  }
}

}  // namespace sok
