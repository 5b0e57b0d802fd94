// Connects workers that know each other's addresses. Internal to the transport.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/transport/socket.h"

namespace sok {

// The sockets at which a worker waits for others: a port, and for workers of its own system a local
// socket too, if it has one.
struct Listening {
  Descriptor port, local;
};

// Connects this worker to all others: it calls the workers of lower rank, and is called by the
// workers of higher rank. Both sides of a connection prove that they know the secret of the job and
// the token of the worker that is called, without sending either. Until then a caller counts as a
// stranger; there may be a limited number of strangers at a time, each for a short while.
// `addresses` (size) are the addresses of all workers. Returns a connection for each worker, and an
// empty one for this worker.
Result<std::vector<Descriptor>> ConnectAll(int rank, const std::string& secret,
                                           const std::vector<WorkerAddress>& addresses,
                                           const Listening& listening, int64_t milliseconds);

}  // namespace sok
