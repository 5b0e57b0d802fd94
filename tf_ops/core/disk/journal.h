// The journal keeps whole calls until the database has them.
//
// With durability="update" a call survives the process before it returns. Its rows, as they are
// after it, are appended to a file: one record a call, with a checksum, so that a kill leaves all
// of it or nothing. That is one sequential write, where RocksDB's own log comes with a skip list.
// The next publication (a flush) has all of these rows, and the files go; after a kill the next
// opening publishes what the files hold. With durability="sync" it survives the machine, too: the
// file is on the device before the call returns.
//
// Segments are files "sok-journal-<number>" in the storage's folder. See journal_reader.h for what
// is in them, and docs/reference/file-formats.md.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/disk/history.h"
#include "core/disk/row_codec.h"
#include "core/disk/written_note.h"

namespace sok {

constexpr char kJournalPrefix[] = "sok-journal-";
// The name of a segment's file, without its folder.
std::string JournalSegmentName(uint64_t number);
// Returns the number of the segment with that name; 0 for names of other files.
uint64_t JournalSegmentNumber(const std::string& name);

// Stands in front of a segment.
struct JournalSegmentHeader {
  static constexpr char kMagic[9] = "SOKJRNL2";
  // The magic of earlier versions, whose segments say nothing of the history. Their header ends
  // before it.
  static constexpr char kMagicBefore[9] = "SOKJRNL1";

  char magic[8];
  uint64_t number;
  uint64_t storage;  // the id of the storage whose calls these are
  // The calls follow what this opening has published, or `before`, the state that it has found.
  History history;
  History before;
  uint64_t checksum;  // XXH3 of the header up to here, seeded with the number
};

uint64_t SegmentChecksum(const JournalSegmentHeader& header);

// Stands in front of a record. After it come `meta_bytes` of named values, then rows in the format
// of RowBatch.
struct JournalRecordHeader {
  uint64_t bytes;  // the length of the part after the header
  uint32_t meta_bytes;
  // With durability="sync": how many bytes before this record, in its segment, were not known to be
  // on the device when it was written. 0: none.
  uint32_t unsynced;
  uint64_t checksum;  // XXH3 of the part after the header, seeded with the segment's number
  // XXH3 of the header up to here. Without it a damaged length could look like a record cut short
  // at the end of the file.
  uint64_t head_checksum;
};

uint64_t HeadChecksum(const JournalRecordHeader& header, uint64_t segment);

// Encode and decode named values. Decoding returns false for bytes that are not named values.
std::string EncodeNamedValues(const NamedValues& values);
bool DecodeNamedValues(std::string_view bytes, NamedValues* values);

// The journal of one storage. Thread-safe.
class Journal {
 public:
  // The journal is published at the latest when it is so long. It has a limit because it must be
  // read again after a kill.
  static constexpr uint64_t kMostBytes = uint64_t{1} << 30;

  // The first segment will have the number `first_number`; it is made by the first Reserve. The
  // journal is full at `most_bytes`, or at a quarter of the disk's free space if that is less.
  // With `sync`, records survive the machine. `history` returns the state of the database, and
  // `before` is the state that it was opened in. `note`: the folder's, which gets to know how far
  // segments have been written; null: there is none.
  Journal(std::string folder, uint64_t storage, uint64_t first_number,
          uint64_t most_bytes = kMostBytes, bool sync = false,
          std::function<History()> history = {}, History before = {},
          std::shared_ptr<WrittenNote> note = nullptr)
      : note_(std::move(note)),
        folder_(std::move(folder)),
        storage_(storage),
        history_(std::move(history)),
        before_(before),
        most_bytes_(most_bytes),
        sync_(sync),
        number_(first_number) {}
  ~Journal();
  Journal(const Journal&) = delete;

  // Space on the disk that is reserved for one record. The destructor gives it back.
  class Room {
   public:
    Room() = default;
    Room(Journal* journal, uint64_t bytes) : journal_(journal), bytes_(bytes) {}
    Room(Room&& other) noexcept { *this = std::move(other); }
    Room& operator=(Room&& other) noexcept;
    ~Room();

   private:
    friend class Journal;
    Journal* journal_ = nullptr;
    uint64_t bytes_ = 0;
  };
  // Sets space aside for a record, before anything changes, so that a full disk is found in time.
  // Errors: kResourceExhausted, and those of making a file.
  Result<Room> Reserve(uint64_t row_bytes);

  // Writes a record, which survives the process once this returns; with `sync` it survives the
  // machine, too, and records of several threads are synced together. After an error the journal is
  // broken until DropThrough: the changes must be published in another way. The record is not in
  // the journal then, unless syncing or noting has failed.
  Status Append(Room room, const NamedValues& meta, const std::vector<RowBatch>& rows);

  // Ends the segment, so that later records are in another one. Returns the number of the last
  // segment. A broken journal takes no more records, and stays as it is. While this or DropThrough
  // runs, no Append may run and no Room may exist.
  uint64_t EndSegment();
  // Forgets the segments up to a number, which the database has.
  void DropThrough(uint64_t number);

  // Takes no more records until DropThrough, which follows a publication: rows in memory have
  // changed in a way that no record describes.
  void Break();

  bool empty() const { return bytes() == 0; }
  uint64_t bytes() const;
  bool broken() const;
  // Returns true if the journal is so long that it should be published, or, with `twice`, twice as
  // long.
  bool full(bool twice = false) const;

 private:
  Status OpenSegment();
  // Syncs a new segment, and its name, to the device.
  Status SyncSegment(int file) const;
  // Syncs records up to that number to the device, or waits for another thread that does.
  Status SyncThrough(uint64_t record, std::unique_lock<std::mutex>* lock);
  Status Failed(const char* what, int error) const;
  void GiveBack(uint64_t bytes);
  std::string PathOf(uint64_t number) const;

  void CloseSegment();
  // Notes how far the segment has been written, and synced. After an error the journal is broken.
  Status Note(uint64_t bytes);

  const std::shared_ptr<WrittenNote> note_;
  const std::string folder_;
  const uint64_t storage_;
  const std::function<History()> history_;  // null: none is known
  const History before_;
  const uint64_t most_bytes_;
  const bool sync_;
  mutable std::mutex mu_;
  uint64_t number_;
  int file_ = -1;
  uint64_t end_ = 0;          // where the segment's records end
  uint64_t allocated_ = 0;    // how much of the segment's file has space on the disk
  uint64_t outstanding_ = 0;  // bytes that are reserved and not yet appended
  bool can_allocate_ = true;  // the file system can set space aside
  bool broken_ = false;
  // With sync_: how many records were appended, how many of them are on the device, and whether a
  // thread is syncing more; it notifies the others when it is done.
  uint64_t appended_ = 0;
  uint64_t synced_ = 0;
  uint64_t synced_end_ = 0;  // the end of the part of the segment that is on the device
  bool syncing_ = false;
  std::condition_variable synced_more_;
  uint64_t earlier_bytes_ = 0;  // bytes of earlier segments, which are closed
  uint64_t full_bytes_ = 0;     // the journal is full at this length; the free space decides
  struct Segment {
    uint64_t number;
    uint64_t bytes;  // 0 until it is closed
  };
  std::vector<Segment> segments_;  // ascending by number
};

}  // namespace sok
