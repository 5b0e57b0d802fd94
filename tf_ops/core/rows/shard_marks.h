// The marks of a shard: rows that have changed, and rows that a capture has yet to copy.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/types.h"
#include "core/rows/row_capture.h"
#include "core/rows/row_slabs.h"

namespace sok {

// A bit a row of a shard.
class RowBits {
 public:
  bool Has(uint32_t row) const {
    const size_t word = row / 64;
    return word < words_.size() && (words_[word] >> (row % 64) & 1) != 0;
  }
  void Set(uint32_t row) {
    const size_t word = row / 64;
    if (word >= words_.size()) words_.resize(word + 1 + words_.size() / 2);
    words_[word] |= uint64_t{1} << (row % 64);
  }
  void Clear(uint32_t row) {
    const size_t word = row / 64;
    if (word < words_.size()) words_[word] &= ~(uint64_t{1} << (row % 64));
  }
  void Add(const RowBits& other);
  void KeepThoseOf(const RowBits& other);
  uint64_t Count() const;
  // Makes room for rows below this number, and returns the words.
  uint64_t* Room(uint32_t rows) {
    if (words_.size() * 64 < rows) words_.resize(rows / 64 + 1);
    return words_.data();
  }
  std::vector<uint64_t>& words() { return words_; }
  const std::vector<uint64_t>& words() const { return words_; }

 private:
  std::vector<uint64_t> words_;
};

// Copies of rows, as they lie in memory, which count in the CaptureBudget of the process until they
// are taken.
class RowCopies {
 public:
  explicit RowCopies(std::shared_ptr<const RowLayout> layout);
  ~RowCopies();
  RowCopies(RowCopies&& other) noexcept;
  RowCopies& operator=(const RowCopies&) = delete;

  // Returns whether there was memory.
  bool Add(Key key, const char* row, const RowMeta& meta);
  // Takes all that another one has.
  void TakeAll(RowCopies& other);
  // Moves rows into columns from place `begin` on, as many as there are or have room before `end`.
  // Returns how many.
  size_t TakeInto(const CapturedColumns& to, size_t begin, size_t end);
  bool empty() const { return chunks_.empty(); }
  uint64_t bytes() const { return chunks_.size() * chunk_bytes(); }

 private:
  struct Record {
    Key key;
    RowMeta meta;
  };
  struct Chunk {
    std::unique_ptr<char[]> records;
    size_t rows = 0;
  };

  size_t record_bytes() const { return sizeof(Record) + (row_bytes_ + 7) / 8 * 8; }
  size_t chunk_rows() const;
  size_t chunk_bytes() const { return chunk_rows() * record_bytes(); }

  std::shared_ptr<const RowLayout> layout_;
  size_t row_bytes_;  // without what lies between rows
  std::vector<Chunk> chunks_;
};

// The marks of one shard. Not thread-safe: calls need the shard's exclusive lock, except CopyOut
// and CopyListed, which the holder of the capture may call with the lock shared.
class ShardMarks {
 public:
  struct NumberedKey {
    Key key;
    uint32_t row;
  };
  // Changes since a moment.
  struct Changes {
    RowBits rows;              // that were made or changed and are there: no free one is set
    std::vector<Key> removed;  // keys that went, in order
    // The rows with their keys, so that they need not be searched in the index, while they
    // are a small share of all. In the order of first changes: a row that went and was made again
    // for another key comes again, and its last entry counts.
    std::vector<NumberedKey> listed;
    bool is_listed = true;  // false: they became too many, and none is listed

    // Notes a change of a row, whose number is below `end`, as those of all rows are.
    void Note(Key key, uint32_t row, uint32_t end) {
      if (is_listed && !rows.Has(row)) List(key, row, end);
      rows.Set(row);
    }
    void List(Key key, uint32_t row, uint32_t end);
  };

  // Starts noting changes for a reader anew, and returns the changes that were noted for it before.
  // A change is noted once, and is handed to the other reader when this one starts.
  Changes StartNoting(int reader, const RowSlabs& rows);
  // Ends the notes of all readers.
  void StopNoting();
  void StopNoting(int reader);
  bool noting(int reader) const { return notes_[reader].on; }
  // Returns the changes since the start of a reader.
  Changes changes(int reader, const RowSlabs& rows) const {
    return Joined(notes_[reader].earlier, changes_, rows);
  }
  // Adds changes that were noted for a reader before its start.
  void PutBack(int reader, Changes earlier, const RowSlabs& rows);

  // Starts a capture: rows whose bit is set wait to be copied out.
  void StartCapture(RowBits waiting, std::shared_ptr<const RowLayout> layout);
  void EndCapture();
  bool capturing() const { return kept_ != nullptr; }

