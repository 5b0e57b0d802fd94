// Keeps one shard's rows on their way between the cache and the database in a file, with their
// places in memory. Reading one back is one system call, where RocksDB searches several files.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/status.h"
#include "core/base/status_macros.h"
#include "core/base/types.h"
#include "core/disk/row_codec.h"
#include "core/disk/spill_file.h"
#include "core/rows/hash_index.h"

namespace sok {

// A log in segments: a row's new version is written at the end, and segments with few valid rows
// are emptied. Not thread-safe: the shard that owns it holds the lock.
class Spill {
 public:
  static constexpr uint32_t kNone = HashIndex::kNone;

  // The header in front of a row's values in the file.
  struct Head {
    Key key;
    RowHeader header;
    // 1 if the database had no version of the row when this record was written. It counts only
    // while the record is dirty.
    uint64_t is_new;
  };

  // `file` is null if nothing can be spilled. So many spills share the file in equal parts; this is
  // one of them, counted from 0.
  Spill(SpillFile* file, size_t row_bytes, uint32_t number = 0, uint32_t shards = 1);
  ~Spill();
  Spill(const Spill&) = delete;

  // Returns whether rows of this size can be spilled at all.
  bool enabled() const { return file_ != nullptr && rows_per_segment_ >= kFewestRows; }
  size_t row_bytes() const { return row_bytes_; }  // of its values

  // Returns the place of a row, or kNone.
  uint32_t Find(Key key) const {
    return index_.size() == 0 ? kNone : index_.Find(key, HashIndex::Hash(key));
  }
  // Finds the places of many keys, with reads of the index that overlap.
  void FindAll(const std::vector<Key>& keys, std::vector<uint32_t>* places) const;
  Status Read(uint32_t place, Head* head, char* values) const;
  // Returns the bytes of a record: a Head, then the values.
  size_t record_bytes() const { return record_bytes_; }
  // Says where the row of a place lies in the file, for SpillFile::ReadRecords.
  SpillFile::Wanted Wanted(uint32_t place, uint32_t record) const {
    return {segments_[place >> shift_].number, place & ((uint32_t{1} << shift_) - 1), record};
  }
  bool dirty(uint32_t place) const {
    return Bit(segments_[place >> shift_].dirty, place & ((uint32_t{1} << shift_) - 1));
  }

  // A row to be written.
  struct Row {
    Head head;
    const char* values;
    bool dirty;  // this version is nowhere else
  };
  // Writes rows with distinct keys, in place of older versions. On an error some of them may be
  // there. The caller has reserved room for as many rows.
  Status Append(const std::vector<Row>& rows);
  // Returns whether there is room for so many more rows, which it keeps then: in the file, and in
  // this spill, which has its part of all places and a little more.
  bool Reserve(size_t rows) { return index_.size() + rows <= most_rows_ && file_->Reserve(rows); }

  // Forgets a row, if it is there, or several. Remove, Clear and Reset allocate no memory.
  void Remove(Key key);
  void RemoveAll(const std::vector<Key>& keys);
  void Clear();
  // Clears the spill, for rows of another size from then on.
  void Reset(size_t row_bytes);

  // Calls fn(key, place) for every row, in no order.
  template <typename Fn>
  void ForEachPlace(const Fn& fn) const {
    index_.ForEach(fn);
  }
  void SetAllClean();
  // Rows of a segment of the file, a bit a row.
  struct FrozenPart {
    uint32_t segment;
    std::vector<uint64_t> rows;
    uint32_t end;                // the number of rows that were written there, of any kind
    bool in_runs;                // see Segment
    std::vector<uint32_t> runs;  // the rows with which ascending runs of keys begin
  };
  // Returns where the dirty rows lie, which are clean from then on. Until Thaw their records stay
  // in the file, also those of rows that have a newer version or are gone by then, so that another
  // thread may read them there. Nothing may be frozen already. Where it throws, nothing is.
  std::vector<FrozenPart> Freeze();
  // Lets go of these records. If `dirty`, rows that have no newer version are dirty again.
  void Thaw(bool dirty);
  uint64_t dirty() const { return dirty_; }
  // Returns the memory of the places of rows.
  uint64_t index_bytes() const { return index_.bytes(); }

