#include "core/storage/storage_count.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "core/disk/group_meta.h"

namespace sok {

Result<uint64_t> CountLive(const Database& database, int group, const Expiry& expiry,
                           uint32_t now) {
  uint64_t rows = 0;
  Status status = database.ForEach(group, [&](int, Key, std::string_view bytes) {
    RowHeader header = {};
    std::memcpy(&header, bytes.data(), std::min(bytes.size(), sizeof(header)));
    rows += !expiry.Expired(header.meta.update_time, now);
    return Status();
  });
  if (!status.ok()) return status;
  return rows;
}

Result<NamedValues> CountAllGroups(const Database& database, const Expiry& expiry, uint32_t now) {
  auto stored = database.ReadMeta(kGroupMetaPrefix);
  if (!stored.ok()) return stored.status();
  NamedValues described;
  for (const auto& [name, json] : stored.value()) {
    auto meta = GroupMeta::FromJson(json);
    if (!meta.ok()) return meta.status();
    const int group = std::atoi(name.c_str() + sizeof(kGroupMetaPrefix) - 1);
    auto rows = CountLive(database, group, expiry, now);
    if (!rows.ok()) return rows.status();
    meta.value().rows = rows.value();
    meta.value().counted_at = now;
    described[name] = meta.value().ToJson();
  }
  return described;
}

}  // namespace sok
