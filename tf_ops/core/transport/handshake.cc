#include "core/transport/handshake.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/sha256.h"
#include "core/base/status_macros.h"

namespace sok {
namespace {

const Status kInterrupted =
    Status::Literal(Code::kUnavailable, "the process was interrupted while workers connected");

// The most callers without a proof at a time, beside one for each worker. Below it, in
// milliseconds: how long a caller may take for its proof, and how long a worker tries one
// connection.
constexpr size_t kMostUnproven = 64;
constexpr int64_t kLongestProof = 10000;
constexpr int64_t kLongestTry = 10000;
constexpr int kPause = 20;
// The most calls that are accepted in a row before the callers that are connected are read from.
constexpr int kCallsAtOnce = 16;

constexpr size_t kNonceBytes = 32;

// The first bytes of a connection; the caller sends them.
struct Greeting {
  char magic[8];
  uint32_t caller, callee;  // ranks
  char nonce[kNonceBytes];  // random, for this connection only
};
// The answer of the worker that was called. The caller has not proved yet who it is.
struct Answer {
  char nonce[kNonceBytes];
};
// After the answer the caller sends its proof, and receives this byte once it has been accepted as
// a worker.
constexpr char kTakenIn = 1;
constexpr char kMagic[8] = {'s', 'o', 'k', 'm', 'e', 's', 'h', '2'};

// Returns the proof that `role` takes part in this very handshake and knows secret and token. A
// proof cannot be sent back as an answer to itself, since the roles differ.
Sha256Digest Proof(const std::string& secret, const std::string& token, std::string_view role,
                   const Greeting& greeting, const Answer& answer) {
  const Sha256Digest key = HmacSha256(secret, token);
  std::string message(role);
  message.append(1, '\0');
  message.append(reinterpret_cast<const char*>(&greeting), sizeof(greeting));
  message.append(reinterpret_cast<const char*>(&answer), sizeof(answer));
  return HmacSha256({reinterpret_cast<const char*>(key.data()), key.size()}, message);
}
constexpr std::string_view kCaller = "caller", kCallee = "callee";

Status MakeNonce(char* nonce) {
  SOK_ASSIGN_OR_RETURN(const auto token, RandomToken());
  token.copy(nonce, kNonceBytes);
  return Status();
}

// --- the caller ---------------------------------------------------------------------------------

// Connects by a local socket if both workers are on one system. If they are not, or if that fails,
// connects by the port.
Result<Descriptor> ConnectToWorker(const WorkerAddress& own, const WorkerAddress& address,
                                   int64_t end) {
  if (!own.system.empty() && own.system == address.system) {
    Result<Descriptor> made = ConnectLocally(address.token);
    if (made.ok()) return made;
  }
  return ConnectTo(address, std::max<int64_t>(0, end - NowMilliseconds()));
}

// Introduces this worker on a connection, and sets `is_taken_in` once the other side has accepted
// it. A connection that ends before that may be tried again.
Status Introduce(int rank, int other, const std::string& secret, const std::string& token, int fd,
                 int64_t end, bool* is_taken_in) {
  const auto left = [end] { return std::max<int64_t>(0, end - NowMilliseconds()); };
  Greeting greeting;
  std::memcpy(greeting.magic, kMagic, sizeof(kMagic));
  greeting.caller = static_cast<uint32_t>(rank);
  greeting.callee = static_cast<uint32_t>(other);
  SOK_RETURN_IF_ERROR(MakeNonce(greeting.nonce));
  Answer answer;
  Sha256Digest proof;
  char taken_in = 0;
  if (!SendAll(fd, &greeting, sizeof(greeting), left()).ok() ||
      !ReceiveAll(fd, &answer, sizeof(answer), left()).ok() ||
      !ReceiveAll(fd, proof.data(), proof.size(), left()).ok()) {
    return Status();
  }
  if (!SameDigest(proof, Proof(secret, token, kCallee, greeting, answer))) {
    return Status(Code::kUnavailable,
                  "expected a worker that proves to belong to this job, got a process that does "
                  "not: another program, or a worker with another SOK_EMBED_SECRET");
  }
  proof = Proof(secret, token, kCaller, greeting, answer);
  *is_taken_in = SendAll(fd, proof.data(), proof.size(), left()).ok() &&
                 ReceiveAll(fd, &taken_in, 1, left()).ok() && taken_in == kTakenIn;
  return Status();
}

Status Call(int rank, int other, const std::string& secret,
            const std::vector<WorkerAddress>& addresses, int64_t end, Descriptor* connection) {
  const WorkerAddress& address = addresses[static_cast<size_t>(other)];
  const int64_t begin = NowMilliseconds();
  for (;;) {
    if (InterruptedSince(begin, 0)) return kInterrupted;
    SOK_ASSIGN_OR_RETURN(auto made,
                         ConnectToWorker(addresses[static_cast<size_t>(rank)], address, end));
    bool is_taken_in = false;
    const Status status = Introduce(rank, other, secret, address.token, made.get(),
                                    std::min(end, NowMilliseconds() + kLongestTry), &is_taken_in);
    if (is_taken_in) *connection = std::move(made);
    if (is_taken_in || !status.ok()) return status;
    if (NowMilliseconds() >= end) {
      return Status(Code::kUnavailable, "expected an answer within the timeout, got none");
    }
    // The other side may have had no room for this worker among many strangers.
    poll(nullptr, 0, kPause);
  }
}

// --- the worker that is called ------------------------------------------------------------------

// A caller that has not proved yet who it is.
class Caller {
 public:
  explicit Caller(int fd) : socket_(fd) {}

  int fd() const { return socket_.get(); }
  bool is_late() const { return NowMilliseconds() >= until_; }

