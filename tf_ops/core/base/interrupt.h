// Notes when the user interrupts the process, for waits that would go on for long after it.
#pragma once

#include <cstdint>

namespace sok {

// Notes SIGINT from here on, before the handler that there is now gets it. Must be called only
// where that handler ends what the process does: a wait that has begun before a SIGINT ends soon
// after it. Does nothing where SIGINT is ignored or ends the process. Whoever sets another handler
// later ends the noting. Thread-safe.
void WatchInterrupts();

// Returns true if a SIGINT came at or after a time of NowMilliseconds, and at least `grace`
// milliseconds ago.
bool InterruptedSince(int64_t time, int64_t grace);

// Returns the milliseconds of a clock that never goes back.
int64_t NowMilliseconds();

}  // namespace sok
