#include "core/disk/frozen_spill.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "core/base/merge_tree.h"
#include "core/base/page_memory.h"
#include "core/base/status_macros.h"

namespace sok {
namespace {

// The least bytes of a run that a merge holds.
constexpr size_t kLeastWindow = size_t{8} << 10;

Key KeyOf(const char* record) {
  Key key;
  std::memcpy(&key, record, sizeof(key));  // a Head begins with the key
  return key;
}

void Prefetch(const char* record, size_t bytes) {
  for (size_t at = 0; at < bytes; at += 64) __builtin_prefetch(record + at);
}

// Calls a visitor with the rows of records.
class RowVisitor {
 public:
  RowVisitor(size_t record_bytes, const DurableStore::FrozenRows::Visit& fn)
      : fn_(fn), record_bytes_(record_bytes) {}

  Status operator()(const char* record) {
    Spill::Head head;
    std::memcpy(&head, record, sizeof(head));
    // The record is dirty: only dirty rows are frozen.
    return fn_(head.key, head.header, {record + sizeof(head), record_bytes_ - sizeof(head)},
               head.is_new != 0);
  }

 private:
  const DurableStore::FrozenRows::Visit& fn_;
  const size_t record_bytes_;
};

// Holds a few records back while the processor fetches them, and passes them on in order. The
// records of a merge come from as many places in memory as there are runs, and each would be a
// cache miss.
class RecordsAhead {
 public:
  explicit RecordsAhead(size_t record_bytes) : record_bytes_(record_bytes) {}

  Status Add(const char* record, RowVisitor& visit) {
    Prefetch(record, record_bytes_);
    const char*& place = records_[added_++ % kMost];
    const char* const oldest = std::exchange(place, record);
    return oldest == nullptr ? Status() : visit(oldest);
  }
  Status VisitAll(RowVisitor& visit) {
    for (size_t i = 0; i < kMost; ++i) {
      const char* const record = std::exchange(records_[(added_ + i) % kMost], nullptr);
      if (record != nullptr) SOK_RETURN_IF_ERROR(visit(record));
    }
    added_ = 0;
    return Status();
  }

 private:
  static constexpr size_t kMost = 16;
  const size_t record_bytes_;
  const char* records_[kMost] = {};
  size_t added_ = 0;
};

// Calls fn(record) for the records of an array, in the order of their keys.
template <typename Fn>
Status VisitSorted(const std::vector<char>& records, size_t record_bytes, Fn&& fn) {
  constexpr size_t kRowsAhead = 12;  // between a prefetch and its use
  std::vector<std::pair<Key, const char*>> sorted;
  sorted.reserve(records.size() / record_bytes);
  for (size_t at = 0; at < records.size(); at += record_bytes) {
    sorted.emplace_back(KeyOf(records.data() + at), records.data() + at);
  }
  std::sort(sorted.begin(), sorted.end());
  for (size_t i = 0; i < sorted.size(); ++i) {
    if (i + kRowsAhead < sorted.size()) Prefetch(sorted[i + kRowsAhead].second, record_bytes);
    SOK_RETURN_IF_ERROR(fn(sorted[i].second));
  }
  return Status();
}

}  // namespace

// Reads a run through a window.
class FrozenSpill::RunReader {
 public:
  // The window is at least a record long.
  RunReader(const FrozenSpill& frozen, const Run& run, char* window, size_t window_bytes)
      : frozen_(frozen), run_(&run), window_(window), most_(window_bytes / frozen.record_bytes_) {}

  // Goes to the next record, or in the first call to the first one. Sets *more to true if there is
  // one.
  Status Next(bool* more) {
    for (;;) {
      for (; row_ < wanted_end_; ++row_) {
        if (!Wanted(row_)) continue;
        record_ = window_ + (row_++ - first_) * frozen_.record_bytes_;
        *more = true;
        return Status();
      }
      row_ = filled_;
      if (begun_ && row_ == run_->extents[extent_].end) {
        ++extent_;
        begun_ = false;
      }
      *more = extent_ < run_->extents.size();
      if (!*more) return Status();
      SOK_RETURN_IF_ERROR(Fill(run_->extents[extent_]));
    }
  }
  // Returns the record that Next has gone to. Its address stays valid until Next reads from the
  // file.
  const char* record() const { return record_; }
  // Returns true if the next call of Next reads from the file or ends, which overwrites the records
  // so far.
  bool ReadsNext() const { return row_ == wanted_end_; }

