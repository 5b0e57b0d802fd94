#include "core/storage/storage_journal.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/disk/group_meta.h"
#include "core/disk/journal_reader.h"

namespace sok {
namespace {

constexpr size_t kReadTogether = 1024;

// Counts how many rows more each group has with the journal than in the database. Rows that had
// expired when the database's rows were counted are not among those.
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

Result<std::map<int, GroupMeta>> ParseGroups(const std::map<std::string, std::string>& stored) {
  std::map<int, GroupMeta> groups;
  for (const auto& [name, json] : stored) {
    auto meta = GroupMeta::FromJson(json);
    if (!meta.ok()) return meta.status();
    groups[std::atoi(name.c_str() + sizeof(kGroupMetaPrefix) - 1)] = std::move(meta.value());
  }
  return groups;
}

// Returns the journal's descriptions of groups, with the numbers of rows that there are.
Result<NamedValues> Describe(const Database& database, const JournalReader& journal,
                             const Expiry& expiry) {
  auto stored = database.ReadMeta(kGroupMetaPrefix);
  if (!stored.ok()) return stored.status();
  auto groups = ParseGroups(stored.value());
  if (!groups.ok()) return groups.status();
  std::map<int, int64_t> added;
  Status status = CountAdded(database, journal, expiry, groups.value(), &added);
  if (!status.ok()) return status;
  NamedValues meta = journal.meta();
  for (auto& [name, json] : meta) {
    if (name.rfind(kGroupMetaPrefix, 0) != 0 || !json.has_value()) continue;
    auto group = GroupMeta::FromJson(*json);
    if (!group.ok()) return group.status();
    const int number = std::atoi(name.c_str() + sizeof(kGroupMetaPrefix) - 1);
    const auto before = groups.value().find(number);
    int64_t rows = added[number];
    uint32_t counted_at = 0;
    if (before != groups.value().end()) {
      rows += static_cast<int64_t>(before->second.rows);
      counted_at = before->second.counted_at;
    }
    group.value().rows = static_cast<uint64_t>(std::max<int64_t>(0, rows));
    group.value().counted_at = counted_at;
    json = group.value().ToJson();
  }
  return meta;
}

}  // namespace

Result<uint64_t> ReplayJournal(Database* database, const Expiry& expiry, uint64_t storage,
                               bool read_only) {
  auto stored = database->ReadMeta(kJournalName);
  if (!stored.ok()) return stored.status();
  uint64_t applied = 0;
  if (!stored.value().empty()) {
    applied = std::strtoull(stored.value().begin()->second.c_str(), nullptr, 10);
  }
  const std::string& path = database->path();
  const std::vector<uint64_t> segments = JournalSegments(path);
  if (segments.empty()) return applied + 1;
  auto opened = JournalReader::Open(path, storage, applied);
  if (!opened.ok()) return opened.status();
  std::unique_ptr<JournalReader> journal = std::move(opened.value());
  const uint64_t last = journal->last();
  if (read_only) {
    if (journal->empty()) return last + 1;
    auto meta = Describe(*database, *journal, expiry);
    if (!meta.ok()) return meta.status();
    database->ShowJournal(std::move(journal), std::move(meta.value()));
    return last + 1;
  }
  // This holds also without a record: segments follow each other without a gap.
  if (last > applied) {
    auto meta = Describe(*database, *journal, expiry);
    if (!meta.ok()) return meta.status();
    meta.value()[kJournalName] = std::to_string(last);
    Status status = database->PublishJournal(*journal, meta.value());
    if (!status.ok()) return status;
  }
  for (uint64_t segment : segments) RemoveJournalSegment(path, segment);
  return last + 1;
}

}  // namespace sok
