#include "core/storage/storage_count.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

namespace sok {

Status CountLive(const Database& database, int group, const Expiry& expiry, GroupMeta* meta) {
  auto view = database.Look(group);
  if (!view.ok()) return view.status();
  // The time is taken after the view: rows that the view leaves out because they have expired must
  // have expired by this time.
  const uint32_t now = expiry.Now();
  uint64_t rows = 0;
  Status status = view.value()->ForEach([&](int, Key, std::string_view bytes) {
    RowHeader header = {};
    std::memcpy(&header, bytes.data(), std::min(bytes.size(), sizeof(header)));
    rows += !expiry.Expired(header.meta.update_time, now);
    return Status();
  });
  if (!status.ok()) return status;
  meta->rows = rows;
  meta->counted_at = now;
  return status;
}

Result<NamedValues> CountAllGroups(const Database& database, const Expiry& expiry) {
  auto stored = database.ReadMeta(kGroupMetaPrefix);
  if (!stored.ok()) return stored.status();
  NamedValues described;
  for (const auto& [name, json] : stored.value()) {
    auto meta = GroupMeta::FromJson(json);
    if (!meta.ok()) return meta.status();
    const int group = std::atoi(name.c_str() + sizeof(kGroupMetaPrefix) - 1);
    Status status = CountLive(database, group, expiry, &meta.value());
    if (!status.ok()) return status;
    described[name] = meta.value().ToJson();
  }
  return described;
}

}  // namespace sok