  // Reads what has come. Returns false if the caller can be forgotten: it has become one of the
  // connections, or it is not a worker.
  bool ReadMessages(int rank, const std::string& secret, const std::string& token,
                    std::vector<Descriptor>* connections) {
    char* const bytes =
        has_answer_ ? reinterpret_cast<char*>(proof_.data()) : reinterpret_cast<char*>(&greeting_);
    const size_t wanted = has_answer_ ? proof_.size() : sizeof(greeting_);
    const ssize_t n = recv(fd(), bytes + received_, wanted - received_, 0);
    if (n <= 0) return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
    received_ += static_cast<size_t>(n);
    if (received_ < wanted) return true;
    received_ = 0;
    if (!has_answer_) return Reply(rank, secret, token, connections->size());
    if (!SameDigest(proof_, Proof(secret, token, kCaller, greeting_, answer_))) return false;
    if (SendNow(&kTakenIn, 1)) (*connections)[greeting_.caller] = std::move(socket_);
    return false;
  }

 private:
  // Returns false for a greeting that no worker would send.
  bool Reply(int rank, const std::string& secret, const std::string& token, size_t size) {
    if (std::memcmp(greeting_.magic, kMagic, sizeof(kMagic)) != 0 ||
        greeting_.callee != static_cast<uint32_t>(rank) ||
        greeting_.caller <= static_cast<uint32_t>(rank) || greeting_.caller >= size ||
        !MakeNonce(answer_.nonce).ok()) {
      return false;
    }
    has_answer_ = true;
    const Sha256Digest proof = Proof(secret, token, kCallee, greeting_, answer_);
    return SendNow(&answer_, sizeof(answer_)) && SendNow(proof.data(), proof.size());
  }

  // Sends without waiting: so few bytes fit into the buffer of a new connection.
  bool SendNow(const void* bytes, size_t n) {
    return send(fd(), bytes, n, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(n);
  }

  Descriptor socket_;
  int64_t until_ = NowMilliseconds() + kLongestProof;
  Greeting greeting_;
  Answer answer_;
  Sha256Digest proof_;
  bool has_answer_ = false;
  size_t received_ = 0;  // bytes of the greeting, or of the proof
};

std::string MissingRanks(int rank, const std::vector<Descriptor>& connections) {
  std::string missing;
  for (size_t i = static_cast<size_t>(rank) + 1; i < connections.size(); ++i) {
    if (!connections[i].valid()) missing += (missing.empty() ? "" : ", ") + std::to_string(i);
  }
  return missing;
}

// Accepts calls. If there are too many callers, those who have waited longest are dropped.
void AcceptCallers(int listening, size_t most, std::vector<Caller>* callers) {
  for (int i = 0; i < kCallsAtOnce; ++i) {
    const int fd = accept4(listening, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    const bool is_exhausted =
        fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM);
    if (is_exhausted && callers->empty()) poll(nullptr, 0, kPause);
    if ((is_exhausted && !callers->empty()) || (fd >= 0 && callers->size() == most)) {
      callers->erase(callers->begin());
    }
    if (fd < 0) return;
    callers->emplace_back(fd);
  }
}

}  // namespace

Result<std::vector<Descriptor>> ConnectAll(int rank, const std::string& secret,
                                           const std::vector<WorkerAddress>& addresses,
                                           const Listening& listening, int64_t milliseconds) {
  const int64_t end = NowMilliseconds() + milliseconds;
  const std::string& token = addresses[static_cast<size_t>(rank)].token;
  std::vector<Descriptor> connections(addresses.size());
  for (int other = 0; other < rank; ++other) {
    Descriptor& connection = connections[static_cast<size_t>(other)];
    const Status status = Call(rank, other, secret, addresses, end, &connection);
    if (!status.ok()) return status.Within("", "; is worker " + std::to_string(other) + " alive?");
  }
  std::vector<Caller> callers;
  const int64_t begin = NowMilliseconds();
  while (!MissingRanks(rank, connections).empty()) {
    const int64_t left = end - NowMilliseconds();
    if (InterruptedSince(begin, 0)) return kInterrupted;
    if (left <= 0) {
      return Status(Code::kUnavailable,
                    "expected every worker to connect within the timeout; still missing: " +
                        MissingRanks(rank, connections) + "; look at their output");
    }
    // poll() skips a descriptor of -1.
    std::vector<pollfd> polled{{listening.port.get(), POLLIN, 0},
                               {listening.local.get(), POLLIN, 0}};
    const size_t listeners = polled.size();
    for (const Caller& caller : callers) polled.push_back({caller.fd(), POLLIN, 0});
    if (poll(polled.data(), polled.size(), static_cast<int>(std::min<int64_t>(left, 1000))) < 0 &&
        errno != EINTR) {
      return SocketError("waiting for the other workers", errno);
    }
    for (size_t i = callers.size(); i-- > 0;) {
      const bool has_said = polled[listeners + i].revents != 0;
      if (has_said ? !callers[i].ReadMessages(rank, secret, token, &connections)
                   : callers[i].is_late()) {
        callers.erase(callers.begin() + static_cast<ptrdiff_t>(i));
      }
    }
    for (size_t i = 0; i < listeners; ++i) {
      if ((polled[i].revents & POLLIN) != 0)
        AcceptCallers(polled[i].fd, kMostUnproven + connections.size(), &callers);
    }
  }
  for (size_t i = 0; i < connections.size(); ++i) {
    if (static_cast<int>(i) == rank) continue;
    SOK_RETURN_IF_ERROR(PrepareForExchanges(connections[i].get()));
  }
  return connections;
}

}  // namespace sok
