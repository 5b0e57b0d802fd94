// Says what a storage holds, for people and tools.
#include <cstdlib>
#include <cstring>
#include <shared_mutex>
#include <string>
#include <utility>

#include "core/storage/storage.h"
#include "core/storage/storage_count.h"

namespace sok {

Result<std::map<int, GroupMeta>> Storage::GroupsAtRest() const {
  if (Status status = core_->CheckOpen(); !status.ok()) return status;
  auto stored = core_->database->ReadMeta(kGroupMetaPrefix);
  if (!stored.ok()) return stored.status();
  std::map<int, GroupMeta> groups;
  for (const auto& [name, json] : stored.value()) {
    auto meta = GroupMeta::FromJson(json);
    if (!meta.ok()) return meta.status();
    groups[std::atoi(name.c_str() + sizeof(kGroupMetaPrefix) - 1)] = std::move(meta.value());
  }
  for (const auto& [number, group] : groups_) groups[number] = group.store->meta();
  return groups;
}

Status Storage::NoGroup(int group) const {
  auto groups = GroupsAtRest();
  if (!groups.ok()) return groups.status();
  std::string known;
  for (const auto& [number, meta] : groups.value()) {
    known += (known.empty() ? "" : ", ") + std::to_string(number);
  }
  return Status(Code::kNotFound, "there is no group " + std::to_string(group) + " in '" + path() +
                                     "', which has " +
                                     (known.empty() ? "none" : "the groups " + known));
}

Result<std::vector<GroupInfo>> Storage::Groups() {
  std::lock_guard<std::mutex> guard(mu_);
  const Gate gate(core_->gate);
  if (Status status = Ready(); !status.ok()) return status;
  auto groups = GroupsAtRest();
  if (!groups.ok()) return groups.status();
  std::vector<GroupInfo> infos;
  for (auto& [number, meta] : groups.value()) {
    if (groups_.count(number) == 0) {
      if (Status status = CountIfOutdated(number, &meta); !status.ok()) return status;
    }
    infos.push_back({number, std::move(meta)});
  }
  return infos;
}

Result<GroupSurvey> Storage::Survey(int group) {
  std::lock_guard<std::mutex> guard(mu_);
  const Gate gate(core_->gate);
  if (Status status = Ready(); !status.ok()) return status;
  auto described = DescriptionOf(group);
  if (!described.ok()) return described.status();
  if (described.value().dim == 0) return NoGroup(group);
  if (Status status = SettleAtRest(); !status.ok()) return status;
  const uint32_t now = core_->expiry->Now();
  GroupSurvey survey;
  Status status = core_->database->ForEach(group, [&](int, Key, std::string_view bytes) {
    RowHeader header;
    if (bytes.size() < sizeof(header)) {
      return Status(Code::kDataLoss,
                    "a row of group " + std::to_string(group) + " of '" + path() + "' is damaged");
    }
    std::memcpy(&header, bytes.data(), sizeof(header));
    survey.bytes += RowKey::kBytes + bytes.size();
    if (core_->expiry->Expired(header.meta.update_time, now)) {
      ++survey.expired;
      return Status();
    }
    ++survey.rows;
    const uint32_t age = now > header.meta.update_time ? now - header.meta.update_time : 0;
    size_t bucket = 0;
    while (bucket < std::size(GroupSurvey::kAges) && age >= GroupSurvey::kAges[bucket]) {
      ++bucket;
    }
    ++survey.by_age[bucket];
    const uint32_t updates = header.meta.update_num;
    ++survey.by_updates[updates == 0 ? 0 : 32 - __builtin_clz(updates)];
    return Status();
  });
  if (!status.ok()) return status;
  return survey;
}

Result<std::optional<StoredRow>> Storage::Get(int group, Key key) {
  if (group < 0 || group >= kGroups) {
    return InvalidArgument("expected a group in [0, 256), got " + std::to_string(group));
  }
  std::lock_guard<std::mutex> guard(mu_);
  const Gate gate(core_->gate);
  if (Status status = Ready(); !status.ok()) return status;
  auto groups = GroupsAtRest();
  if (!groups.ok()) return groups.status();
  std::optional<StoredRow> row;
  const auto found = groups.value().find(group);
  if (found == groups.value().end()) return row;
  if (Status status = SettleAtRest(); !status.ok()) return status;
  const RowKey wanted(group, key);
  Status damaged;
  Status status = core_->database->Read(&wanted, 1, [&](size_t, std::string_view bytes) {
    RowValue value;
    if (!value.Parse(bytes, found->second.dim)) {
      damaged = DamagedRow(group, key, path());
      return;
    }
    if (core_->expiry->Expired(value.header.meta.update_time, core_->expiry->Now())) return;
    const bool has_slots = value.header.layout == found->second.layout;
    row = StoredRow{value.header.meta, {}};
    row->floats.resize(has_slots ? value.count : value.header.dim);
    std::memcpy(row->floats.data(), value.floats, row->floats.size() * sizeof(float));
  });
  if (status.ok()) status = damaged;
  if (!status.ok()) return status;
  return row;
}

Result<Database::DiskUse> Storage::disk_use() {
  std::shared_lock<SharedMutex> gate(core_->gate);
  if (Status status = core_->CheckOpen(); !status.ok()) return status;
  return core_->database->disk_use();
}

Status Storage::CountIfOutdated(int group, GroupMeta* meta) const {
  const Expiry& expiry = *core_->expiry;
  const bool ahead = expiry.ttl() > 0 && meta->counted_at > expiry.Now();
  if (!core_->other_ttl && !ahead) return Status();
  return CountLive(*core_->database, group, expiry, meta);
}

Status Storage::CountRows() {
  for (auto& [number, group] : groups_) {
    auto counted = group.store->Freeze();
    if (!counted.ok()) return counted.status();
  }
  const Gate gate(core_->gate);
  if (Status status = Ready(); !status.ok()) return status;
  auto groups = GroupsAtRest();
  if (!groups.ok()) return groups.status();
  Database::Meta counts;
  for (auto& [number, meta] : groups.value()) {
    if (groups_.count(number) != 0) continue;
    Status status = CountLive(*core_->database, number, *core_->expiry, &meta);
    if (!status.ok()) return status;
    counts[GroupMetaName(number)] = meta.ToJson();
  }
  Status status = core_->database->WritePublished({}, counts, /*sync=*/true);
  return status.ok() ? FlushAtRest() : status;
}

}  // namespace sok
