#include "core/transport/socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <system_error>
#include <utility>

#include "core/base/checksum.h"
#include "core/base/sha256.h"
#include "core/base/status_macros.h"

namespace sok {
namespace {

// So many bytes wait in a local socket, or what the system allows. In its default of some 200 KiB
// the two workers would take turns, one sending a little and the other reading it.
constexpr int kLocalRoom = 1 << 20;

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Result<Addresses> Resolve(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) {
    return Status(Code::kUnavailable, "expected the address of a worker, got '" + host +
                                          "': " + gai_strerror(error) +
                                          "; give workers addresses that all of them can reach");
  }
  return Addresses(found, freeaddrinfo);
}

std::string HexDigits(uint64_t number) {
  std::string digits;
  for (int shift = 60; shift >= 0; shift -= 4) digits += "0123456789abcdef"[(number >> shift) & 15];
  return digits;
}

// Returns the name of the local socket of the worker with this token. The name is not a file, and
// goes when the process ends. Anybody can list such names, so it is made of a digest, from which
// nobody can compute the token.
std::pair<sockaddr_un, socklen_t> LocalName(const std::string& token) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  uint64_t number = 0;
  std::memcpy(&number, Sha256(token).data(), sizeof(number));
  const std::string name = "sok-embed." + HexDigits(number);
  std::copy(name.begin(), name.end(), address.sun_path + 1);
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())};
}

bool IsLoopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(address);
    return (ntohl(v4->sin_addr.s_addr) >> 24) == 127;
  }
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(address);
  return IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr) != 0;
}

Status SetOption(int fd, int level, int option, int value, const char* what) {
  if (setsockopt(fd, level, option, &value, sizeof(value)) == 0) return Status();
  return SocketError(std::string("setting ") + what + " of a connection", errno);
}

// Waits until a socket can be read or written, or until the time `end`.
Status Await(int fd, short events, int64_t end) {
  for (;;) {
    const int64_t left = std::max<int64_t>(0, end - NowMilliseconds());
    pollfd polled{fd, events, 0};
    const int ready = poll(&polled, 1, static_cast<int>(std::min<int64_t>(left, INT32_MAX)));
    if (ready > 0) return Status();
    if (ready < 0 && errno != EINTR) return SocketError("waiting for a connection", errno);
    if (ready == 0 && NowMilliseconds() >= end) {
      return SocketError("waiting for a connection", ETIMEDOUT);
    }
  }
}

// Moves all bytes with `move`, which is send or recv.
template <typename Move>
Status MoveAll(int fd, size_t n, short events, int64_t milliseconds, const Move& move) {
  const int64_t end = NowMilliseconds() + milliseconds;
  for (size_t done = 0; done < n;) {
    const ssize_t moved = move(done);
    if (moved > 0) {
      done += static_cast<size_t>(moved);
    } else if (moved == 0) {
      return SocketError("talking to a worker", ECONNRESET);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      SOK_RETURN_IF_ERROR(Await(fd, events, end));
    } else if (errno != EINTR) {
      return SocketError("talking to a worker", errno);
    }
  }
  return Status();
}

}  // namespace

std::string WorkerAddress::ToText() const {
  return host + " " + std::to_string(port) + " " + token + " " + (system.empty() ? "-" : system);
}

Result<WorkerAddress> WorkerAddress::FromText(const std::string& text) {
  WorkerAddress address;
  std::istringstream words(text);
  std::string rest;
  uint32_t port = 0;
  words >> address.host >> port >> address.token >> address.system;
  if (address.system == "-") address.system.clear();
  if (words.fail() || (words >> rest) || port == 0 || port > UINT16_MAX ||
      address.token.size() != 32) {
    return InvalidArgument("expected the address of a worker, which Mesh::address returns, got '" +
                           text + "'; hand on what every worker says, unchanged");
  }
  address.port = static_cast<uint16_t>(port);
  return address;
}

Result<std::string> RandomToken() {
  unsigned char bytes[16];
  if (getentropy(bytes, sizeof(bytes)) != 0) {
    return Status(Code::kInternal, std::string("the system gave no random numbers: ") +
                                       std::generic_category().message(errno));
  }
  std::string digits;
  for (const unsigned char byte : bytes) {
    digits += "0123456789abcdef"[byte >> 4];
    digits += "0123456789abcdef"[byte & 15];
  }
  return digits;
}

