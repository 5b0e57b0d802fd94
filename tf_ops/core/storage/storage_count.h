// How many rows the groups of a database have. Included by the sources of Storage only.
#pragma once

#include <cstdint>

#include "core/base/expiry.h"
#include "core/base/status.h"
#include "core/disk/database.h"

namespace sok {

// The rows of a group that have not expired at `now`, by a walk over all of them.
Result<uint64_t> CountLive(const Database& database, int group, const Expiry& expiry, uint32_t now);

// The descriptions of all groups that the database has, with their rows counted anew.
Result<NamedValues> CountAllGroups(const Database& database, const Expiry& expiry, uint32_t now);

}  // namespace sok
