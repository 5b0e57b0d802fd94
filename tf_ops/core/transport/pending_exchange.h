// An exchange that is not done: what this worker has asked for, and what has come from the others.
// Internal to the transport.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/transport/frame.h"
#include "core/transport/mesh.h"

namespace sok {

// Guarded by the mutex of its mesh, but for what is said to be otherwise.
class PendingExchange {
 public:
  PendingExchange(int rank, int size);

  // This worker has come to the exchange. `turn` is what the others know it by.
  Status Begin(ExchangeRequest request, uint64_t turn);
  bool begun() const { return begun_; }

  // A frame of another worker has come, its first, and its bytes follow. Returns where they go,
  // null where there are none. Errors: the frame does not fit, or the exchange has failed.
  Result<char*> Announce(int worker, const FrameHeader& header);
  // Its bytes are there.
  void Arrive(int worker);

  // Somebody works with the request, or no longer. An exchange ends only when nobody does.
  void Hold() { ++holds_; }
  void Release() { --holds_; }
  // A frame is on its way to another worker, or the connection has taken it. One that fails waits
  // for none: by then the outboxes are closed, and nothing reads from its rows.
  void HoldFrame() { ++frames_; }
  void ReleaseFrame() { --frames_; }

  // Copies the rows that this worker has for itself, without a lock, once OwnIsDue has returned
  // true, which it does once.
  bool OwnIsDue();
  void CopyOwn();

  // The exchange ends with an error, once nobody works on it any more.
  void Fail(const Status& status);
  // Returns true, once, when `request().done` is to be called.
  bool TakeDone();
  const Status& status() const { return status_; }

  const ExchangeRequest& request() const { return request_; }
  uint64_t turn() const { return turn_; }
  // Workers of whom something is missing: "1, 3".
  std::string Missing() const;
  bool is_announced(int worker) const { return others_[static_cast<size_t>(worker)].announced; }
  bool has_arrived(int worker) const { return others_[static_cast<size_t>(worker)].arrived; }

  // When there was the last sign of a worker. Without a lock.
  std::atomic<int64_t> last_sign{0};

 private:
  struct Other {
    bool announced = false;
    bool arrived = false;
    FrameHeader header;
    std::unique_ptr<char[]> early;  // what came before there was a place for it
    char* into = nullptr;
  };

  // Once it is known how many rows come from each worker, finds their places.
  Status Place();
  Status CheckFits(int worker, const FrameHeader& header) const;

  const int rank_;
  ExchangeRequest request_;
  uint64_t turn_ = 0;
  bool begun_ = false, placed_ = false, own_is_due_ = false, done_ = false;
  std::vector<Other> others_;  // (size) this worker too
  size_t unannounced_;         // other workers of whom no frame has come
  size_t unarrived_;           // workers of whom rows are missing, this one too
  int holds_ = 0, frames_ = 0;
  Status status_;
};

}  // namespace sok
