#include "core/transport/outbox.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <utility>
#include <vector>

namespace sok {

void Outbox::Open(int fd, std::function<void(bool)> wants_to_write) {
  fd_ = fd;
  wants_to_write_ = std::move(wants_to_write);
}

bool Outbox::Push(Frame* frame) {
  const size_t total = sizeof(FrameHeader) + frame->header.bytes;
  while (frame->taken < total) {
    iovec parts[2];
    int n = 0;
    size_t skipped = frame->taken;
    if (skipped < sizeof(FrameHeader)) {
      parts[n++] = {reinterpret_cast<char*>(&frame->header) + skipped,
                    sizeof(FrameHeader) - skipped};
      skipped = sizeof(FrameHeader);
    }
    const size_t begin = skipped - sizeof(FrameHeader);
    if (begin < frame->header.bytes) {
      parts[n++] = {const_cast<char*>(frame->bytes) + begin, frame->header.bytes - begin};
    }
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = static_cast<size_t>(n);
    const ssize_t taken = sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (taken < 0 && errno == EINTR) continue;
    // The thread that reads finds out that the connection is lost.
    if (taken < 0) return false;
    frame->taken += static_cast<size_t>(taken);
  }
  return true;
}

bool Outbox::Send(const FrameHeader& header, const void* bytes, Sent sent) {
  std::lock_guard<std::mutex> guard(mu_);
  // When the connections were closed the exchange of this frame ended, and its bytes may be gone.
  if (closed_) return true;
  // The frame enters the queue first: if that runs out of memory, no part of the frame has been
  // sent.
  frames_.push_back({header, static_cast<const char*>(bytes), 0, std::move(sent)});
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

void Outbox::Close(const std::string& why) {
  std::lock_guard<std::mutex> guard(mu_);
  if (closed_) return;
  closed_ = true;
  if (!why.empty() && (frames_.empty() || frames_.front().taken == 0)) {
    Frame last{{}, why.data(), 0, nullptr};
    last.header.kind = FrameHeader::kGivingUp;
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
