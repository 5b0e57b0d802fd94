// Sockets between workers. Internal to the transport.
#pragma once

#include <string>

#include "core/base/status.h"

namespace sok {

// Makes a connected socket fit for exchanges: it does not block, sends small messages at once and
// large ones in few parts, and notices a machine that is gone.
Status PrepareForExchanges(int fd);

// Returns a kUnavailable status with the text "<what>: <the system's words for the error>".
Status SocketError(const std::string& what, int error);

}  // namespace sok
