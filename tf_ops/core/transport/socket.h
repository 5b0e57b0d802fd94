// Sockets between workers. Internal to the transport.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/base/status.h"

namespace sok {

// Owns a file descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() { Close(); }
  Descriptor(Descriptor&& other) noexcept : fd_(other.Release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    Close();
    fd_ = other.Release();
    return *this;
  }
  Descriptor(const Descriptor&) = delete;

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void Close();

 private:
  int Release() {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }

  int fd_ = -1;
};

// The place at which a worker listens, and a token that whoever connects has to know, beside the
// secret of the job if there is one. Workers tell each other its text before there are connections.
struct WorkerAddress {
  std::string host;  // a name or a number; without spaces
  uint16_t port = 0;
  std::string token;  // 32 hexadecimal digits
  // The same on two workers whose local sockets see each other. Empty: it listens on none.
  std::string system;

  std::string ToText() const;
  static Result<WorkerAddress> FromText(const std::string& text);
};

// Returns 16 random bytes in hexadecimal digits.
Result<std::string> RandomToken();

// A socket that listens on a free port, on the loopback interface if `host` is of it, else on all.
Result<Descriptor> ListenFor(const std::string& host, int backlog, uint16_t* port);

// Connects within so many milliseconds.
Result<Descriptor> ConnectTo(const WorkerAddress& address, int64_t milliseconds);

// Names what a local socket is seen by: the running system, and in it the network that this process
// belongs to, of which a container has its own. Empty if the system does not say.
std::string LocalSystem();

// The same over a local socket, which moves rows between processes of one system two to three times
// as fast as the loopback interface. Its name follows from the worker's token.
Result<Descriptor> ListenLocally(const std::string& token, int backlog);
Result<Descriptor> ConnectLocally(const std::string& token);

// Makes a connected socket fit for exchanges: it does not block, sends small messages at once, and
// notices a machine that is gone.
Status PrepareForExchanges(int fd);

// Sends all bytes, or receives as many, within so many milliseconds. The socket may block or not.
Status SendAll(int fd, const void* bytes, size_t n, int64_t milliseconds);
Status ReceiveAll(int fd, void* bytes, size_t n, int64_t milliseconds);

// A status of the kind kUnavailable: "<what>: <the system's words for an error>".
Status SocketError(const std::string& what, int error);

// Milliseconds of a clock that only goes forward.
int64_t NowMilliseconds();

}  // namespace sok
