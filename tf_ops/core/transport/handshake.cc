#include "core/transport/handshake.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

namespace sok {
namespace {

// The first bytes of a connection.
struct Hello {
  char magic[8];
  char token[32];  // of who is called
  uint32_t rank;   // of who calls
};
constexpr char kMagic[8] = {'s', 'o', 'k', 'm', 'e', 's', 'h', '1'};

// Somebody who has called and not said yet who it is.
struct Caller {
  Descriptor socket;
  Hello hello;
  size_t received = 0;
};

// By a local socket where both are of one system, else, and where that fails, by the port.
Result<Descriptor> Reach(const WorkerAddress& own, const WorkerAddress& address, int64_t end) {
  if (!own.system.empty() && own.system == address.system) {
    Result<Descriptor> made = ConnectLocally(address.token);
    if (made.ok()) return made;
  }
  return ConnectTo(address, std::max<int64_t>(0, end - NowMilliseconds()));
}

Status Call(int rank, const WorkerAddress& own, const WorkerAddress& address, int64_t end,
            Descriptor* connection) {
  Result<Descriptor> made = Reach(own, address, end);
  if (!made.ok()) return made.status();
  Hello hello;
  std::memcpy(hello.magic, kMagic, sizeof(kMagic));
  std::memcpy(hello.token, address.token.data(), sizeof(hello.token));
  hello.rank = static_cast<uint32_t>(rank);
  const Status status = SendAll(made.value().get(), &hello, sizeof(hello),
                                std::max<int64_t>(0, end - NowMilliseconds()));
  if (status.ok()) *connection = std::move(made.value());
  return status;
}

std::string MissingRanks(int rank, const std::vector<Descriptor>& connections) {
  std::string missing;
  for (size_t i = static_cast<size_t>(rank) + 1; i < connections.size(); ++i) {
    if (!connections[i].valid()) missing += (missing.empty() ? "" : ", ") + std::to_string(i);
  }
  return missing;
}

// Takes what has come from a caller. Returns false for one that is done with: it has a place among
// the connections, or is none of the workers.
bool Hear(Caller* caller, int rank, const std::string& token,
          std::vector<Descriptor>* connections) {
  char* const bytes = reinterpret_cast<char*>(&caller->hello);
  const ssize_t n =
      recv(caller->socket.get(), bytes + caller->received, sizeof(Hello) - caller->received, 0);
  if (n <= 0) return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
  caller->received += static_cast<size_t>(n);
  if (caller->received < sizeof(Hello)) return true;
  const Hello& hello = caller->hello;
  if (std::memcmp(hello.magic, kMagic, sizeof(kMagic)) != 0 ||
      std::memcmp(hello.token, token.data(), sizeof(hello.token)) != 0 ||
      hello.rank <= static_cast<uint32_t>(rank) || hello.rank >= connections->size()) {
    return false;
  }
  (*connections)[hello.rank] = std::move(caller->socket);
  return false;
}

}  // namespace

Result<std::vector<Descriptor>> ConnectAll(int rank, const std::vector<WorkerAddress>& addresses,
                                           const Listening& listening, int64_t milliseconds) {
  const int64_t end = NowMilliseconds() + milliseconds;
  std::vector<Descriptor> connections(addresses.size());
  for (int other = 0; other < rank; ++other) {
    const Status status = Call(rank, addresses[rank], addresses[other], end, &connections[other]);
    if (!status.ok()) return status.Within("", "; is worker " + std::to_string(other) + " alive?");
  }
  std::vector<Caller> callers;
  while (!MissingRanks(rank, connections).empty()) {
    const int64_t left = end - NowMilliseconds();
    if (left <= 0) {
      return Status(Code::kUnavailable,
                    "expected every worker to connect within the timeout; still missing: " +
                        MissingRanks(rank, connections) + "; look at their output");
    }
    // A descriptor that is none is skipped.
    std::vector<pollfd> polled{{listening.port.get(), POLLIN, 0},
                               {listening.local.get(), POLLIN, 0}};
    const size_t listeners = polled.size();
    for (const Caller& caller : callers) polled.push_back({caller.socket.get(), POLLIN, 0});
    if (poll(polled.data(), polled.size(), static_cast<int>(std::min<int64_t>(left, 1000))) < 0 &&
        errno != EINTR) {
      return SocketError("waiting for the other workers", errno);
    }
    for (size_t i = callers.size(); i-- > 0;) {
      if (polled[listeners + i].revents == 0) continue;
      if (!Hear(&callers[i], rank, addresses[rank].token, &connections)) {
        callers.erase(callers.begin() + static_cast<ptrdiff_t>(i));
      }
    }
    for (size_t i = 0; i < listeners; ++i) {
      if ((polled[i].revents & POLLIN) == 0) continue;
      const int fd = accept4(polled[i].fd, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (fd >= 0) callers.push_back({Descriptor(fd), {}, 0});
    }
  }
  for (size_t i = 0; i < connections.size(); ++i) {
    if (static_cast<int>(i) == rank) continue;
    const Status status = PrepareForExchanges(connections[i].get());
    if (!status.ok()) return status;
  }
  return connections;
}

}  // namespace sok
