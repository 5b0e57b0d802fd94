// Reads the journal of a storage that was not closed: the newest version of each row and of each
// named value, as if its calls had been published.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/file.h"
#include "core/base/status.h"
#include "core/disk/history.h"
#include "core/disk/row_codec.h"
#include "core/disk/written_note.h"

namespace sok {

// Returns the numbers of the segments of a folder's journal, ascending.
Result<std::vector<uint64_t>> JournalSegments(const std::string& folder);
void RemoveJournalSegment(const std::string& folder, uint64_t number);

// A journal as it is on disk. Const methods are thread-safe.
class JournalReader {
 public:
  // Reads the segments after number `applied`, of the storage with that id, whose database is in
  // the state `history`. Reading ends at a record that is cut short or damaged if no whole one
  // follows and no call has returned that was written there, as `written` says: a kill or a power
  // failure has torn the last writes. Errors: kDataLoss, naming the file, for other damage, for a
  // segment that is missing and for one of another storage or another history; those of reading.
  static Result<std::unique_ptr<JournalReader>> Open(const std::string& folder, uint64_t storage,
                                                     uint64_t applied, const History& history,
                                                     const WrittenNote::Files& written = {});

  bool empty() const { return places_.empty() && meta_.empty(); }
  // Returns the number of the last segment, or `applied` if there is none after it.
  uint64_t last() const { return last_; }
  const NamedValues& meta() const { return meta_; }

  // The place in the files of a row's newest version.
  struct Place {
    RowKey key;
    uint32_t file;
    uint32_t size;  // 0: the row is removed
    uint64_t offset;
  };
  // The rows are ascending by key, and distinct.
  const std::vector<Place>& places() const { return places_; }
  // Returns the place of a key, or null.
  const Place* Find(const RowKey& key) const;
  // Reads the value, as the database would hold it.
  Status Read(const Place& place, std::string* value) const;

 private:
  JournalReader() = default;
  // Returns the place where the segment is torn; nullopt if it is whole.
  Result<std::optional<uint64_t>> ReadSegment(const std::string& path, uint64_t storage,
                                              uint64_t number);
  // Returns an error unless the calls of a segment follow the state that the database is in.
  Status CheckHistory(const std::string& path, const History& of_segment, const History& before);
  Status TakeRecord(std::string_view rows, uint64_t offset);

  std::vector<std::unique_ptr<InputFile>> files_;
  std::vector<Place> places_;
  NamedValues meta_;
  uint64_t last_ = 0;
  History history_;
  std::optional<uint64_t> opening_;  // the opening whose segments these are, once one is read
};

}  // namespace sok
