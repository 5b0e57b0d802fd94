// What the journal of a storage that was not closed holds: the newest version of each row, and of
// each named value, as if its calls had been published.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/file.h"
#include "core/base/status.h"
#include "core/disk/row_codec.h"

namespace sok {

// Segments of a folder's journal, ascending.
std::vector<uint64_t> JournalSegments(const std::string& folder);
void RemoveJournalSegment(const std::string& folder, uint64_t number);

// Const methods are thread-safe.
class JournalReader {
 public:
  // Reads the segments after `applied`, of the storage with that id. A record at the end that a
  // kill has cut short is left out: its call did not return. Errors: kDataLoss, naming the file,
  // for any other damage, a segment that is missing and one of another storage; those of reading.
  static Result<std::unique_ptr<JournalReader>> Open(const std::string& folder, uint64_t storage,
                                                     uint64_t applied);

  bool empty() const { return places_.empty() && meta_.empty(); }
  // The number of the last segment; `applied` if there is none after it.
  uint64_t last() const { return last_; }
  const NamedValues& meta() const { return meta_; }

  // A row's newest version: where it is in the files.
  struct Place {
    RowKey key;
    uint32_t file;
    uint32_t size;  // 0: the row is removed
    uint64_t offset;
  };
  // Ascending by key, distinct.
  const std::vector<Place>& places() const { return places_; }
  // The place of a key, or null.
  const Place* Find(const RowKey& key) const;
  // The value, as the database would hold it.
  Status Read(const Place& place, std::string* value) const;

 private:
  JournalReader() = default;
  Status ReadSegment(const std::string& path, uint64_t storage, uint64_t number, bool last);
  Status TakeRecord(std::string_view rows, uint64_t offset);

  std::vector<std::unique_ptr<InputFile>> files_;
  std::vector<Place> places_;
  NamedValues meta_;
  uint64_t last_ = 0;
};

}  // namespace sok
