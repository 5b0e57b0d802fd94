#include "core/disk/journal_reader.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <utility>

#include "core/base/folder.h"
#include "core/base/status_macros.h"
#include "core/disk/journal.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace sok {
namespace {

std::string PathOf(const std::string& folder, const std::string& name) {
  return folder + "/" + name;
}

constexpr char kRemedy[] =
    "; restore the folder from a checkpoint or a dump, or, to go on without the calls since the "
    "last flush, move its files sok-journal-* and sok-written away. A copy of a folder that is in "
    "use is not whole either: only checkpoint(path) makes one";

Status Damaged(const std::string& path, uint64_t offset, const std::string& why) {
  return Status(Code::kDataLoss, "the journal '" + path + "' is damaged at byte " +
                                     std::to_string(offset) + ": " + why + kRemedy);
}

constexpr size_t kReadTogether = size_t{1} << 20;

bool IsHead(const JournalRecordHeader& record, uint64_t segment, uint64_t room) {
  return record.bytes > 0 && record.bytes <= room && record.meta_bytes <= record.bytes &&
         record.head_checksum == HeadChecksum(record, segment);
}

// Reads the part of a record after its header. Returns true if its checksum is right.
Result<bool> ReadRecord(const InputFile& file, uint64_t offset, const JournalRecordHeader& record,
                        uint64_t segment, std::string* bytes) {
  bytes->resize(record.bytes);
  SOK_RETURN_IF_ERROR(file.ReadAt(offset + sizeof(record), bytes->data(), bytes->size()));
  return XXH3_64bits_withSeed(bytes->data(), bytes->size(), segment) == record.checksum;
}

// Looks for a whole record that begins at `offset` or later. `torn` is where the same segment is
// torn. Records that were written while that place was not on the device yet do not count: none of
// their calls has returned.
Result<std::optional<uint64_t>> FindRecord(const std::string& path, uint64_t segment,
                                           uint64_t offset, std::optional<uint64_t> torn) {
  SOK_ASSIGN_OR_RETURN(auto opened, InputFile::Open(path));
  const InputFile& file = *opened;
  JournalRecordHeader record;
  std::string piece, bytes;
  while (offset + sizeof(record) < file.bytes()) {
    piece.resize(std::min<uint64_t>(kReadTogether, file.bytes() - offset));
    SOK_RETURN_IF_ERROR(file.ReadAt(offset, piece.data(), piece.size()));
    const size_t places = piece.size() - sizeof(record) + 1;
    for (size_t i = 0; i < places; ++i) {
      std::memcpy(&record, piece.data() + i, sizeof(record));
      const uint64_t room = file.bytes() - offset - i - sizeof(record);
      if (!IsHead(record, segment, room)) continue;
      if (torn.has_value() && record.unsynced > 0 && record.unsynced >= offset + i - *torn)
        continue;
      SOK_ASSIGN_OR_RETURN(auto whole, ReadRecord(file, offset + i, record, segment, &bytes));
      if (whole) return std::optional<uint64_t>(offset + i);
    }
    offset += places;
  }
  return std::optional<uint64_t>();
}

// Checks that what calls had returned for is there. `torn`: the place where the segment is torn.
Status CheckReached(const std::string& path, uint64_t segment, std::optional<uint64_t> torn,
                    const WrittenNote::Files& written) {
  const auto noted = written.find(JournalSegmentName(segment));
  if (noted == written.end()) return Status();
  uint64_t end = 0;
  if (torn.has_value()) {
    end = *torn;
  } else {
    SOK_ASSIGN_OR_RETURN(const auto file, InputFile::Open(path));
    end = file->bytes();
  }
  if (end >= noted->second.bytes) return Status();
  return Damaged(path, end,
                 "what was written there cannot be read, and calls had returned up to byte " +
                     std::to_string(noted->second.bytes));
}

}  // namespace

