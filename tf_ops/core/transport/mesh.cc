#include "core/transport/mesh.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <thread>
#include <unordered_map>
#include <utility>

#include "core/base/checksum.h"
#include "core/transport/frame.h"
#include "core/transport/handshake.h"
#include "core/transport/outbox.h"
#include "core/transport/pending_exchange.h"
#include "core/transport/socket.h"

namespace sok {
namespace {

// Small frames come out of one call of the system, through a buffer; the rest of large ones goes to
// its place directly.
constexpr size_t kBufferBytes = 64 << 10;
// So much is read of one connection before the others have their turn.
constexpr size_t kReadAtOnce = 1 << 20;
// The text of a worker that gives up.
constexpr uint64_t kMostWhyBytes = 1 << 16;

struct Tag {
  uint64_t name, turn;
  bool operator<(const Tag& other) const {
    return name != other.name ? name < other.name : turn < other.turn;
  }
};

// The connection to one worker. But for its outbox, only the mesh's own thread uses it.
struct Peer {
  int rank = 0;
  std::string place;  // "10.0.0.2:4711"
  Descriptor socket;
  Outbox outbox;
  bool lost = false;  // guarded by the mesh's mutex

  std::unique_ptr<char[]> buffer{new char[kBufferBytes]};
  FrameHeader header;
  size_t header_bytes = 0;  // that have come
  std::shared_ptr<PendingExchange> exchange;
  std::string why;
  char* into = nullptr;
  size_t left = 0;  // bytes of the frame that have not come
};

std::string Seconds(double seconds) {
  std::string text = std::to_string(seconds);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

}  // namespace

class Mesh::Work {
 public:
  Work(const MeshOptions& options, Descriptor listening, WorkerAddress own)
      : options_(options),
        listening_(std::move(listening)),
        own_(std::move(own)),
        address_(own_.ToText()) {}
  ~Work();

  const MeshOptions& options() const { return options_; }
  const std::string& address() const { return address_; }
  Status Connect(const std::vector<std::string>& addresses);
  void Exchange(ExchangeRequest request);
  MeshStats Stats() const;

 private:
  using Pending = std::shared_ptr<PendingExchange>;

  // --- the callers' side
  Status Begin(ExchangeRequest* request, uint64_t* turn, Pending* begun);
  Status CheckRequest(const ExchangeRequest& request) const;
  void SendParts(const Pending& exchange);
  // Copies what this worker has for itself, if there is a place for it now.
  void CopyOwnIfDue(const Pending& exchange);
  // Ends an exchange if nothing is missing. Without the mutex.
  void Settle(const Pending& exchange);
  // Has the mesh's thread end the mesh.
  void BreakSoon(const Status& status);

  // --- the mesh's own thread
  void Run();
  void Handle(uint32_t events, Peer* peer);
  // Returns false once the connection has ended.
  bool Read(Peer* peer);
  Status Take(Peer* peer, const char* bytes, size_t n);
  Status BeginFrame(Peer* peer);
  Status EndFrame(Peer* peer);
  void Lose(Peer* peer);
  void CheckTimes();
  void Break(const Status& status);

  bool is_broken() const {
    std::lock_guard<std::mutex> guard(mu_);
    return !broken_.ok();
  }
  Pending Find(const Tag& tag);
  std::string Place(int worker) const {
    return std::to_string(worker) + " (" + peers_[static_cast<size_t>(worker)]->place + ")";
  }

  const MeshOptions options_;
  Descriptor listening_;
  const WorkerAddress own_;
  const std::string address_;
  std::vector<std::unique_ptr<Peer>> peers_;  // (size) null for this worker
  Descriptor epoll_, wake_;
  std::thread thread_;

