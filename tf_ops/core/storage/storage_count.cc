#include "core/storage/storage_count.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "core/base/status_macros.h"

namespace sok {

Status CountLive(const Database& database, int group, const Expiry& expiry, GroupMeta* meta) {
  SOK_ASSIGN_OR_RETURN(auto view, database.Look(group));
  // The time is taken after the view: rows that the view leaves out because they have expired must
  // have expired by this time.
  const uint32_t now = expiry.Now();
  uint64_t rows = 0;
  SOK_RETURN_IF_ERROR(view->ForEach([&](int, Key, std::string_view bytes) {
    RowHeader header = {};
    std::memcpy(&header, bytes.data(), std::min(bytes.size(), sizeof(header)));
    rows += !expiry.Expired(header.meta.update_time, now);
    return Status();
  }));
  meta->rows = rows;
  meta->counted_at = now;
  return Status();
}

Result<std::map<int, GroupMeta>> ReadGroups(const Database& database) {
  SOK_ASSIGN_OR_RETURN(const auto stored, database.ReadMeta(kGroupMetaPrefix));
  std::map<int, GroupMeta> groups;
  for (const auto& [name, json] : stored) {
    SOK_ASSIGN_OR_RETURN(groups[std::atoi(name.c_str() + sizeof(kGroupMetaPrefix) - 1)],
                         GroupMeta::FromJson(json));
  }
  return groups;
}

Result<NamedValues> CountAllGroups(const Database& database, const Expiry& expiry) {
  SOK_ASSIGN_OR_RETURN(auto groups, ReadGroups(database));
  NamedValues described;
  for (auto& [group, meta] : groups) {
    SOK_RETURN_IF_ERROR(CountLive(database, group, expiry, &meta));
    described[GroupMetaName(group)] = meta.ToJson();
  }
  return described;
}

}  // namespace sok