Result<std::vector<uint64_t>> JournalSegments(const std::string& folder) {
  SOK_ASSIGN_OR_RETURN(const std::vector<std::string> names, FilesIn(folder));
  std::vector<uint64_t> numbers;
  for (const std::string& name : names) {
    const uint64_t number = JournalSegmentNumber(name);
    if (number > 0) numbers.push_back(number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

void RemoveJournalSegment(const std::string& folder, uint64_t number) {
  std::remove(PathOf(folder, JournalSegmentName(number)).c_str());
}

Result<std::unique_ptr<JournalReader>> JournalReader::Open(const std::string& folder,
                                                           uint64_t storage, uint64_t applied,
                                                           const History& history,
                                                           const WrittenNote::Files& written) {
  std::unique_ptr<JournalReader> reader(new JournalReader());
  reader->history_ = history;
  reader->last_ = applied;
  std::string torn_path;  // empty while everything is whole
  uint64_t torn_at = 0;
  SOK_ASSIGN_OR_RETURN(const std::vector<uint64_t> segments, JournalSegments(folder));
  for (uint64_t number : segments) {
    if (number <= applied) continue;
    const std::string path = PathOf(folder, JournalSegmentName(number));
    if (number != reader->last_ + 1) {
      return Status(Code::kDataLoss,
                    "the journal of '" + folder + "' is not whole: expected '" +
                        JournalSegmentName(reader->last_ + 1) + "' before '" + path +
                        "': the calls in it are missing, or this is not the database that the "
                        "journal goes with" +
                        kRemedy);
    }
    reader->last_ = number;
    std::optional<uint64_t> rest;  // the place where this segment is torn
    if (torn_path.empty()) {
      SOK_ASSIGN_OR_RETURN(auto torn, reader->ReadSegment(path, storage, number));
      SOK_RETURN_IF_ERROR(CheckReached(path, number, torn, written));
      if (!torn.has_value()) continue;
      torn_path = path;
      rest = torn;
      torn_at = *rest;
    }
    // Only the end may be torn. If whole records come after it, calls in between are missing.
    SOK_ASSIGN_OR_RETURN(auto later, FindRecord(path, number, rest.value_or(0), rest));
    if (!later.has_value()) continue;
    return Damaged(torn_path, torn_at,
                   "what was written there cannot be read, and calls follow it from byte " +
                       std::to_string(*later) + " of '" + path + "' on");
  }
  for (const auto& [name, file] : written) {
    if (file.bytes == 0 || JournalSegmentNumber(name) <= reader->last_) continue;
    return Status(Code::kDataLoss, "the journal '" + PathOf(folder, name) +
                                       "' is missing: it had calls that had returned" + kRemedy);
  }
  std::vector<Place>& places = reader->places_;
  // Equal keys stay in the order of their calls, so that the last one counts.
  std::stable_sort(places.begin(), places.end(), [](const Place& a, const Place& b) {
    return std::memcmp(a.key.bytes, b.key.bytes, RowKey::kBytes) < 0;
  });
  size_t kept = 0;
  for (size_t i = 0; i < places.size(); ++i) {
    const bool superseded =
        i + 1 < places.size() && places[i].key.view() == places[i + 1].key.view();
    if (!superseded) places[kept++] = places[i];
  }
  places.resize(kept);
  places.shrink_to_fit();
  return reader;
}

Result<std::optional<uint64_t>> JournalReader::ReadSegment(const std::string& path,
                                                           uint64_t storage, uint64_t number) {
  const std::optional<uint64_t> whole;
  SOK_ASSIGN_OR_RETURN(auto opened, InputFile::Open(path));
  const InputFile& file = *opened;
  JournalSegmentHeader head = {};
  uint64_t offset = offsetof(JournalSegmentHeader, history);
  if (file.bytes() < offset) return std::optional<uint64_t>(0);
  SOK_RETURN_IF_ERROR(file.ReadAt(0, &head, offset));
  const auto is = [&](const char* magic) {
    return std::memcmp(head.magic, magic, sizeof(head.magic)) == 0;
  };
  const bool has_history = is(JournalSegmentHeader::kMagic);
  if ((!has_history && !is(JournalSegmentHeader::kMagicBefore)) || head.number != number) {
    return std::optional<uint64_t>(0);
  }
  if (head.storage != storage) {
    return Status(Code::kDataLoss,
                  "the journal '" + path + "' is one of another storage" + kRemedy);
  }
  if (has_history) {
    if (file.bytes() < sizeof(head)) return std::optional<uint64_t>(0);
    SOK_RETURN_IF_ERROR(file.ReadAt(0, &head, sizeof(head)));
    if (head.checksum != SegmentChecksum(head)) return std::optional<uint64_t>(0);
    SOK_RETURN_IF_ERROR(CheckHistory(path, head.history, head.before));
    offset = sizeof(head);
  }
  files_.push_back(std::move(opened));
  std::string bytes;
  JournalRecordHeader record;
  while (offset < file.bytes()) {
    if (file.bytes() - offset < sizeof(record)) return std::optional<uint64_t>(offset);
    SOK_RETURN_IF_ERROR(file.ReadAt(offset, &record, sizeof(record)));
    if (!IsHead(record, number, file.bytes() - offset - sizeof(record))) {
      return std::optional<uint64_t>(offset);
    }
    SOK_ASSIGN_OR_RETURN(auto right, ReadRecord(file, offset, record, number, &bytes));
    if (!right) return std::optional<uint64_t>(offset);
    const std::string_view view = bytes;
    if (!DecodeNamedValues(view.substr(0, record.meta_bytes), &meta_) ||
        !TakeRecord(view.substr(record.meta_bytes), offset + sizeof(record) + record.meta_bytes)
             .ok()) {
      return Damaged(path, offset,
                     "its checksum is right, but its content is not in the format of a record");
    }
    offset += sizeof(record) + record.bytes;
  }
  return whole;
}

Status JournalReader::CheckHistory(const std::string& path, const History& of_segment,
                                   const History& before) {
  // The numbers of segments show that none is missing between the rows and the calls. An opening
  // publishes the segments of the one before, so all that are left are of one opening.
  const bool follows = history_.opening == of_segment.opening || history_ == before;
  if (!opening_.has_value()) opening_ = of_segment.opening;
  if (follows && *opening_ == of_segment.opening) return Status();
  return Status(Code::kDataLoss,
                "the calls in the journal '" + path +
                    "' do not follow the rows of the folder: files of two histories of one storage "
                    "are there, as where a copy that was trained on is copied over another" +
                    kRemedy);
}

Status JournalReader::TakeRecord(std::string_view rows, uint64_t offset) {
  const auto file = static_cast<uint32_t>(files_.size() - 1);
  const bool whole = RowBatch::ForEachOf(rows, [&](std::string_view key, std::string_view value) {
    Place place;
    std::memcpy(place.key.bytes, key.data(), RowKey::kBytes);
    place.file = file;
    place.size = static_cast<uint32_t>(value.size());
    place.offset = offset + static_cast<uint64_t>(value.data() - rows.data());
    places_.push_back(place);
  });
  return whole ? Status() : Status(Code::kDataLoss, "");
}

const JournalReader::Place* JournalReader::Find(const RowKey& key) const {
  const auto found = std::lower_bound(
      places_.begin(), places_.end(), key, [](const Place& place, const RowKey& wanted) {
        return std::memcmp(place.key.bytes, wanted.bytes, RowKey::kBytes) < 0;
      });
  return found != places_.end() && found->key.view() == key.view() ? &*found : nullptr;
}

Status JournalReader::Read(const Place& place, std::string* value) const {
  value->resize(place.size);
  return files_[place.file]->ReadAt(place.offset, value->data(), value->size());
}

}  // namespace sok
