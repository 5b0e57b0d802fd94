// Counts the rows that the groups of a database have. Included by the sources of Storage only.
#pragma once

#include <map>

#include "core/base/expiry.h"
#include "core/base/status.h"
#include "core/disk/database.h"
#include "core/disk/group_meta.h"

namespace sok {

// Counts the rows of a group that have not expired, by a walk over all of them, and notes in `meta`
// how many there are and when that was.
Status CountLive(const Database& database, int group, const Expiry& expiry, GroupMeta* meta);

// Returns the descriptions of all groups that the database has.
Result<std::map<int, GroupMeta>> ReadGroups(const Database& database);

// Returns the descriptions in the database's format, with their rows counted anew.
Result<NamedValues> CountAllGroups(const Database& database, const Expiry& expiry);

}  // namespace sok
