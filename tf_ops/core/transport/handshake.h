// Connects workers that know each other's addresses. Internal to the transport.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/transport/socket.h"

namespace sok {

// A worker waits for others at a port, and for those of its own system at a local socket too, if
// it has one.
struct Listening {
  Descriptor port, local;
};

// Connects this worker to all others: it calls those of lower rank, and is called by the others.
// Both sides of a connection prove that they know the secret of the job and the token of who is
// called, which neither of them sends, before they are taken for workers; of strangers some may be
// there at a time, for a short while. `addresses` (size) are those of all workers. Returns a
// connection for each worker, none for this one.
Result<std::vector<Descriptor>> ConnectAll(int rank, const std::string& secret,
                                           const std::vector<WorkerAddress>& addresses,
                                           const Listening& listening, int64_t milliseconds);

}  // namespace sok
