// Replays the journal that a killed process has left in its storage. Included by the sources of
// Storage only.
#pragma once

#include <cstdint>

#include "core/base/expiry.h"
#include "core/base/status.h"
#include "core/disk/database.h"

namespace sok {

// Names the value that says up to which segment of the journal the database has everything.
constexpr char kJournalName[] = "journal";

// Publishes what the journal of the storage with that id holds and the database does not, and
// removes its files. A database that is read-only shows it instead. Returns the number for the next
// segment.
Result<uint64_t> ReplayJournal(Database* database, const Expiry& expiry, uint64_t storage,
                               bool read_only);

}  // namespace sok
