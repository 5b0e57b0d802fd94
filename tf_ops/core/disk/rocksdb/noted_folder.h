// Compares the logs and the manifest of a folder with its note: RocksDB reads these files up to the
// place from which on it cannot read them. See WrittenNote.
#pragma once

#include <cstdint>
#include <string>

#include "core/base/status.h"
#include "core/disk/written_note.h"

namespace sok {

// Returns true for the name of a log or of a manifest, without its folder.
bool IsNoted(const std::string& name);
// Return the number in the name of a log, or of a manifest; 0 for other names.
uint64_t LogNumber(const std::string& name);
uint64_t ManifestNumber(const std::string& name);

// Returns the name of the manifest that the folder's CURRENT names; empty if it names none, which
// RocksDB reports. Errors: those of reading.
Result<std::string> CurrentManifest(const std::string& folder);

// Compares the files of a database with its note, before RocksDB opens it. Returns false if they
// are not noted, or the note has an earlier manifest than the one in use: another client of RocksDB
// has opened the folder for writing since. Errors: kDataLoss for the first file that is missing,
// too short, or has other bytes; those of reading.
Result<bool> CheckNoted(const std::string& folder, const WrittenNote& note);

// Returns the greatest number of a log in the folder; 0 if there is none.
Result<uint64_t> LastLog(const std::string& folder);

// Makes the note of a folder that has a copy of a database and is not in use. `others` are files of
// the folder that are noted, too.
Status NoteCopy(const std::string& folder, const WrittenNote::Files& others = {});

}  // namespace sok
