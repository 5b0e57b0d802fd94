// Makes the checkpoints of a storage, checks the paths of checkpoints and dumps, and removes
// unfinished checkpoints of processes that were killed.
//
// MakeCheckpoint and RemoveUnfinishedCheckpoints must not run at once for one folder: Storage calls
// the former under its mutex, the latter while it opens.
#pragma once

#include <string>

#include "core/base/status.h"
#include "core/disk/database.h"

namespace sok {

// Returns kInvalidArgument if `path` lies in or below `folder`, the folder of a storage, even
// through links or "..": a file that is written there could replace a file of the storage. `what`
// names the file to be written, for the message.
Status CheckOutside(const std::string& path, const std::string& folder, const char* what);

// Makes a checkpoint at `path` of a database whose storage lies in `folder`. If both are on one
// file system, the checkpoint is built in `folder` and moved to `path` when it is complete, so that
// RemoveUnfinishedCheckpoints finds it after a kill. Otherwise it is built in "<path>.tmp". Errors:
// those of Database::Checkpoint; kInvalidArgument if something is at `path` or, on another file
// system, at "<path>.tmp", or if `path` lies in `folder`. On any error nothing is at `path` that
// was not there before.
Status MakeCheckpoint(const Database& database, const std::string& folder, const std::string& path);

// Does the same for callers that may not write to `folder`; several may run at once. Nothing in
// `folder` changes, and the checkpoint is built in "<path>.tmp". `journal` has the files of the
// journal in `folder` that the database shows; they become part of the checkpoint.
Status CheckpointOfReader(const Database& database, const std::string& folder,
                          const std::string& path, const WrittenNote::Files& journal);

// Removes from `folder` the unfinished checkpoints of processes that were killed. The caller must
// hold the lock of the folder.
void RemoveUnfinishedCheckpoints(const std::string& folder);

}  // namespace sok