Result<Descriptor> ListenFor(const std::string& host, int backlog, uint16_t* port) {
  SOK_ASSIGN_OR_RETURN(auto found, Resolve(host, 0));
  const addrinfo* first = found.get();
  sockaddr_storage address{};
  std::memcpy(&address, first->ai_addr, first->ai_addrlen);
  // The name of a host may resolve, on the host itself, to its loopback interface, which other
  // hosts cannot reach.
  const bool is_number = host.find_first_not_of("0123456789abcdefABCDEF.:") == std::string::npos;
  if (!IsLoopback(first->ai_addr) || !(is_number || host == "localhost")) {
    // The socket listens on all interfaces: the network decides by which one other workers come.
    if (address.ss_family == AF_INET) {
      reinterpret_cast<sockaddr_in*>(&address)->sin_addr.s_addr = htonl(INADDR_ANY);
    } else {
      reinterpret_cast<sockaddr_in6*>(&address)->sin6_addr = in6addr_any;
    }
  }
  Descriptor listening(socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listening.valid()) return SocketError("opening a socket for the other workers", errno);
  socklen_t length = first->ai_addrlen;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (bind(listening.get(), generic, length) != 0 || listen(listening.get(), backlog) != 0 ||
      getsockname(listening.get(), generic, &length) != 0) {
    return SocketError("listening for the other workers at " + host, errno);
  }
  *port =
      ntohs(address.ss_family == AF_INET ? reinterpret_cast<sockaddr_in*>(&address)->sin_port
                                         : reinterpret_cast<sockaddr_in6*>(&address)->sin6_port);
  return listening;
}

Result<Descriptor> ConnectTo(const WorkerAddress& address, int64_t milliseconds) {
  SOK_ASSIGN_OR_RETURN(auto found, Resolve(address.host, address.port));
  const std::string what =
      "connecting to the worker at " + address.host + ":" + std::to_string(address.port);
  const int64_t end = NowMilliseconds() + milliseconds;
  Status status;
  for (const addrinfo* at = found.get(); at != nullptr; at = at->ai_next) {
    Descriptor made(socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!made.valid()) return SocketError(what, errno);
    if (connect(made.get(), at->ai_addr, at->ai_addrlen) == 0) return made;
    if (errno != EINPROGRESS) {
      status = SocketError(what, errno);
      continue;
    }
    status = Await(made.get(), POLLOUT, end);
    if (!status.ok()) {
      status = SocketError(what, ETIMEDOUT);
      continue;
    }
    int error = 0;
    socklen_t length = sizeof(error);
    getsockopt(made.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error == 0) return made;
    status = SocketError(what, error);
  }
  return status;
}

std::string LocalSystem() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  char network[64];
  const ssize_t n = readlink("/proc/self/ns/net", network, sizeof(network));
  if (boot.empty() || n <= 0) return "";
  boot.append(network, static_cast<size_t>(n));
  return HexDigits(Checksum(boot.data(), boot.size(), 0));
}

Result<Descriptor> ListenLocally(const std::string& token, int backlog) {
  Descriptor listening(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listening.valid()) return SocketError("opening a local socket", errno);
  const auto [address, length] = LocalName(token);
  if (bind(listening.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      listen(listening.get(), backlog) != 0) {
    return SocketError("listening for workers of this system", errno);
  }
  return listening;
}

Result<Descriptor> ConnectLocally(const std::string& token) {
  Descriptor made(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!made.valid()) return SocketError("opening a local socket", errno);
  const auto [address, length] = LocalName(token);
  if (connect(made.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    return SocketError("connecting to a worker of this system", errno);
  }
  return made;
}

Status PrepareForExchanges(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) {
    return SocketError("preparing a connection", errno);
  }
  int domain = 0;
  socklen_t length = sizeof(domain);
  if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) != 0) {
    return SocketError("preparing a connection", errno);
  }
  // A local socket does not delay small messages, and ends with the process at its other end.
  if (domain == AF_UNIX) return SetOption(fd, SOL_SOCKET, SO_SNDBUF, kLocalRoom, "SO_SNDBUF");
  const struct {
    int level, option, value;
    const char* what;
  } options[] = {
      {IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY"},
      // A machine that is gone sends nothing. The system sends it a probe after 30 s of silence,
      // and gives it up 30 s later.
      {SOL_SOCKET, SO_KEEPALIVE, 1, "SO_KEEPALIVE"},
      {IPPROTO_TCP, TCP_KEEPIDLE, 30, "TCP_KEEPIDLE"},
      {IPPROTO_TCP, TCP_KEEPINTVL, 10, "TCP_KEEPINTVL"},
      {IPPROTO_TCP, TCP_KEEPCNT, 3, "TCP_KEEPCNT"},
  };
  for (const auto& option : options) {
    SOK_RETURN_IF_ERROR(SetOption(fd, option.level, option.option, option.value, option.what));
  }
  return Status();
}

Status SendAll(int fd, const void* bytes, size_t n, int64_t milliseconds) {
  return MoveAll(fd, n, POLLOUT, milliseconds, [&](size_t done) {
    return send(fd, static_cast<const char*>(bytes) + done, n - done, MSG_NOSIGNAL);
  });
}

Status ReceiveAll(int fd, void* bytes, size_t n, int64_t milliseconds) {
  return MoveAll(fd, n, POLLIN, milliseconds, [&](size_t done) {
    return recv(fd, static_cast<char*>(bytes) + done, n - done, 0);
  });
}

Status SocketError(const std::string& what, int error) {
  return Status(Code::kUnavailable, what + ": " + std::generic_category().message(error));
}

}  // namespace sok
