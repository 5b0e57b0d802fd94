#include "core/disk/journal_reader.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "core/base/folder.h"
#include "core/disk/journal.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace sok {
namespace {

std::string PathOf(const std::string& folder, const std::string& name) {
  return folder + "/" + name;
}

constexpr char kRemedy[] =
    "; move the files sok-journal-* of the folder away to go on without those calls, or restore "
    "the "
    "folder from a checkpoint or a dump";

Status Damaged(const std::string& path, uint64_t offset) {
  return Status(Code::kDataLoss, "the journal '" + path + "' is damaged at byte " +
                                     std::to_string(offset) +
                                     ": what was written from there on cannot be read" + kRemedy);
}

}  // namespace

std::vector<uint64_t> JournalSegments(const std::string& folder) {
  std::vector<uint64_t> numbers;
  const size_t prefix = sizeof(kJournalPrefix) - 1;
  for (const std::string& name : FilesIn(folder)) {
    if (name.compare(0, prefix, kJournalPrefix) != 0) continue;
    char* end = nullptr;
    const uint64_t number = std::strtoull(name.c_str() + prefix, &end, 10);
    if (*end == '\0' && number > 0) numbers.push_back(number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

void RemoveJournalSegment(const std::string& folder, uint64_t number) {
  std::remove(PathOf(folder, JournalSegmentName(number)).c_str());
}

Result<std::unique_ptr<JournalReader>> JournalReader::Open(const std::string& folder,
                                                           uint64_t storage, uint64_t applied) {
  std::unique_ptr<JournalReader> reader(new JournalReader());
  const std::vector<uint64_t> segments = JournalSegments(folder);
  reader->last_ = applied;
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
    Status status = reader->ReadSegment(path, storage, number, number == segments.back());
    if (!status.ok()) return status;
    reader->last_ = number;
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

Status JournalReader::ReadSegment(const std::string& path, uint64_t storage, uint64_t number,
                                  bool last) {
  auto opened = InputFile::Open(path);
  if (!opened.ok()) return opened.status();
  const InputFile& file = *opened.value();
  JournalSegmentHeader head;
  // A kill cuts the last record of the last segment off, and nothing else.
  const auto cut_short = [&](uint64_t at) { return last ? Status() : Damaged(path, at); };
  if (file.bytes() < sizeof(head)) return cut_short(0);
  Status status = file.ReadAt(0, &head, sizeof(head));
  if (!status.ok()) return status;
  if (std::memcmp(head.magic, JournalSegmentHeader::kMagic, sizeof(head.magic)) != 0 ||
      head.number != number) {
    return Damaged(path, 0);
  }
  if (head.storage != storage) {
    return Status(Code::kDataLoss,
                  "the journal '" + path + "' is one of another storage" + kRemedy);
  }
  files_.push_back(std::move(opened.value()));
  std::string bytes;
  uint64_t offset = sizeof(head);
  JournalRecordHeader record;
  while (offset < file.bytes()) {
    if (file.bytes() - offset < sizeof(record)) return cut_short(offset);
    status = file.ReadAt(offset, &record, sizeof(record));
    if (!status.ok()) return status;
    if (record.head_checksum != HeadChecksum(record, number) || record.meta_bytes > record.bytes) {
      return Damaged(path, offset);
    }
    if (record.bytes > file.bytes() - offset - sizeof(record)) return cut_short(offset);
    bytes.resize(record.bytes);
    status = file.ReadAt(offset + sizeof(record), bytes.data(), bytes.size());
    if (!status.ok()) return status;
    const std::string_view view = bytes;
    if (XXH3_64bits_withSeed(bytes.data(), bytes.size(), number) != record.checksum ||
        !DecodeNamedValues(view.substr(0, record.meta_bytes), &meta_) ||
        !TakeRecord(view.substr(record.meta_bytes), offset + sizeof(record) + record.meta_bytes)
             .ok()) {
      return Damaged(path, offset);
    }
    offset += sizeof(record) + record.bytes;
  }
  return Status();
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
