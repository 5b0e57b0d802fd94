// Replays the journal that a killed process has left in its storage. Included by the sources of
// Storage only.
#pragma once

#include <cstdint>

#include "core/base/expiry.h"
#include "core/base/status.h"
#include "core/disk/database.h"

namespace sok {

// The name of the value with the number of the last segment whose records the database has.
constexpr char kJournalName[] = "journal";

// Publishes the records of the journal that the database does not have, and removes the journal's
// files; `storage` is the id of the storage, `history` the state of the database, and `note` the
// note of its folder. A read-only database shows the records instead. Returns the number for the
// next segment.
Result<uint64_t> ReplayJournal(Database* database, const Expiry& expiry, uint64_t storage,
                               const History& history, bool read_only, WrittenNote* note);

}  // namespace sok