  mutable std::mutex mu_;
  Status broken_, break_soon_;
  bool ending_ = false, connected_ = false;
  struct Name {
    std::string text;
    uint64_t turns = 0;
  };
  std::unordered_map<uint64_t, Name> names_;
  std::map<Tag, Pending> pending_;
  MeshStats stats_;
};

// --- how a mesh begins and ends -----------------------------------------------------------------

Status Mesh::Work::Connect(const std::vector<std::string>& addresses) {
  if (connected_) {
    return Status(Code::kFailedPrecondition, "expected one call of Connect, got another");
  }
  if (addresses.size() != static_cast<size_t>(options_.size)) {
    return InvalidArgument("expected the addresses of " + std::to_string(options_.size) +
                           " workers, got " + std::to_string(addresses.size()));
  }
  std::vector<WorkerAddress> parsed;
  for (const std::string& text : addresses) {
    Result<WorkerAddress> address = WorkerAddress::FromText(text);
    if (!address.ok()) return address.status();
    parsed.push_back(std::move(address.value()));
  }
  const auto milliseconds = static_cast<int64_t>(options_.timeout_seconds * 1000);
  Result<std::vector<Descriptor>> made =
      ConnectAll(options_.rank, parsed, listening_, milliseconds);
  if (!made.ok()) return made.status();
  listening_.Close();

  epoll_ = Descriptor(epoll_create1(EPOLL_CLOEXEC));
  wake_ = Descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll_.valid() || !wake_.valid()) return SocketError("watching connections", errno);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = nullptr;
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event);
  for (int rank = 0; rank < options_.size; ++rank) {
    peers_.push_back(nullptr);
    if (rank == options_.rank) continue;
    auto peer = std::make_unique<Peer>();
    const WorkerAddress& at = parsed[static_cast<size_t>(rank)];
    peer->rank = rank;
    peer->place = at.host + ":" + std::to_string(at.port);
    peer->socket = std::move(made.value()[static_cast<size_t>(rank)]);
    const int fd = peer->socket.get();
    Peer* const raw = peer.get();
    const auto watch = [this, fd, raw](int what, uint32_t events) {
      epoll_event changed{};
      changed.events = events;
      changed.data.ptr = raw;
      return epoll_ctl(epoll_.get(), what, fd, &changed);
    };
    if (watch(EPOLL_CTL_ADD, EPOLLIN) != 0) return SocketError("watching a connection", errno);
    peer->outbox.Open(fd, [watch](bool wants_to_write) {
      watch(EPOLL_CTL_MOD, wants_to_write ? EPOLLIN | EPOLLOUT : EPOLLIN);
    });
    peers_.back() = std::move(peer);
  }
  connected_ = true;
  thread_ = std::thread([this] { Run(); });
  return Status();
}

Mesh::Work::~Work() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard<std::mutex> guard(mu_);
    ending_ = true;
  }
  BreakSoon(Status(Code::kUnavailable, "the mesh of worker " + std::to_string(options_.rank) +
                                           " was closed while an exchange was under way"));
  thread_.join();
}

// --- exchanges ----------------------------------------------------------------------------------

Status Mesh::Work::CheckRequest(const ExchangeRequest& request) const {
  if (!connected_) {
    return Status(Code::kFailedPrecondition, "expected Connect before an exchange");
  }
  if (request.parts.size() == static_cast<size_t>(options_.size)) return Status();
  return InvalidArgument("expected rows for " + std::to_string(options_.size) +
                         " workers in the exchange '" + request.name + "', got them for " +
                         std::to_string(request.parts.size()));
}

Mesh::Work::Pending Mesh::Work::Find(const Tag& tag) {
  Pending& found = pending_[tag];
  if (found == nullptr) {
    found = std::make_shared<PendingExchange>(options_.rank, options_.size);
    found->last_sign = NowMilliseconds();
  }
  return found;
}

