// Handles children that are forked from a process with open storages: their memory holds the state
// of threads that do not run in the child. RocksDB waits for its own threads when the process
// exits; in a forked child that wait would never end.
#pragma once

#include "core/base/status.h"

namespace sok {

// Must be called before a storage is opened. From here on, children that this process forks cannot
// open storages. When they exit, they skip static destructors and the functions that were given to
// atexit() before the fork, which belong to the parent. Their stdio streams are flushed. Errors:
// kFailedPrecondition in such a child. Thread-safe.
Status StartBackgroundThreads();

// Returns whether this process was forked from one that had called StartBackgroundThreads. Its
// storage objects then belong to its parent.
bool ForkedFromBackgroundThreads();

}  // namespace sok
