#include "core/transport/mesh.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <new>
#include <numeric>
#include <system_error>
#include <utility>

#include "core/base/checksum.h"
#include "core/base/status_macros.h"
#include "core/transport/mesh_work.h"
#include "core/transport/socket.h"
#include "core/transport/two_level_exchange.h"

namespace sok {
namespace {

const Status kNoMemory = Status::Literal(Code::kResourceExhausted, "no memory for an exchange");
// Longer timeouts would not fit into the clock's milliseconds.
constexpr double kLongestTimeout = 1e6;

// Returns what a function returns, or an error if it finds no memory.
template <typename Function>
auto WithMemory(const Function& function) -> decltype(function()) {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    return kNoMemory;
  }
}

Status CheckHosts(const MeshOptions& options) {
  if (options.hosts.empty()) return Status();
  std::vector<int> ranks, all(static_cast<size_t>(options.size));
  std::iota(all.begin(), all.end(), 0);
  bool are_equal = true;
  for (const std::vector<int>& host : options.hosts) {
    ranks.insert(ranks.end(), host.begin(), host.end());
    are_equal = are_equal && host.size() == options.hosts[0].size();
  }
  std::sort(ranks.begin(), ranks.end());
  if (are_equal && ranks == all) return Status();
  return InvalidArgument("expected each of " + std::to_string(options.size) +
                         " workers on one host, and equally many on each, got others");
}

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
  for (Connection& connection : connections) places_.push_back(std::move(connection.place));
  peers_.resize(connections.size());
  MakeGroups();
  for (const Group& group : groups_) SOK_RETURN_IF_ERROR(Connect(&group, &connections));
  try {
    thread_.Start([this] { Run(); });
  } catch (const std::system_error& error) {
    return Status(Code::kInternal, std::string("no thread for exchanges: ") + error.what());
  }
  return Status();
}

void Mesh::Work::MakeGroups() {
  const auto group_of = [this](std::vector<int> ranks, int patience) {
    const auto own = std::find(ranks.begin(), ranks.end(), options_.rank) - ranks.begin();
    groups_.push_back({std::move(ranks), static_cast<size_t>(own), patience});
  };
  if (options_.hosts.empty()) {
    std::vector<int> all(static_cast<size_t>(options_.size));
    std::iota(all.begin(), all.end(), 0);
    return group_of(std::move(all), 1);
  }
  for (const std::vector<int>& host : options_.hosts) {
    if (std::count(host.begin(), host.end(), options_.rank) > 0) group_of(host, 1);
  }
  std::vector<int> between;
  for (const auto& host : options_.hosts) between.push_back(host[groups_[0].own]);
  // Such a worker may have waited for one of its host until this one came.
  group_of(std::move(between), 2);
}

Status Mesh::Work::Connect(const Group* group, std::vector<Connection>* connections) {
  for (size_t at = 0; at < group->ranks.size(); ++at) {
    if (at == group->own) continue;
    const auto rank = static_cast<size_t>(group->ranks[at]);
    auto peer = std::make_unique<Peer>();
    peer->group = group;
    peer->at = at;
    peer->socket = std::move((*connections)[rank].socket);
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
    peers_[rank] = std::move(peer);
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
  if (request.parts.size() == 1 || request.parts.size() == places_.size()) return Status();
  return InvalidArgument("expected rows for " + std::to_string(options_.size) +
                         " workers in the exchange '" + request.name + "', got them for " +
                         std::to_string(request.parts.size()));
}

Status Mesh::Work::Begin(const Group* group, ExchangeRequest* request, uint64_t* turn,
                         Pending* begun) {
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
  for (size_t at = 0; at < group->ranks.size(); ++at) {
    // A worker that was lost before this one came to the exchange cannot have received its rows.
    if (at != group->own && PeerOf(group, at)->lost) return ErrorOfLost(group, request->name);
  }
  Pending exchange =
      Find(group, {hash, *turn}, [](const PendingExchange& each) { return !each.begun(); });
  exchange->last_sign = exchange->began = NowMilliseconds();
  exchange->Hold();
  *begun = exchange;
  if (under_way_++ == 0) under_way_since_ = std::chrono::steady_clock::now();
  Status status = exchange->Begin(std::move(*request), *turn);
  if (!status.ok()) exchange->Fail(status);
  return Status();
}

void Mesh::Work::Exchange(ExchangeRequest request) {
  const Status status = CheckRequest(request);
  if (!status.ok()) {
    // The other workers would wait for this one.
    if (!is_child()) BreakSoon(status);
    request.done(status, 0);
  } else if (groups_.size() == 1) {
    ExchangeWithin(&groups_[0], std::move(request));
  } else {
    ExchangeByHosts(std::move(request));
  }
}

void Mesh::Work::ExchangeByHosts(ExchangeRequest request) {
  const auto exchange =
      std::make_shared<TwoLevelExchange>(options_.hosts, &spare_, std::move(request));
  const auto end = [this, exchange](Status status, uint64_t turn) {
    if (!status.ok()) BreakSoon(status);
    exchange->request().done(status, turn);
  };
  Result<ExchangeRequest> among_workers =
      WithMemory([&]() -> Result<ExchangeRequest> { return exchange->AmongWorkers(); });
  if (!among_workers.ok()) return end(among_workers.status(), 0);
  among_workers.value().done = [this, exchange, end](Status status, uint64_t turn) {
    if (!status.ok()) return end(status, turn);
    Result<ExchangeRequest> among_hosts = WithMemory([&] { return exchange->AmongHosts(turn); });
    if (!among_hosts.ok()) return end(among_hosts.status(), turn);
    among_hosts.value().done = [exchange, end](Status ended, uint64_t taken) {
      if (ended.ok()) ended = WithMemory([&] { return exchange->Finish(); });
      end(ended, taken);
    };
    ExchangeWithin(&groups_[1], std::move(among_hosts.value()));
  };
  ExchangeWithin(&groups_[0], std::move(among_workers.value()));
}

void Mesh::Work::ExchangeWithin(const Group* group, ExchangeRequest request) {
  uint64_t turn = 0;
  Pending exchange;
  Status status;
  try {
    status = Begin(group, &request, &turn, &exchange);
  } catch (const std::bad_alloc&) {
    status = kNoMemory;
  }
  if (exchange == nullptr) {
    BreakSoon(status);
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
  const Group& group = *exchange->group();
  const size_t size = group.ranks.size();
  for (size_t i = 1; i < size; ++i) {
    const size_t worker = (group.own + i) % size;
    const ExchangePart& part = exchange->part(worker);
    Peer* const peer = PeerOf(&group, worker);
    header.count = part.count;
    header.bytes = request.lead_bytes + part.count * request.row_bytes;
    bytes += part.count * request.row_bytes;
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
    const bool taken = peer->outbox.Send(header, part, sent);
    Status lost;
    {
      std::lock_guard<std::mutex> guard(mu_);
      if (taken) exchange->ReleaseFrame();
      if (!taken && peer->lost) lost = ErrorOfLost(&group, request.name);
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
  exchange->Arrive(exchange->group()->own);
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
    if (status.ok() && exchange->group() == &groups_.back()) ++stats_.exchanges;
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
  SOK_RETURN_IF_ERROR(CheckHosts(options));
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
