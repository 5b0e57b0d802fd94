// Handles what fork() leaves of a process that has had storages open: the memory of threads that no
// longer run. RocksDB waits for its own threads when the process exits; in a forked child that wait
// would never end.
#pragma once

#include "core/base/status.h"

namespace sok {

// Must be called before a storage is opened. From here on children that this process forks can open
// none, and leave without running what exit() would run of their parent: static destructors and the
// functions that were given to atexit() before the fork. Their stdio streams are flushed. Errors:
// kFailedPrecondition in such a child. Thread-safe.
Status StartBackgroundThreads();

// Returns whether this process was forked from one that had called StartBackgroundThreads. What it
// holds of storages is its parent's then.
bool ForkedFromBackgroundThreads();

}  // namespace sok
