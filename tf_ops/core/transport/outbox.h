// The frames that wait until a connection has room. Internal to the transport.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <string>

#include "core/transport/frame.h"
#include "core/transport/mesh.h"

namespace sok {

// Thread-safe.
class Outbox {
 public:
  // Called once the connection has taken a frame: nothing reads from its bytes any more.
  using Sent = std::function<void()>;

  // `wants_to_write(bool)` says whether the connection should be watched for room.
  void Open(int fd, std::function<void(bool)> wants_to_write);

  // Sends a frame after the frames that wait, as much as the connection has room for. Returns true
  // if the connection has taken all of it; `sent` is called only for a frame that had to wait. A
  // frame on a lost connection waits until Close. `part` must stay as it is, with its rows.
  bool Send(const FrameHeader& header, const ExchangePart& part, Sent sent);
  // Goes on sending. Returns how many bytes the connection has taken.
  size_t Continue();
  // Drops all frames that wait; nothing reads from their bytes when this returns. If `why`, which
  // the worker `speaker` has said, is not empty and no frame is half sent, a last frame sends it.
  void Close(const std::string& why, int speaker);
  // Returns true if frames wait.
  bool waits() const;

 private:
  struct Frame {
    FrameHeader header;
    const ExchangePart* part;
    size_t taken;  // bytes that the connection has taken, of header and rows together
    Sent sent;
  };

  // Returns whether the connection has taken all of a frame.
  bool Push(Frame* frame);

  mutable std::mutex mu_;
  int fd_ = -1;
  bool closed_ = false;
  std::function<void(bool)> wants_to_write_;
  std::deque<Frame> frames_;
};

}  // namespace sok