Status Mesh::Work::Begin(ExchangeRequest* request, uint64_t* turn, Pending* begun) {
  Status status = CheckRequest(*request);
  if (!status.ok()) return status;
  const uint64_t hash = Checksum(request->name.data(), request->name.size(), 0);
  std::lock_guard<std::mutex> guard(mu_);
  if (!broken_.ok()) return broken_;
  Name& name = names_[hash];
  if (name.text.empty()) name.text = request->name;
  if (name.text != request->name) {
    return InvalidArgument("the names of the exchanges '" + name.text + "' and '" + request->name +
                           "' have one hash; rename one of their layers");
  }
  *turn = request->turn.value_or(name.turns);
  if (!request->turn) ++name.turns;
  Pending exchange = Find({hash, *turn});
  if (exchange->begun()) {
    return Status(Code::kFailedPrecondition, "expected one exchange '" + request->name +
                                                 "' of turn " + std::to_string(*turn) +
                                                 " at a time, got another while it is under way");
  }
  for (const std::unique_ptr<Peer>& peer : peers_) {
    if (peer == nullptr || !peer->lost || exchange->has_arrived(peer->rank)) continue;
    return Status(Code::kUnavailable, "expected worker " + Place(peer->rank) +
                                          " to take part in the exchange '" + request->name +
                                          "', but its process has ended; look at its output");
  }
  exchange->last_sign = NowMilliseconds();
  exchange->Hold();
  *begun = exchange;
  status = exchange->Begin(std::move(*request), *turn);
  if (!status.ok()) exchange->Fail(status);
  return Status();
}

void Mesh::Work::Exchange(ExchangeRequest request) {
  uint64_t turn = 0;
  Pending exchange;
  Status status;
  try {
    status = Begin(&request, &turn, &exchange);
  } catch (const std::bad_alloc&) {
    status = Status::Literal(Code::kResourceExhausted, "no memory for an exchange");
  }
  if (exchange == nullptr) {
    // The other workers would wait for this one.
    if (connected_) BreakSoon(status);
    request.done(status, turn);
    return;
  }
  {
    std::lock_guard<std::mutex> guard(mu_);
    status = exchange->status();
  }
  if (status.ok()) {
    SendParts(exchange);
    CopyOwnIfDue(exchange);
  } else {
    BreakSoon(status);
  }
  {
    std::lock_guard<std::mutex> guard(mu_);
    exchange->Release();
  }
  Settle(exchange);
}

void Mesh::Work::SendParts(const Pending& exchange) {
  const ExchangeRequest& request = exchange->request();
  FrameHeader header;
  header.name = Checksum(request.name.data(), request.name.size(), 0);
  header.turn = exchange->turn();
  header.row_type = request.row_type;
  uint64_t bytes = 0;
  // Each begins with another worker, so that not all send to one.
  for (int i = 1; i < options_.size; ++i) {
    const auto worker = static_cast<size_t>((options_.rank + i) % options_.size);
    const ExchangePart& part = request.parts[worker];
    header.count = part.count;
    header.bytes = part.count * request.row_bytes;
    bytes += header.bytes;
    {
      std::lock_guard<std::mutex> guard(mu_);
      exchange->HoldFrame();
    }
    const auto sent = [this, exchange] {
      {
        std::lock_guard<std::mutex> guard(mu_);
        exchange->ReleaseFrame();
      }
      Settle(exchange);
    };
    if (peers_[worker]->outbox.Send(header, part.rows, sent)) {
      std::lock_guard<std::mutex> guard(mu_);
      exchange->ReleaseFrame();
    }
  }
  std::lock_guard<std::mutex> guard(mu_);
  stats_.bytes_sent += bytes;
}

void Mesh::Work::CopyOwnIfDue(const Pending& exchange) {
  {
    std::lock_guard<std::mutex> guard(mu_);
    if (!exchange->OwnIsDue()) return;
    exchange->Hold();
  }
  exchange->CopyOwn();
  std::lock_guard<std::mutex> guard(mu_);
  exchange->Arrive(options_.rank);
  exchange->Release();
}