 private:
  Status Fill(const Extent& extent) {
    if (!begun_) row_ = extent.begin;
    begun_ = true;
    first_ = row_;
    filled_ = static_cast<uint32_t>(std::min<size_t>(extent.end, row_ + most_));
    rows_ = HasAll(first_, filled_) ? nullptr : run_->rows->data();
    wanted_end_ = filled_;
    while (wanted_end_ > first_ && !Wanted(wanted_end_ - 1)) --wanted_end_;
    return frozen_.file_.Read(extent.segment, first_ * frozen_.record_bytes_, window_,
                              (filled_ - first_) * frozen_.record_bytes_);
  }

  bool Wanted(uint32_t row) const {
    return rows_ == nullptr || (rows_[row / 64] >> (row % 64) & 1) != 0;
  }
  bool HasAll(uint32_t first, uint32_t end) const {
    if (run_->rows == nullptr) return true;
    for (uint32_t row = first; row < end;) {
      const uint32_t next = std::min(end, (row / 64 + 1) * 64);
      const uint64_t bits = ~uint64_t{0} >> (64 - (next - row)) << (row % 64);
      if (((*run_->rows)[row / 64] & bits) != bits) return false;
      row = next;
    }
    return true;
  }

  const FrozenSpill& frozen_;
  const Run* run_;
  char* const window_;
  const size_t most_;  // rows of a window
  // A bit for each row: true if the row belongs to the run. Null: all rows of the window do, and a
  // merge, which goes to another run with each row, saves a cache miss.
  const uint64_t* rows_ = nullptr;
  const char* record_ = nullptr;
  size_t extent_ = 0;
  bool begun_ = false;               // the extent has been
  uint32_t first_ = 0, filled_ = 0;  // the rows of the window
  uint32_t wanted_end_ = 0;          // behind the last one of them that belongs to the run
  uint32_t row_ = 0;                 // the next one
};

// Writes unsorted rows as sorted runs, to segments of its own, which its destructor frees.
class FrozenSpill::SortedParts {
 public:
  explicit SortedParts(const FrozenSpill& frozen)
      : frozen_(frozen),
        rows_of_segment_(SpillFile::kSegmentBytes / frozen.record_bytes_),
        capacity_(std::max<size_t>(frozen.memory_ / frozen.record_bytes_, 1) *
                  frozen.record_bytes_) {}
  SortedParts(const SortedParts&) = delete;
  ~SortedParts() {
    for (uint32_t segment : segments_) frozen_.file_.FreeSegment(segment);
  }

  Status Add(const char* record) {
    if (records_.capacity() == 0) records_.reserve(capacity_);
    records_.insert(records_.end(), record, record + frozen_.record_bytes_);
    return records_.size() == capacity_ ? WritePart() : Status();
  }
  // Writes the remaining rows, and adds the runs to the list.
  Status Finish(std::vector<Run>* runs) {
    SOK_RETURN_IF_ERROR(WritePart());
    std::vector<char>().swap(records_);
    for (Run& run : runs_) runs->push_back(std::move(run));
    return Status();
  }

 private:
  Status WritePart() {
    if (records_.empty()) return Status();
    runs_.push_back({{}, nullptr});
    std::vector<char> rows;  // rows of the segment that is being filled
    rows.reserve(rows_of_segment_ * frozen_.record_bytes_);
    SOK_RETURN_IF_ERROR(VisitSorted(records_, frozen_.record_bytes_, [&](const char* record) {
      rows.insert(rows.end(), record, record + frozen_.record_bytes_);
      return rows.size() == rows_of_segment_ * frozen_.record_bytes_ ? WriteSegment(&rows)
                                                                     : Status();
    }));
    records_.clear();
    return rows.empty() ? Status() : WriteSegment(&rows);
  }
  Status WriteSegment(std::vector<char>* rows) {
    segments_.reserve(segments_.size() + 1);
    segments_.push_back(frozen_.file_.AllocateSegment());
    runs_.back().extents.push_back(
        {segments_.back(), 0, static_cast<uint32_t>(rows->size() / frozen_.record_bytes_)});
    SOK_RETURN_IF_ERROR(frozen_.file_.Write(segments_.back(), 0, rows->data(), rows->size()));
    rows->clear();
    return Status();
  }