  // Returns true if most rows that DropOldest would forget are dirty.
  bool OldestAreDirty() const;
  // Empties the oldest segments, those whose filling began first, of those without frozen rows: an
  // eighth of them, at most kMostDropped. Calls fn(head, values) for each of their dirty rows, then
  // taken(), which must store what fn has collected, and forgets all rows of the segments. Returns
  // false without a segment but the one that is being filled.
  template <typename Fn, typename Taken>
  Result<bool> DropOldest(const Fn& fn, const Taken& taken) {
    const std::vector<uint32_t> oldest = Oldest();
    // Collected here, so that nothing has to read the file again, and may fail, after taken().
    std::vector<Key> keys;
    for (uint32_t s : oldest) {
      SOK_RETURN_IF_ERROR(ForEachOfSegment(s, [&](uint32_t row, const Head& head, const char* at) {
        keys.push_back(head.key);
        return Bit(segments_[s].dirty, row) ? fn(head, at) : Status();
      }));
    }
    if (oldest.empty()) return false;
    SOK_RETURN_IF_ERROR(taken());
    RemoveAll(keys);
    for (uint32_t s : oldest) FreeIfEmpty(s);
    return true;
  }

 private:
  struct Segment {
    uint32_t number = kNone;  // its number in the file; kNone: not in use
    uint64_t filled = 0;      // says in which order the segments began to be filled
    uint32_t rows = 0;        // how many rows were written
    uint32_t valid_rows = 0;
    std::vector<uint64_t> valid;  // a bit a row
    std::vector<uint64_t> dirty;
    std::vector<uint64_t> frozen;  // empty: none is
    Key last = 0;                  // the key of the last row
    // The numbers of the rows with which ascending runs of keys begin, the first one 0; not all of
    // them if there are more than kMostRuns.
    std::vector<uint32_t> runs;
  };
  static bool Bit(const std::vector<uint64_t>& bits, uint32_t i) {
    return (bits[i / 64] >> (i % 64) & 1) != 0;
  }
  static void SetBit(std::vector<uint64_t>* bits, uint32_t i) {
    (*bits)[i / 64] |= uint64_t{1} << (i % 64);
  }
  static void ClearBit(std::vector<uint64_t>* bits, uint32_t i) {
    (*bits)[i / 64] &= ~(uint64_t{1} << (i % 64));
  }

  // Calls fn(row, head, values) for the rows of a segment, until it returns an error. fn must not
  // change the spill.
  template <typename Fn>
  Status ForEachOfSegment(uint32_t s, const Fn& fn) const {
    const Segment& segment = segments_[s];
    if (segment.number == kNone || segment.valid_rows == 0) return Status();
    std::vector<char> bytes(segment.rows * record_bytes_);
    Status status = file_->Read(segment.number, 0, bytes.data(), bytes.size());
    const uint32_t rows = segment.rows;
    for (uint32_t i = 0; i < rows && status.ok(); ++i) {
      if (!Bit(segment.valid, i)) continue;
      const char* record = bytes.data() + i * record_bytes_;
      Head head;
      std::memcpy(&head, record, sizeof(head));
      status = fn(i, head, record + sizeof(head));
    }
    return status;
  }

  std::vector<uint32_t> Oldest() const;
  // Returns a segment with room for one more row, to be filled.
  uint32_t Filling();
  // Moves the valid rows out of the segment that has the fewest, and frees it. The segment that is
  // being filled is left alone.
  Status Compact();
  Status WriteRows(const std::vector<Row>& rows);
  // Returns the runs of a segment with rows at its end.
  static std::vector<uint32_t> RunsWith(const Segment& segment, const Row* rows, size_t n);
  void Invalidate(uint32_t place);
  void Free(uint32_t s);
  void FreeIfEmpty(uint32_t s);

  // The fewest rows that a segment must hold. Rows so long that fewer fit are not spilled.
  static constexpr uint32_t kFewestRows = 16;
  static constexpr size_t kMostDropped = 8;
  // The most runs of a segment that are told apart: more are as good as no order.
  static constexpr size_t kMostRuns = 64;

  SpillFile* const file_;
  uint64_t most_rows_ = 0;
  size_t row_bytes_ = 0;
  size_t record_bytes_ = 0;
  uint32_t rows_per_segment_ = 0;
  int shift_ = 0;  // a place is the number of its segment << shift_, plus that of the row in there
  HashIndex index_;
  std::vector<Segment> segments_;
  uint32_t filling_ = kNone;
  uint64_t filled_ = 0;
  uint64_t dirty_ = 0;
};

}  // namespace sok
