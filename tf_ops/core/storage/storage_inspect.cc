// Describes the contents of a storage, for people and tools.
#include <cstdlib>
#include <cstring>
#include <shared_mutex>
#include <string>
#include <utility>

#include "core/base/status_macros.h"
#include "core/storage/storage.h"
#include "core/storage/storage_count.h"

namespace sok {

Result<std::map<int, GroupMeta>> Storage::GroupsAtRest() const {
  SOK_RETURN_IF_ERROR(core_->CheckOpen());
  SOK_ASSIGN_OR_RETURN(auto groups, ReadGroups(*core_->database));
  for (const auto& [number, group] : groups_) groups[number] = group.store->meta();
  return groups;
}

Status Storage::NoGroup(int group) const {
  SOK_ASSIGN_OR_RETURN(auto groups, GroupsAtRest());
  std::string known;
  for (const auto& [number, meta] : groups) {
    known += (known.empty() ? "" : ", ") + std::to_string(number);
  }
  return Status(Code::kNotFound, "there is no group " + std::to_string(group) + " in '" + path() +
                                     "', which has " +
                                     (known.empty() ? "none" : "the groups " + known));
}

Result<std::vector<GroupInfo>> Storage::Groups() {
  std::lock_guard<std::mutex> guard(mu_);
  const auto gate = core_->TakeAlone();
  SOK_RETURN_IF_ERROR(Ready());
  SOK_ASSIGN_OR_RETURN(auto groups, GroupsAtRest());
  std::vector<GroupInfo> infos;
  for (auto& [number, meta] : groups) {
    if (groups_.count(number) == 0) SOK_RETURN_IF_ERROR(CountIfOutdated(number, &meta));
    infos.push_back({number, std::move(meta)});
  }
  return infos;
}

Result<GroupSurvey> Storage::Survey(int group) {
  std::lock_guard<std::mutex> guard(mu_);
  const auto gate = core_->TakeAlone();
  SOK_RETURN_IF_ERROR(Ready());
  SOK_ASSIGN_OR_RETURN(auto described, DescriptionOf(group));
  if (described.dim == 0) return NoGroup(group);
  SOK_RETURN_IF_ERROR(SettleAtRest());
  const uint32_t now = core_->expiry->Now();
  GroupSurvey survey;
  SOK_RETURN_IF_ERROR(core_->database->ForEach(group, [&](int, Key, std::string_view bytes) {
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
  }));
  return survey;
}

Result<std::optional<StoredRow>> Storage::Get(int group, Key key) {
  if (group < 0 || group >= kGroups) {
    return InvalidArgument("expected a group in [0, 256), got " + std::to_string(group));
  }
  std::lock_guard<std::mutex> guard(mu_);
  const auto gate = core_->TakeAlone();
  SOK_RETURN_IF_ERROR(Ready());
  SOK_ASSIGN_OR_RETURN(auto groups, GroupsAtRest());
  std::optional<StoredRow> row;
  const auto found = groups.find(group);
  if (found == groups.end()) return row;
  SOK_RETURN_IF_ERROR(SettleAtRest());
  const RowLayout layout = LayoutOf(found->second);
  const RowKey wanted(group, key);
  Status damaged;
  Status status = core_->database->Read(&wanted, 1, [&](size_t, std::string_view bytes) {
    RowValue value;
    if (!value.Parse(bytes, layout)) {
      damaged = DamagedRow(group, key, path());
      return;
    }
    if (core_->expiry->Expired(value.header.meta.update_time, core_->expiry->Now())) return;
    row = StoredRow{value.header.meta, {}};
    row->floats.resize(layout.dim() + layout.slot_start().size());
    value.Decode(layout, found->second.layout, row->floats.data());
    if (!value.HasSlots(layout, found->second.layout)) row->floats.resize(layout.dim());
  });
  if (status.ok()) status = damaged;
  if (!status.ok()) return status;
  return row;
}

Result<Database::DiskUse> Storage::disk_use() {
  std::shared_lock<SharedMutex> gate(core_->gate);
  SOK_RETURN_IF_ERROR(core_->CheckOpen());
  return core_->database->disk_use();
}

Status Storage::CountIfOutdated(int group, GroupMeta* meta) const {
  const Expiry& expiry = *core_->expiry;
  const bool ahead = expiry.ttl() > 0 && meta->counted_at > expiry.Now();
  if (!core_->other_ttl && !ahead) return Status();
  return CountLive(*core_->database, group, expiry, meta);
}

Status Storage::CountRows() {
  for (auto& [number, group] : groups_) SOK_RETURN_IF_ERROR(group.store->Freeze().status());
  const auto gate = core_->TakeAlone();
  SOK_RETURN_IF_ERROR(Ready());
  SOK_ASSIGN_OR_RETURN(auto groups, GroupsAtRest());
  Database::Meta counts;
  for (auto& [number, meta] : groups) {
    if (groups_.count(number) != 0) continue;
    SOK_RETURN_IF_ERROR(CountLive(*core_->database, number, *core_->expiry, &meta));
    counts[GroupMetaName(number)] = meta.ToJson();
  }
  Status status = core_->database->WritePublished({}, counts, /*sync=*/true);
  return status.ok() ? FlushAtRest() : status;
}

}  // namespace sok
