// Says where checkpoints and dumps of a storage may go, and removes what is left of one that was
// killed.
#pragma once

#include <string>

#include "core/base/status.h"
#include "core/disk/database.h"

namespace sok {

// Returns kInvalidArgument if `path` would lie in the folder of the storage, by whatever name: it
// could take the place of one of its files.
Status CheckOutside(const std::string& path, const std::string& folder, const char* what);

// Makes a checkpoint of a database, first in the database's own folder where the file system can
// move it from there to `path`: what a killed process leaves then lies where the next one finds it.
// Errors: those of Database::Checkpoint; kInvalidArgument if there is something at `path`, or at
// "<path>.tmp" on another file system, or if `path` is in the database's folder.
Status MakeCheckpoint(const Database& database, const std::string& folder, const std::string& path);

// Removes what is left of killed checkpoints. The caller must hold the lock of the folder.
void RemoveUnfinishedCheckpoints(const std::string& folder);

}  // namespace sok
