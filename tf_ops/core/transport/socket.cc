#include "core/transport/socket.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <system_error>

#include "core/base/status_macros.h"

namespace sok {
namespace {

// So many bytes wait in a local socket, or what the system allows. In its default of some 200 KiB
// the two workers would take turns, one sending a little and the other reading it.
constexpr int kLocalRoom = 1 << 20;

Status SetOption(int fd, int level, int option, int value, const char* what) {
  if (setsockopt(fd, level, option, &value, sizeof(value)) == 0) return Status();
  return SocketError(std::string("setting ") + what + " of a connection", errno);
}

}  // namespace

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

Status SocketError(const std::string& what, int error) {
  return Status(Code::kUnavailable, what + ": " + std::generic_category().message(error));
}

}  // namespace sok
