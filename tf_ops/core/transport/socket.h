// Sockets between workers. Internal to the transport.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/base/descriptor.h"
#include "core/base/interrupt.h"
#include "core/base/status.h"

namespace sok {

// The address at which a worker listens, and a token that a caller must know, besides the secret of
// the job if there is one. Workers exchange addresses as text before they connect.
struct WorkerAddress {
  std::string host;  // a name or a number; without spaces
  uint16_t port = 0;
  std::string token;  // 32 hexadecimal digits
  // The same text on two workers if one can reach the local socket of the other. Empty: the worker
  // has no local socket.
  std::string system;

  std::string ToText() const;
  static Result<WorkerAddress> FromText(const std::string& text);
};

// Returns 16 random bytes in hexadecimal digits.
Result<std::string> RandomToken();

// Returns a socket that listens on a free port: on the loopback interface if `host` is one of its
// addresses, else on all interfaces.
Result<Descriptor> ListenFor(const std::string& host, int backlog, uint16_t* port);

// Connects, or fails after so many milliseconds.
Result<Descriptor> ConnectTo(const WorkerAddress& address, int64_t milliseconds);

// Returns a text that is the same for processes that can reach each other's local sockets: it names
// the running system and the network namespace of this process, of which a container has its own.
// Empty if the system does not say.
std::string LocalSystem();

// Listen and connect by a local socket instead, which moves rows between processes of one system
// two to three times as fast as the loopback interface. Its name is made from the worker's token.
Result<Descriptor> ListenLocally(const std::string& token, int backlog);
Result<Descriptor> ConnectLocally(const std::string& token);

// Makes a connected socket fit for exchanges: it does not block, sends small messages at once and
// large ones in few parts, and notices a machine that is gone.
Status PrepareForExchanges(int fd);

// Send all bytes, or receive n bytes, or fail after so many milliseconds. The socket may be
// blocking or not.
Status SendAll(int fd, const void* bytes, size_t n, int64_t milliseconds);
Status ReceiveAll(int fd, void* bytes, size_t n, int64_t milliseconds);

// Returns a kUnavailable status with the text "<what>: <the system's words for the error>".
Status SocketError(const std::string& what, int error);

}  // namespace sok
