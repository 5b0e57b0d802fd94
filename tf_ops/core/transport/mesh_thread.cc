// The mesh's own thread.
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "core/base/status_macros.h"
#include "core/transport/mesh_work.h"

namespace sok {
namespace {

// The most bytes that are read from one connection before the next one is read.
constexpr size_t kReadAtOnce = 1 << 20;
// After a connection has ended without an error, other workers have so many milliseconds to report
// one: a worker that gives up in the middle of a frame cannot say why, and may not be the cause.
constexpr int64_t kErrorGrace = 200;
// After an interrupt, an exchange that would be done soon has so many milliseconds.
constexpr int64_t kInterruptGrace = 2000;
// The most bytes of the text of a worker that gives up.
constexpr uint64_t kMostWhyBytes = 1 << 16;
// The most workers that a message names.
constexpr size_t kMostNamed = 8;

std::string Seconds(double seconds) {
  std::string text = std::to_string(seconds);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

}  // namespace

void Mesh::Work::Run() {
  const double tick = std::clamp(options_.timeout_seconds * 250, 1.0, 1000.0);  // milliseconds
  int64_t next_check = NowMilliseconds();
  for (;;) {
    epoll_event events[64];
    const double wait = lost_since_ > 0 ? std::min<double>(tick, kErrorGrace) : tick;
    const int n = epoll_wait(epoll_.get(), events, 64, static_cast<int>(wait));
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
      if (lost_since_ > 0 && NowMilliseconds() >= lost_since_ + kErrorGrace) FailExchangesOfLost();
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
  if ((events & ~static_cast<uint32_t>(EPOLLOUT)) != 0 && !Read(peer)) LoseConnection(peer);
}

bool Mesh::Work::Read(Peer* peer) {
  for (size_t total = 0; total < kReadAtOnce;) {
    // The bytes of a large frame are read directly to their place.
    const bool direct = peer->left > Peer::kBufferBytes;
    char* const at = direct ? peer->into : peer->buffer.get();
    const size_t room = direct ? std::min(peer->left, kReadAtOnce) : Peer::kBufferBytes;
    const ssize_t n = recv(peer->socket.get(), at, room, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    if (n == 0) return false;
    const Status status = Take(peer, direct ? nullptr : at, static_cast<size_t>(n));
    if (!status.ok()) {
      Break(status);
      return true;
    }
    if (static_cast<size_t>(n) < room) return true;  // the system has no more bytes now
    total += static_cast<size_t>(n);
  }
  return true;
}

// Processes n bytes that have come. `bytes` is null if they are in their place already.
Status Mesh::Work::Take(Peer* peer, const char* bytes, size_t n) {
  while (n > 0) {
    if (peer->header_bytes < sizeof(FrameHeader)) {
      const size_t some = std::min(n, sizeof(FrameHeader) - peer->header_bytes);
      std::memcpy(reinterpret_cast<char*>(&peer->header) + peer->header_bytes, bytes, some);
      peer->header_bytes += some;
      bytes += some;
      n -= some;
      if (peer->header_bytes < sizeof(FrameHeader)) return Status();
      SOK_RETURN_IF_ERROR(BeginFrame(peer));
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
    if (peer->left == 0) SOK_RETURN_IF_ERROR(EndFrame(peer));
  }
  return Status();
}

Status Mesh::Work::BeginFrame(Peer* peer) {
  const FrameHeader& header = peer->header;
  const bool gives_up = header.kind == FrameHeader::kGivingUp;
  if (header.magic != FrameHeader::kMagic || (!gives_up && header.kind != FrameHeader::kRows) ||
      (gives_up && (header.bytes > kMostWhyBytes || header.count >= places_.size()))) {
    return Status(Code::kInternal,
                  "expected a frame of worker " + Places({peer->group->ranks[peer->at]}) +
                      ", got bytes that do not begin one; do all workers run one version?");
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
    exchange = Find(peer->group, {header.name, header.turn},
                    [peer](const PendingExchange& each) { return !each.is_announced(peer->at); });
    exchange->last_sign = NowMilliseconds();
    into = exchange->Announce(peer->at, header);
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
    words_ = peer->why;
    speaker_ = static_cast<int>(peer->header.count);
    return Status(Code::kUnavailable, "worker " + Places({speaker_}) + " has given up: " + words_);
  }
  const Pending exchange = std::move(peer->exchange);
  peer->exchange = nullptr;
  {
    std::lock_guard<std::mutex> guard(mu_);
    exchange->Arrive(peer->at);
  }
  Settle(exchange);
  return Status();
}

void Mesh::Work::LoseConnection(Peer* peer) {
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, peer->socket.get(), nullptr);
  std::lock_guard<std::mutex> guard(mu_);
  peer->lost = true;
  if (lost_since_ == 0) lost_since_ = NowMilliseconds();
}

void Mesh::Work::FailExchangesOfLost() {
  lost_since_ = 0;
  Status status;
  {
    std::lock_guard<std::mutex> guard(mu_);
    for (const auto& [tag, exchange] : pending_) {
      if (!exchange->begun()) continue;
      // A worker that has done its part of every exchange under way may end.
      if (std::any_of(peers_.begin(), peers_.end(), [&exchange](const auto& peer) {
            return peer != nullptr && peer->group == exchange->group() && peer->lost &&
                   (!exchange->has_arrived(peer->at) || peer->outbox.waits());
          })) {
        status = ErrorOfLost(exchange->group(), exchange->request().name);
        break;
      }
    }
  }
  if (!status.ok()) Break(status);
}

std::string Mesh::Work::Places(const std::vector<int>& ranks) const {
  std::string places;
  for (size_t i = 0; i < std::min(ranks.size(), kMostNamed); ++i) {
    places += (i > 0 ? ", " : "") + std::to_string(ranks[i]) + " (" +
              places_[static_cast<size_t>(ranks[i])] + ")";
  }
  if (ranks.size() <= kMostNamed) return places;
  return places + " and " + std::to_string(ranks.size() - kMostNamed) + " more";
}

Status Mesh::Work::ErrorOfLost(const Group* group, const std::string& exchange) const {
  std::vector<int> lost;
  for (size_t at = 0; at < group->ranks.size(); ++at) {
    if (at != group->own && PeerOf(group, at)->lost) lost.push_back(group->ranks[at]);
  }
  return Status(Code::kUnavailable,
                "expected worker " + Places(lost) + " to take part in the exchange '" + exchange +
                    "', but the connection has ended: the process died, or ended early, as it does "
                    "where its data has fewer batches; look at its output, and give each worker "
                    "as many batches, by sok_embed.data.join for one");
}

void Mesh::Work::CheckTimes() {
  const int64_t now = NowMilliseconds();
  std::vector<int> late;
  std::string name;
  double timeout = 0;
  bool is_interrupted = false;
  {
    std::lock_guard<std::mutex> guard(mu_);
    for (const auto& [tag, exchange] : pending_) {
      if (!exchange->begun()) continue;
      is_interrupted = InterruptedSince(exchange->began, kInterruptGrace);
      timeout = options_.timeout_seconds * exchange->group()->patience;
      if (!is_interrupted && now - exchange->last_sign < static_cast<int64_t>(timeout * 1000)) {
        continue;
      }
      name = exchange->request().name;
      late = exchange->Missing();
      if (!late.empty()) break;
      for (const std::unique_ptr<Peer>& peer : peers_) {
        if (peer != nullptr && peer->outbox.waits()) late.push_back(peer->group->ranks[peer->at]);
      }
      break;
    }
  }
  if (name.empty()) return;
  if (is_interrupted) {
    return Break(Status(Code::kUnavailable, "worker " + std::to_string(options_.rank) +
                                                " was interrupted while it waited for worker " +
                                                Places(late) + " in the exchange '" + name + "'"));
  }
  Break(Status(Code::kUnavailable,
               "expected worker " + Places(late) + " in the exchange '" + name + "' within " +
                   Seconds(timeout) +
                   " s, and heard nothing; it may be stuck, paused, or at work on something that "
                   "the others do not do: look at its output, or give it more time"));
}

void Mesh::Work::Break(const Status& status) {
  std::multimap<ExchangeTag, Pending> ended;
  std::string why;
  const int speaker = speaker_ >= 0 ? speaker_ : options_.rank;
  {
    std::lock_guard<std::mutex> guard(mu_);
    if (!broken_.ok()) return;
    broken_ = status;
    ended.swap(pending_);
    // A worker that ends normally closes its connections and sends no error: the others may still
    // be busy with exchanges that it has taken part in.
    const bool waits = std::any_of(ended.begin(), ended.end(),
                                   [](const auto& each) { return each.second->begun(); });
    try {
      if (waits || !ending_) why = speaker_ >= 0 ? words_ : status.message();
    } catch (const std::bad_alloc&) {  // the other workers see the connection end
    }
  }
  for (const std::unique_ptr<Peer>& peer : peers_) {
    if (peer == nullptr) continue;
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, peer->socket.get(), nullptr);
    peer->outbox.Close(why, speaker);
    peer->exchange = nullptr;
  }
  for (auto& [tag, exchange] : ended) {
    {
      std::lock_guard<std::mutex> guard(mu_);
      exchange->Fail(status);
    }
    Settle(exchange);
  }
}

}  // namespace sok
