#include "core/transport/mesh.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <new>
#include <system_error>
#include <utility>

#include "core/base/checksum.h"
#include "core/base/status_macros.h"
#include "core/transport/mesh_work.h"
#include "core/transport/socket.h"

namespace sok {
namespace {

const Status kNoMemory = Status::Literal(Code::kResourceExhausted, "no memory for an exchange");
// Longer timeouts would not fit into the clock's milliseconds.
constexpr double kLongestTimeout = 1e6;

}  // namespace

// --- how a mesh begins and ends -----------------------------------------------------------------

Status Mesh::Work::Start(std::vector<Connection> connections) {
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
    Connection& connection = connections[static_cast<size_t>(rank)];
    peer->rank = rank;
    peer->place = std::move(connection.place);
    peer->socket = std::move(connection.socket);
    const int fd = peer->socket.get();
    SOK_RETURN_IF_ERROR(PrepareForExchanges(fd));
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
  try {
    thread_.Start([this] { Run(); });
  } catch (const std::system_error& error) {
    return Status(Code::kInternal, std::string("no thread for exchanges: ") + error.what());
  }
  return Status();
}

Mesh::Work::~Work() {
  if (!thread_.is_started() || is_child()) return;
  {
    std::lock_guard<std::mutex> guard(mu_);
    ending_ = true;
  }
  BreakSoon(Status(Code::kUnavailable, "the mesh of worker " + std::to_string(options_.rank) +
                                           " was closed while an exchange was under way"));
  thread_.Join();
}

// --- exchanges ----------------------------------------------------------------------------------

Status Mesh::Work::CheckRequest(const ExchangeRequest& request) const {
  if (is_child()) {
    return Status(Code::kFailedPrecondition,
                  "expected an exchange in the process that has connected, process " +
                      std::to_string(process_) + ", got one in process " +
                      std::to_string(getpid()) +
                      ", forked from it; start processes with multiprocessing's 'spawn', or look "
                      "nothing up in a process that only loads data");
  }
  if (request.parts.size() == static_cast<size_t>(options_.size)) return Status();
  return InvalidArgument("expected rows for " + std::to_string(options_.size) +
                         " workers in the exchange '" + request.name + "', got them for " +
                         std::to_string(request.parts.size()));
}

Status Mesh::Work::Begin(ExchangeRequest* request, uint64_t* turn, Pending* begun) {
  SOK_RETURN_IF_ERROR(CheckRequest(*request));
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
  const auto [first, last] = pending_.equal_range({hash, *turn});
  if (std::any_of(first, last, [](const auto& each) { return each.second->begun(); })) {
    return Status(Code::kFailedPrecondition, "expected one exchange '" + request->name +
                                                 "' of turn " + std::to_string(*turn) +
                                                 " at a time, got another while it is under way");
  }
  for (const std::unique_ptr<Peer>& peer : peers_) {
    // A worker that was lost before this one came to the exchange cannot have received its rows.
    if (peer == nullptr || !peer->lost) continue;
    return ErrorOfLost(request->name);
  }
  Pending exchange = Find({hash, *turn}, [](const PendingExchange& each) { return !each.begun(); });
  exchange->last_sign = exchange->began = NowMilliseconds();
  exchange->Hold();
  *begun = exchange;
  if (under_way_++ == 0) under_way_since_ = std::chrono::steady_clock::now();
  Status status = exchange->Begin(std::move(*request), *turn);
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
    status = kNoMemory;
  }
  if (exchange == nullptr) {
    // The other workers would wait for this one.
    if (!is_child()) BreakSoon(status);
    request.done(status, turn);
    return;
  }
  {
    std::lock_guard<std::mutex> guard(mu_);
    if (!status.ok()) exchange->Fail(status);
    status = exchange->status();
  }
  if (status.ok()) {
    try {
      SendParts(exchange);
      CopyOwnIfDue(exchange);
    } catch (const std::bad_alloc&) {
      status = kNoMemory;
    }
  }
  // If it fails here, the mesh's thread ends the exchange, once nothing reads from the request any
  // more.
  if (!status.ok()) BreakSoon(status);
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
  // Each worker begins with a different one, so that they do not all send to the same worker at
  // once.
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
    const bool taken = peers_[worker]->outbox.Send(header, part.rows, sent);
    Status lost;
    {
      std::lock_guard<std::mutex> guard(mu_);
      if (taken) exchange->ReleaseFrame();
      if (!taken && peers_[worker]->lost) lost = ErrorOfLost(request.name);
    }
    // Nothing more is sent on a connection that has been given up.
    if (!lost.ok()) BreakSoon(lost);
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
    const auto [first, last] =
        pending_.equal_range({Checksum(name.data(), name.size(), 0), exchange->turn()});
    const auto at = std::find_if(first, last,
                                 [&exchange](const auto& each) { return each.second == exchange; });
    if (at != last) pending_.erase(at);
    if (status.ok()) ++stats_.exchanges;
    if (--under_way_ == 0) {
      const std::chrono::duration<double> past =
          std::chrono::steady_clock::now() - under_way_since_;
      stats_.seconds += past.count();
    }
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
  if (is_child()) return {};
  std::lock_guard<std::mutex> guard(mu_);
  return stats_;
}

// --- public functions -------------------------------------------------------------------

Mesh::Mesh(std::unique_ptr<Work> work) : work_(std::move(work)) {}
Mesh::~Mesh() = default;

Result<std::shared_ptr<Mesh>> Mesh::Make(const MeshOptions& options,
                                         std::vector<Connection> connections) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return InvalidArgument("expected a rank in [0, size), got " + std::to_string(options.rank) +
                           " of " + std::to_string(options.size));
  }
  if (!(options.timeout_seconds > 0) || !std::isfinite(options.timeout_seconds)) {
    return InvalidArgument("expected a timeout of more than 0 seconds, got " +
                           std::to_string(options.timeout_seconds));
  }
  if (connections.size() != static_cast<size_t>(options.size)) {
    return InvalidArgument("expected connections of " + std::to_string(options.size) +
                           " workers, got " + std::to_string(connections.size()));
  }
  MeshOptions limited = options;
  limited.timeout_seconds = std::min(options.timeout_seconds, kLongestTimeout);
  auto work = std::make_unique<Work>(limited);
  SOK_RETURN_IF_ERROR(work->Start(std::move(connections)));
  return std::shared_ptr<Mesh>(new Mesh(std::move(work)));
}

int Mesh::rank() const { return work_->options().rank; }
int Mesh::size() const { return work_->options().size; }
void Mesh::Exchange(ExchangeRequest request) { work_->Exchange(std::move(request)); }
MeshStats Mesh::Stats() const { return work_->Stats(); }
bool Mesh::is_broken() const { return work_->is_broken(); }

}  // namespace sok
