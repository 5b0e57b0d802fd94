// What a killed process has left in its storage's journal. Included by storage.cc only.
#pragma once

#include <cstdint>

#include "core/expiry.h"
#include "core/status.h"
#include "core/stores/row_database.h"

namespace sok {

// The named value that says up to which segment of the journal the database has everything.
constexpr char kJournalName[] = "journal";

// Publishes what the journal of the storage with that id holds and the database does not, and
// removes its files; has a database that is read-only show it. Returns the number for the next
// segment.
Result<uint64_t> TakeInJournal(RowDatabase* database, const Expiry& expiry, uint64_t storage,
                               bool read_only);

}  // namespace sok