void Mesh::Work::Settle(const Pending& exchange) {
  Status status;
  {
    std::lock_guard<std::mutex> guard(mu_);
    if (!exchange->TakeDone()) return;
    status = exchange->status();
    const std::string& name = exchange->request().name;
    pending_.erase({Checksum(name.data(), name.size(), 0), exchange->turn()});
    if (status.ok()) ++stats_.exchanges;
  }
  exchange->request().done(status, exchange->turn());
}

void Mesh::Work::BreakSoon(const Status& status) {
  {
    std::lock_guard<std::mutex> guard(mu_);
    if (break_soon_.ok()) break_soon_ = status;
  }
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
}

MeshStats Mesh::Work::Stats() const {
  std::lock_guard<std::mutex> guard(mu_);
  return stats_;
}

// --- the mesh's own thread ----------------------------------------------------------------------

void Mesh::Work::Run() {
  const double tick = std::clamp(options_.timeout_seconds * 250, 1.0, 1000.0);  // milliseconds
  int64_t next_check = NowMilliseconds();
  for (;;) {
    epoll_event events[64];
    const int n = epoll_wait(epoll_.get(), events, 64, static_cast<int>(tick));
    try {
      for (int i = 0; i < n; ++i) {
        auto* const peer = static_cast<Peer*>(events[i].data.ptr);
        if (peer != nullptr) {
          Handle(events[i].events, peer);
        } else {
          uint64_t count = 0;
          [[maybe_unused]] const ssize_t got = read(wake_.get(), &count, sizeof(count));
        }
      }
      if (NowMilliseconds() >= next_check) {
        CheckTimes();
        next_check = NowMilliseconds() + static_cast<int64_t>(tick);
      }
    } catch (const std::bad_alloc&) {
      Break(Status::Literal(Code::kResourceExhausted, "no memory for what other workers sent"));
    }
    Status status;
    bool ending = false;
    {
      std::lock_guard<std::mutex> guard(mu_);
      status = break_soon_;
      ending = ending_;
    }
    if (!status.ok()) Break(status);
    if (ending) return;
  }
}

void Mesh::Work::Handle(uint32_t events, Peer* peer) {
  if (is_broken()) return;
  if ((events & EPOLLOUT) != 0 && peer->outbox.Continue() > 0) {
    const int64_t now = NowMilliseconds();
    std::lock_guard<std::mutex> guard(mu_);
    for (auto& [tag, exchange] : pending_) exchange->last_sign = now;
  }
  if ((events & ~static_cast<uint32_t>(EPOLLOUT)) != 0 && !Read(peer)) Lose(peer);
}

