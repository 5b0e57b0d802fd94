// Makes the checkpoints of a storage: says which paths checkpoints and dumps may have, and removes
// what is left of a checkpoint whose process was killed.
//
// MakeCheckpoint and RemoveUnfinishedCheckpoints must not run at once for one folder: Storage calls
// the former under its mutex, the latter while it opens.
#pragma once

#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/disk/database.h"

namespace sok {

// Returns kInvalidArgument if `path` lies in `folder`, the folder of a storage, or below it, also
// where it gets there through links or "..": what is written there could take the place of a file
// of the storage. `what` names the thing that is to be written, for the message.
Status CheckOutside(const std::string& path, const std::string& folder, const char* what);

// Makes a checkpoint at `path` of a database whose storage lies in `folder`. If both are on one
// file system, the checkpoint grows in `folder` and is moved to `path` when it is complete, so that
// what a killed process leaves lies where RemoveUnfinishedCheckpoints finds it. Otherwise it grows
// in "<path>.tmp". Errors: those of Database::Checkpoint; kInvalidArgument if something is at
// `path` or, on another file system, at "<path>.tmp", or if `path` lies in `folder`. On any error
// nothing is at `path` that was not there before.
Status MakeCheckpoint(const Database& database, const std::string& folder, const std::string& path);

// The same for a caller that may not write to `folder`, beside others that do this too: nothing in
// there changes, and the checkpoint grows in "<path>.tmp" wherever it lies. `journal` are the names
// of files in `folder` that belong to what the database shows, and go along.
Status CheckpointOfReader(const Database& database, const std::string& folder,
                          const std::string& path, const std::vector<std::string>& journal);

// Removes from `folder` what checkpoints left there whose process was killed. The caller must hold
// the lock of the folder.
void RemoveUnfinishedCheckpoints(const std::string& folder);

}  // namespace sok
