#include "core/storage/storage_journal.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status_macros.h"
#include "core/disk/group_meta.h"
#include "core/disk/journal.h"
#include "core/disk/journal_reader.h"
#include "core/storage/storage_count.h"

namespace sok {
namespace {

constexpr size_t kReadTogether = 1024;

// Counts how many more rows each group has with the journal than in the database alone. The
// database's count has no rows that had expired at that time.
Status CountAdded(const Database& database, const JournalReader& journal, const Expiry& expiry,
                  const std::map<int, GroupMeta>& groups, std::map<int, int64_t>* added) {
  const std::vector<JournalReader::Place>& places = journal.places();
  std::vector<RowKey> keys;
  std::vector<char> present;
  std::string value;
  for (size_t first = 0; first < places.size(); first += kReadTogether) {
    const size_t n = std::min(kReadTogether, places.size() - first);
    keys.clear();
    for (size_t i = 0; i < n; ++i) keys.push_back(places[first + i].key);
    present.assign(n, 0);
    Status status = database.ReadPublished(keys.data(), n, [&](size_t i, std::string_view bytes) {
      RowHeader header;
      if (bytes.size() < sizeof(header)) return;
      std::memcpy(&header, bytes.data(), sizeof(header));
      const auto group = groups.find(RowKey::Group(keys[i].view()));
      present[i] = group == groups.end() ||
                   !expiry.Expired(header.meta.update_time, group->second.counted_at);
    });
    if (!status.ok()) return status;
    for (size_t i = 0; i < n; ++i) {
      const int number = RowKey::Group(keys[i].view());
      bool counted = places[first + i].size > 0;
      const auto group = groups.find(number);
      if (counted && expiry.ttl() > 0 && group != groups.end()) {
        // After a clock was set back the journal may have rows that had expired at that count.
        if (status = journal.Read(places[first + i], &value); !status.ok()) return status;
        RowHeader header;
        if (value.size() >= sizeof(header)) {
          std::memcpy(&header, value.data(), sizeof(header));
          counted = !expiry.Expired(header.meta.update_time, group->second.counted_at);
        }
      }
      (*added)[number] += counted - present[i];
    }
  }
  return Status();
}

// Returns the journal's descriptions of groups, with the numbers of rows that there are.
Result<NamedValues> Describe(const Database& database, const JournalReader& journal,
                             const Expiry& expiry) {
  SOK_ASSIGN_OR_RETURN(const auto groups, ReadGroups(database));
  std::map<int, int64_t> added;
  SOK_RETURN_IF_ERROR(CountAdded(database, journal, expiry, groups, &added));
  NamedValues meta = journal.meta();
  for (auto& [name, json] : meta) {
    if (name.rfind(kGroupMetaPrefix, 0) != 0 || !json.has_value()) continue;
    SOK_ASSIGN_OR_RETURN(auto group, GroupMeta::FromJson(*json));
    const int number = std::atoi(name.c_str() + sizeof(kGroupMetaPrefix) - 1);
    const auto before = groups.find(number);
    int64_t rows = added[number];
    uint32_t counted_at = 0;
    if (before != groups.end()) {
      rows += static_cast<int64_t>(before->second.rows);
      counted_at = before->second.counted_at;
    }
    group.rows = static_cast<uint64_t>(std::max<int64_t>(0, rows));
    group.counted_at = counted_at;
    json = group.ToJson();
  }
  return meta;
}

// Returns the number of the last segment that a database has published; 0 without one.
uint64_t AppliedIn(const std::string& text) { return std::strtoull(text.c_str(), nullptr, 10); }

}  // namespace

Result<std::unique_ptr<JournalReader>> ReadJournal(const std::string& path, uint64_t storage,
                                                   const std::string& applied,
                                                   const std::string& history,
                                                   const WrittenNote& note) {
  return JournalReader::Open(path, storage, AppliedIn(applied), History::FromText(history),
                             note.files());
}

Result<uint64_t> ReplayJournal(Database* database, const Expiry& expiry, uint64_t storage,
                               const std::string& history, bool read_only, WrittenNote* note) {
  SOK_ASSIGN_OR_RETURN(auto stored, database->ReadMeta(kJournalName));
  const uint64_t applied = AppliedIn(stored[kJournalName]);
  const std::string& path = database->path();
  SOK_ASSIGN_OR_RETURN(const std::vector<uint64_t> segments, JournalSegments(path));
  SOK_ASSIGN_OR_RETURN(std::unique_ptr<JournalReader> journal,
                       ReadJournal(path, storage, stored[kJournalName], history, *note));
  const uint64_t last = journal->last();
  if (read_only) {
    if (journal->empty()) return last + 1;
    SOK_ASSIGN_OR_RETURN(auto meta, Describe(*database, *journal, expiry));
    database->ShowJournal(std::move(journal), std::move(meta));
    return last + 1;
  }
  // Even without a record the number is kept: segments have consecutive numbers.
  if (last > applied) {
    SOK_ASSIGN_OR_RETURN(auto meta, Describe(*database, *journal, expiry));
    meta[kJournalName] = std::to_string(last);
    SOK_RETURN_IF_ERROR(database->PublishJournal(*journal, meta));
  }
  for (uint64_t segment : segments) RemoveJournalSegment(path, segment);
  SOK_RETURN_IF_ERROR(note->Drop(
      [](const std::string& name) { return JournalSegmentNumber(name) > 0; }, /*sync=*/false));
  return last + 1;
}

}  // namespace sok