bool Mesh::Work::Read(Peer* peer) {
  for (size_t total = 0; total < kReadAtOnce;) {
    // Inside of a large frame bytes go to their place.
    const bool direct = peer->left > kBufferBytes;
    char* const at = direct ? peer->into : peer->buffer.get();
    const size_t room = direct ? std::min(peer->left, kReadAtOnce) : kBufferBytes;
    const ssize_t n = recv(peer->socket.get(), at, room, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    if (n == 0) return false;
    const Status status = Take(peer, direct ? nullptr : at, static_cast<size_t>(n));
    if (!status.ok()) {
      Break(status);
      return true;
    }
    if (static_cast<size_t>(n) < room) return true;  // no more for now
    total += static_cast<size_t>(n);
  }
  return true;
}

// Takes bytes that have come; null for those that are in their place.
Status Mesh::Work::Take(Peer* peer, const char* bytes, size_t n) {
  while (n > 0) {
    if (peer->header_bytes < sizeof(FrameHeader)) {
      const size_t some = std::min(n, sizeof(FrameHeader) - peer->header_bytes);
      std::memcpy(reinterpret_cast<char*>(&peer->header) + peer->header_bytes, bytes, some);
      peer->header_bytes += some;
      bytes += some;
      n -= some;
      if (peer->header_bytes < sizeof(FrameHeader)) return Status();
      const Status status = BeginFrame(peer);
      if (!status.ok()) return status;
    } else {
      const size_t some = std::min(n, peer->left);
      if (bytes != nullptr) {
        std::memcpy(peer->into, bytes, some);
        bytes += some;
      }
      peer->into += some;
      peer->left -= some;
      n -= some;
      if (peer->exchange != nullptr) peer->exchange->last_sign = NowMilliseconds();
    }
    if (peer->left == 0) {
      const Status status = EndFrame(peer);
      if (!status.ok()) return status;
    }
  }
  return Status();
}

Status Mesh::Work::BeginFrame(Peer* peer) {
  const FrameHeader& header = peer->header;
  const bool gives_up = header.kind == FrameHeader::kGivingUp;
  if (header.magic != FrameHeader::kMagic || (!gives_up && header.kind != FrameHeader::kRows) ||
      (gives_up && header.bytes > kMostWhyBytes)) {
    return Status(Code::kInternal, "expected a frame of worker " + Place(peer->rank) +
                                       ", got other bytes; do all workers run one version?");
  }
  peer->left = header.bytes;
  if (gives_up) {
    peer->why.resize(header.bytes);
    peer->into = peer->why.data();
    return Status();
  }
  Pending exchange;
  Result<char*> into(nullptr);
  {
    std::lock_guard<std::mutex> guard(mu_);
    if (!broken_.ok()) return broken_;
    exchange = Find({header.name, header.turn});
    exchange->last_sign = NowMilliseconds();
    into = exchange->Announce(peer->rank, header);
  }
  if (!into.ok()) return into.status();
  peer->exchange = exchange;
  peer->into = into.value();
  CopyOwnIfDue(exchange);
  return Status();
}

Status Mesh::Work::EndFrame(Peer* peer) {
  peer->header_bytes = 0;
  if (peer->header.kind == FrameHeader::kGivingUp) {
    return Status(Code::kUnavailable,
                  "worker " + Place(peer->rank) + " has given up: " + peer->why);
  }
  const Pending exchange = std::move(peer->exchange);
  peer->exchange = nullptr;
  {
    std::lock_guard<std::mutex> guard(mu_);
    exchange->Arrive(peer->rank);
  }
  Settle(exchange);
  return Status();
}

void Mesh::Work::Lose(Peer* peer) {
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, peer->socket.get(), nullptr);
  std::string waiting;
  {
    std::lock_guard<std::mutex> guard(mu_);
    peer->lost = true;
    for (const auto& [tag, exchange] : pending_) {
      if (exchange->begun() && (!exchange->has_arrived(peer->rank) || peer->outbox.waits())) {
        waiting = exchange->request().name;
      }
    }
  }
  if (waiting.empty()) return;  // it has done its part, and is gone
  Break(Status(Code::kUnavailable, "expected worker " + Place(peer->rank) +
                                       " to take part in the exchange '" + waiting +
                                       "', but its connection has ended: its process died, or "
                                       "ended early; look at its output"));
}

void Mesh::Work::CheckTimes() {
  const auto timeout = static_cast<int64_t>(options_.timeout_seconds * 1000);
  const int64_t now = NowMilliseconds();
  std::string late, name;
  {
    std::lock_guard<std::mutex> guard(mu_);
    for (const auto& [tag, exchange] : pending_) {
      if (!exchange->begun() || now - exchange->last_sign < timeout) continue;
      name = exchange->request().name;
      late = exchange->Missing();
      for (const std::unique_ptr<Peer>& peer : peers_) {
        if (late.empty() && peer != nullptr && peer->outbox.waits()) late = Place(peer->rank);
      }
      break;
    }
  }
  if (name.empty()) return;
  Break(Status(Code::kUnavailable,
               "expected worker " + late + " in the exchange '" + name + "' within " +
                   Seconds(options_.timeout_seconds) +
                   " s, and heard nothing; it may be stuck, paused, or at work on something that "
                   "the others do not do: look at its output, or give it more time"));
}

