#include "core/transport/outbox.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

namespace sok {
namespace {

// So many pieces of memory are handed to the system in one call.
constexpr size_t kPiecesAtOnce = 256;

}  // namespace

void Outbox::Open(int fd, std::function<void(bool)> wants_to_write) {
  fd_ = fd;
  wants_to_write_ = std::move(wants_to_write);
}

bool Outbox::Push(Frame* frame) {
  const size_t total = sizeof(FrameHeader) + frame->header.bytes;
  while (frame->taken < total) {
    iovec pieces[kPiecesAtOnce];
    size_t n = 0, skipped = frame->taken;
    const auto add = [&](const void* at, size_t bytes) {
      const size_t skip = std::min(skipped, bytes);
      skipped -= skip;
      if (skip == bytes || n == kPiecesAtOnce) return;
      pieces[n++] = {const_cast<char*>(static_cast<const char*>(at)) + skip, bytes - skip};
    };
    add(&frame->header, sizeof(FrameHeader));
    if (frame->part->pieces.empty()) add(frame->part->rows, frame->header.bytes);
    for (const ExchangePiece& piece : frame->part->pieces) add(piece.at, piece.bytes);
    msghdr message{};
    message.msg_iov = pieces;
    message.msg_iovlen = n;
    const ssize_t taken = sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (taken < 0 && errno == EINTR) continue;
    // The thread that reads finds out that the connection is lost.
    if (taken < 0) return false;
    frame->taken += static_cast<size_t>(taken);
  }
  return true;
}

bool Outbox::Send(const FrameHeader& header, const ExchangePart& part, Sent sent) {
  std::lock_guard<std::mutex> guard(mu_);
  // When the connections were closed the exchange of this frame ended, and its bytes may be gone.
  if (closed_) return true;
  // The frame enters the queue first: if that runs out of memory, no part of the frame has been
  // sent.
  frames_.push_back({header, &part, 0, std::move(sent)});
  if (frames_.size() > 1) return false;
  if (Push(&frames_.front())) {
    frames_.pop_front();
    return true;
  }
  wants_to_write_(true);
  return false;
}

size_t Outbox::Continue() {
  std::vector<Sent> sent;
  size_t bytes = 0;
  {
    std::lock_guard<std::mutex> guard(mu_);
    while (!frames_.empty()) {
      Frame& frame = frames_.front();
      const size_t before = frame.taken;
      const bool all = Push(&frame);
      bytes += frame.taken - before;
      if (!all) break;
      sent.push_back(std::move(frame.sent));
      frames_.pop_front();
    }
    if (frames_.empty() && !closed_) wants_to_write_(false);
  }
  for (const Sent& each : sent) each();
  return bytes;
}

void Outbox::Close(const std::string& why, int speaker) {
  std::lock_guard<std::mutex> guard(mu_);
  if (closed_) return;
  closed_ = true;
  if (!why.empty() && (frames_.empty() || frames_.front().taken == 0)) {
    const ExchangePart words{why.data(), why.size()};
    Frame last{{}, &words, 0, nullptr};
    last.header.kind = FrameHeader::kGivingUp;
    last.header.count = static_cast<uint64_t>(speaker);
    last.header.bytes = why.size();
    Push(&last);
  }
  frames_.clear();
  // The other side reads what has been sent, and then the end.
  shutdown(fd_, SHUT_WR);
}

bool Outbox::waits() const {
  std::lock_guard<std::mutex> guard(mu_);
  return !frames_.empty();
}

}  // namespace sok
