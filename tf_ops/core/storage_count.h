// How many rows the groups of a database have. Included by the sources of Storage only.
#pragma once

#include <cstdint>

#include "core/expiry.h"
#include "core/status.h"
#include "core/stores/row_database.h"

namespace sok {

// The rows of a group that have not expired at `now`, by a walk over all of them.
Result<uint64_t> CountLive(const RowDatabase& database, int group, const Expiry& expiry,
                           uint32_t now);

// The descriptions of all groups that the database has, with their rows counted anew.
Result<NamedValues> CountAllGroups(const RowDatabase& database, const Expiry& expiry, uint32_t now);

}  // namespace sok
