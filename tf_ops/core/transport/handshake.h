// How workers that know each other's addresses become connected. Internal to the transport.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/status.h"
#include "core/transport/socket.h"

namespace sok {

// Where a worker waits for others: at a port, and for those of its own system at a local socket
// too, if it has one.
struct Listening {
  Descriptor port, local;
};

// Connects this worker to all others: it calls those of lower rank, and is called by the others.
// Whoever does not know this worker's secret is sent away. `addresses` (size) are those of all
// workers. Returns a connection for each worker, none for this one.
Result<std::vector<Descriptor>> ConnectAll(int rank, const std::vector<WorkerAddress>& addresses,
                                           const Listening& listening, int64_t milliseconds);

}  // namespace sok