  const FrozenSpill& frozen_;
  const size_t rows_of_segment_;
  const size_t capacity_;
  std::vector<char> records_;
  std::vector<uint32_t> segments_;
  std::vector<Run> runs_;
};

FrozenSpill::FrozenSpill(SpillFile* file, size_t row_bytes, size_t memory)
    : file_(*file), record_bytes_(sizeof(Spill::Head) + row_bytes), memory_(memory) {}

void FrozenSpill::Add(std::vector<Spill::FrozenPart> segments) {
  for (Spill::FrozenPart& segment : segments) {
    for (uint64_t bits : segment.rows) rows_ += static_cast<size_t>(__builtin_popcountll(bits));
    segments_.push_back(std::move(segment));
  }
}

// Calls fn(record) for the rows of a segment, in the order in which they lie there.
template <typename Fn>
Status FrozenSpill::ForEachRecord(const Spill::FrozenPart& segment, const Fn& fn) const {
  const Run run{{{segment.segment, 0, segment.end}}, &segment.rows};
  std::vector<char> window(SpillFile::kSegmentBytes);
  RunReader reader(*this, run, window.data(), window.size());
  for (bool more = true;;) {
    SOK_RETURN_IF_ERROR(reader.Next(&more));
    if (!more) return Status();
    SOK_RETURN_IF_ERROR(fn(reader.record()));
  }
}

Status FrozenSpill::SortInMemory(const Visit& fn) const {
  std::vector<char> records;
  records.reserve(rows_ * record_bytes_);
  for (const Spill::FrozenPart& segment : segments_) {
    SOK_RETURN_IF_ERROR(ForEachRecord(segment, [&](const char* record) {
      records.insert(records.end(), record, record + record_bytes_);
      return Status();
    }));
  }
  return VisitSorted(records, record_bytes_, RowVisitor(record_bytes_, fn));
}

Status FrozenSpill::ForEach(const Visit& fn) const {
  return OrNoMemory([&] {
    if (rows_ * record_bytes_ <= memory_) return SortInMemory(fn);
    // Segments of long runs come first, as many as can have a window each.
    std::vector<const Spill::FrozenPart*> segments;
    for (const Spill::FrozenPart& segment : segments_) segments.push_back(&segment);
    std::stable_sort(segments.begin(), segments.end(),
                     [](const auto* a, const auto* b) { return a->runs.size() < b->runs.size(); });
    const size_t most_runs = memory_ / kLeastWindow;
    std::vector<Run> runs;
    SortedParts parts(*this);
    for (const Spill::FrozenPart* segment : segments) {
      const size_t n = segment->runs.size();
      if (segment->in_runs && runs.size() + n <= most_runs) {
        for (size_t i = 0; i < n; ++i) {
          const uint32_t end = i + 1 < n ? segment->runs[i + 1] : segment->end;
          runs.push_back({{{segment->segment, segment->runs[i], end}}, &segment->rows});
        }
      } else {
        SOK_RETURN_IF_ERROR(
            ForEachRecord(*segment, [&](const char* record) { return parts.Add(record); }));
      }
    }
    SOK_RETURN_IF_ERROR(parts.Finish(&runs));
    return Merge(runs, fn);
  });
}

Status FrozenSpill::Merge(const std::vector<Run>& runs, const Visit& fn) const {
  const size_t window =
      std::max(std::clamp<size_t>(memory_ / runs.size(), kLeastWindow, SpillFile::kSegmentBytes),
               record_bytes_);
  // Consecutive records come from different windows, and with small pages most would miss the TLB.
  const PageBuffer windows(runs.size() * window, /*huge_pages=*/true);
  if (windows.data() == nullptr) throw std::bad_alloc();
  std::vector<RunReader> readers;
  readers.reserve(runs.size());
  MergeTree tree(runs.size());
  for (size_t i = 0; i < runs.size(); ++i) {
    readers.emplace_back(*this, runs[i], windows.data() + i * window, window);
    bool more = false;
    SOK_RETURN_IF_ERROR(readers[i].Next(&more));
    if (more) tree.Set(i, KeyOf(readers[i].record()));
  }
  RowVisitor visit(record_bytes_, fn);
  RecordsAhead ahead(record_bytes_);
  for (tree.Start(); !tree.ended();) {
    RunReader& reader = readers[tree.run()];
    SOK_RETURN_IF_ERROR(ahead.Add(reader.record(), visit));
    if (reader.ReadsNext()) SOK_RETURN_IF_ERROR(ahead.VisitAll(visit));
    bool more = false;
    SOK_RETURN_IF_ERROR(reader.Next(&more));
    if (more) {
      // Prefetches the record after this one, which is needed only after records of nearly all
      // other runs.
      __builtin_prefetch(reader.record() + record_bytes_);
      tree.Next(KeyOf(reader.record()));
    } else {
      tree.End();
    }
  }
  SOK_RETURN_IF_ERROR(ahead.VisitAll(visit));
  return Status();
}

}  // namespace sok