void Mesh::Work::Break(const Status& status) {
  std::map<Tag, Pending> ended;
  std::string why;
  {
    std::lock_guard<std::mutex> guard(mu_);
    if (!broken_.ok()) return;
    broken_ = status;
    ended = pending_;
    // A worker that has come to its end leaves without a word: the others may still be busy with
    // what it has taken part in.
    const bool waits = std::any_of(pending_.begin(), pending_.end(),
                                   [](const auto& each) { return each.second->begun(); });
    if (waits || !ending_) why = status.message();
  }
  for (const std::unique_ptr<Peer>& peer : peers_) {
    if (peer == nullptr) continue;
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, peer->socket.get(), nullptr);
    peer->outbox.Close(why);
    peer->exchange = nullptr;
  }
  for (auto& [tag, exchange] : ended) {
    {
      std::lock_guard<std::mutex> guard(mu_);
      exchange->Fail(status);
    }
    Settle(exchange);
  }
  std::lock_guard<std::mutex> guard(mu_);
  pending_.clear();
}

// --- the mesh that others see -------------------------------------------------------------------

Mesh::Mesh(std::unique_ptr<Work> work) : work_(std::move(work)) {}
Mesh::~Mesh() = default;

Result<std::shared_ptr<Mesh>> Mesh::Listen(const MeshOptions& options) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return InvalidArgument("expected a rank in [0, size), got " + std::to_string(options.rank) +
                           " of " + std::to_string(options.size));
  }
  if (!(options.timeout_seconds > 0) || !std::isfinite(options.timeout_seconds)) {
    return InvalidArgument("expected a timeout of more than 0 seconds, got " +
                           Seconds(options.timeout_seconds));
  }
  WorkerAddress own{options.host, 0, ""};
  Result<std::string> token = RandomToken();
  if (!token.ok()) return token.status();
  own.token = token.value();
  Result<Descriptor> listening = ListenFor(options.host, options.size, &own.port);
  if (!listening.ok()) return listening.status();
  return std::shared_ptr<Mesh>(
      new Mesh(std::make_unique<Work>(options, std::move(listening.value()), own)));
}

int Mesh::rank() const { return work_->options().rank; }
int Mesh::size() const { return work_->options().size; }
const std::string& Mesh::address() const { return work_->address(); }
Status Mesh::Connect(const std::vector<std::string>& addresses) {
  return work_->Connect(addresses);
}
void Mesh::Exchange(ExchangeRequest request) { work_->Exchange(std::move(request)); }
MeshStats Mesh::Stats() const { return work_->Stats(); }

namespace {

struct Registry {
  std::mutex mu;
  std::map<int64_t, std::shared_ptr<Mesh>> meshes;
  int64_t next = 1;
};

Registry& TheRegistry() {
  // Never destroyed: threads of others may exchange until the process ends.
  static Registry* const registry = new Registry;
  return *registry;
}

}  // namespace

int64_t AddMesh(std::shared_ptr<Mesh> mesh) {
  Registry& registry = TheRegistry();
  std::lock_guard<std::mutex> guard(registry.mu);
  registry.meshes[registry.next] = std::move(mesh);
  return registry.next++;
}

std::shared_ptr<Mesh> FindMesh(int64_t number) {
  Registry& registry = TheRegistry();
  std::lock_guard<std::mutex> guard(registry.mu);
  const auto found = registry.meshes.find(number);
  return found == registry.meshes.end() ? nullptr : found->second;
}

void RemoveMesh(int64_t number) {
  Registry& registry = TheRegistry();
  std::shared_ptr<Mesh> removed;  // goes without the lock
  std::lock_guard<std::mutex> guard(registry.mu);
  const auto found = registry.meshes.find(number);
  if (found == registry.meshes.end()) return;
  removed = std::move(found->second);
  registry.meshes.erase(found);
}

}  // namespace sok