  // Called before a row changes. A new row may be noted as changed after it was made.
  void Changing(Key key, uint32_t row, const RowSlabs& rows) {
    if (waiting_.Has(row)) KeepCopy(key, row, rows);
    if (noting_) changes_.Note(key, row, rows.end());
  }
  // Does the same for many rows: numbers[i] is the row of key_of(i), or UINT32_MAX to leave it out.
  template <typename KeyOf>
  void ChangingMany(const uint32_t* numbers, size_t n, const KeyOf& key_of, const RowSlabs& rows) {
    // This runs in every step, so it does not branch on what a row is.
    if (capturing()) {
      const uint32_t end = static_cast<uint32_t>(waiting_.words().size()) * 64;
      ForSelected<true>(waiting_.words().data(), end, numbers, n, key_of,
                        [&](const NumberedKey* some, size_t m) { KeepCopies(some, m, rows); });
    }
    if (noting_) {
      const uint32_t end = rows.end();
      ForSelected<false>(changes_.rows.Room(end), end, numbers, n, key_of,
                         [&](const NumberedKey* some, size_t m) {
                           for (size_t i = 0; i < m; ++i) {
                             changes_.Note(some[i].key, some[i].row, end);
                           }
                         });
    }
  }
  // Called before a row is erased.
  void BeforeErase(Key key, uint32_t row, const RowSlabs& rows) {
    if (waiting_.Has(row)) KeepCopy(key, row, rows);
    if (!noting_) return;
    changes_.rows.Clear(row);
    changes_.removed.push_back(key);
  }
  // Returns how many keys are noted as removed, for the reader with the most of them.
  size_t removed() const {
    size_t most = 0;
    for (const Notes& each : notes_) most = std::max(most, each.earlier.removed.size());
    return most + changes_.removed.size();
  }
  // Called before all rows change or are erased: keeps copies of all rows that wait. `index` is the
  // shard's index.
  template <typename Index>
  void ChangingAll(const Index& index, const RowSlabs& rows) {
    if (!capturing()) return;
    index.ForEach([&](Key key, uint32_t row) {
      if (waiting_.Has(row)) KeepCopy(key, row, rows);
    });
  }

  // Copies rows that wait into columns from place `begin` on, as many as there are from row `*from`
  // on or have room before `end`, and sets `*from` to where to go on. keys[row] is the key of a row
  // that waits. Returns how many; their wait is over.
  size_t CopyOut(const std::vector<Key>& keys, const RowSlabs& rows, const CapturedColumns& to,
                 size_t begin, size_t end, uint32_t* from);
  // The same of rows that are listed with their keys; `*from` is how many entries are done.
  size_t CopyListed(const std::vector<NumberedKey>& listed, const RowSlabs& rows,
                    const CapturedColumns& to, size_t begin, size_t end, uint32_t* from);
  const RowBits& waiting() const { return waiting_; }
  RowCopies* kept() { return kept_.get(); }
  // Returns true if a copy could not be kept.
  bool lost() const { return lost_; }

 private:
  // The earlier changes of a reader: from its start to the last start of any reader. Later ones are
  // in `changes_`.
  struct Notes {
    bool on = false;
    Changes earlier;
  };

  // Returns the changes of two times, one after the other.
  static Changes Joined(Changes earlier, Changes later, const RowSlabs& rows);

  // Calls fn(some, m) for those of numbers[0..n) that are below `end` and whose bit is `kSet`, at
  // most 256 at a time. fn may flip the bits; the same row may be in there several times.
  template <bool kSet, typename KeyOf, typename Fn>
  static void ForSelected(const uint64_t* words, uint32_t end, const uint32_t* numbers, size_t n,
                          const KeyOf& key_of, const Fn& fn) {
    constexpr size_t kAtOnce = 256, kAhead = 96;
    if (end == 0) return;
    NumberedKey some[kAtOnce];
    uint32_t selected[kAtOnce];
    for (size_t begin = 0; begin < n; begin += kAtOnce) {
      const size_t last = n - begin < kAtOnce ? n : begin + kAtOnce;
      size_t m = 0;
      for (size_t i = begin; i < last; ++i) {
        const uint32_t ahead = i + kAhead < n ? numbers[i + kAhead] : 0;
        __builtin_prefetch(words + (ahead < end ? ahead : 0) / 64);
        const bool known = numbers[i] < end;
        const uint32_t row = known ? numbers[i] : 0;
        selected[m] = static_cast<uint32_t>(i - begin);
        m += static_cast<size_t>(known & ((words[row / 64] >> (row % 64) & 1) == kSet));
      }
      for (size_t j = 0; j < m; ++j) {
        some[j] = {key_of(begin + selected[j]), numbers[begin + selected[j]]};
      }
      if (m > 0) fn(some, m);
    }
  }

  void KeepCopy(Key key, uint32_t row, const RowSlabs& rows);
  // Keeps copies of those that still wait.
  void KeepCopies(const NumberedKey* some, size_t n, const RowSlabs& rows);

  bool noting_ = false;  // for any reader
  Changes changes_;
  std::array<Notes, CaptureOptions::kReaders> notes_;
  RowBits waiting_;
  std::unique_ptr<RowCopies> kept_;  // null without a capture
  bool lost_ = false;
};

}  // namespace sok
