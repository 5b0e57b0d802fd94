// The frames that wait for a connection to take them. Internal to the transport.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <string>

#include "core/transport/frame.h"

namespace sok {

// Thread-safe.
class Outbox {
 public:
  // Is called once the connection has taken a frame: nothing is read from its bytes any more.
  using Sent = std::function<void()>;

  // `wants_to_write(bool)` says whether the connection should be watched for room.
  void Open(int fd, std::function<void(bool)> wants_to_write);

  // Sends a frame behind those that wait, as far as the connection takes it at once. Returns
  // whether it has taken all of it; `sent` is called only for a frame that had to wait. What is
  // sent on a connection that is lost waits until Close.
  bool Send(const FrameHeader& header, const void* bytes, Sent sent);
  // Goes on sending. Returns how many bytes were taken.
  size_t Continue();
  // Gives up what waits; nothing reads from its bytes when this returns. A last frame says why, if
  // there is a reason and no other frame is half sent.
  void Close(const std::string& why);
  // Returns true if frames wait.
  bool waits() const;

 private:
  struct Frame {
    FrameHeader header;
    const char* bytes;
    size_t taken;  // of the header and the bytes together
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
