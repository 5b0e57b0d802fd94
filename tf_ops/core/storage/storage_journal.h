// Replays the journal that a killed process has left in its storage. Included by the sources of
// Storage only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/base/expiry.h"
#include "core/base/status.h"
#include "core/disk/database.h"

namespace sok {

// The name of the value with the number of the last segment whose records the database has.
constexpr char kJournalName[] = "journal";

// Reads and checks the part of a folder's journal that its database does not have. `storage` is the
// id of the storage, `applied` and `history` are the database's values of the names kJournalName
// and kHistoryName, empty without one, and `note` is the note of the folder. Errors are those of
// JournalReader::Open.
Result<std::unique_ptr<JournalReader>> ReadJournal(const std::string& path, uint64_t storage,
                                                   const std::string& applied,
                                                   const std::string& history,
                                                   const WrittenNote& note);

// Publishes that part, and removes the journal's files. A read-only database shows the records
// instead. Returns the number for the next segment.
Result<uint64_t> ReplayJournal(Database* database, const Expiry& expiry, uint64_t storage,
                               const std::string& history, bool read_only, WrittenNote* note);

}  // namespace sok
