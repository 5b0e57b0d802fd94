// An exchange that is under way: the request of this worker, and the rows that have come from the
// others. Internal to the transport.
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

// Workers that are connected to each other.
struct Group {
  std::vector<int> ranks;  // in the order of the parts of an exchange
  size_t own = 0;          // the place of this worker
  int patience = 1;        // so many timeouts pass before a worker is late
};

// The mutex of its mesh guards it. Functions and fields that need no lock say so.
class PendingExchange {
 public:
  // Workers are numbered by their places in the group.
  explicit PendingExchange(const Group* group);
  const Group* group() const { return group_; }

  // Notes that this worker has come to the exchange. `turn` is the number that all workers know it
  // by.
  Status Begin(ExchangeRequest request, uint64_t turn);
  bool begun() const { return begun_; }

  // Notes the first frame of another worker, whose bytes follow. Returns where they go; null if the
  // frame has none. Errors: the frame does not fit, or the exchange has failed.
  Result<char*> Announce(size_t worker, const FrameHeader& header);
  // Notes that all bytes of a worker's frame have come.
  void Arrive(size_t worker);

  // Count the threads that work with the request. An exchange ends only when there are none.
  void Hold() { ++holds_; }
  void Release() { --holds_; }
  // Count the frames that wait for a connection. An exchange that fails does not wait for them: the
  // outboxes are closed by then, and nothing reads from its rows.
  void HoldFrame() { ++frames_; }
  void ReleaseFrame() { --frames_; }

  // Copies the rows that this worker has for itself. Called without a lock after OwnIsDue has
  // returned true, which it does once.
  bool OwnIsDue();
  void CopyOwn();

  // Ends the exchange with an error, as soon as no thread works with the request.
  void Fail(const Status& status);
  // Returns true, once, when `request().done` is to be called.
  bool TakeDone();
  const Status& status() const { return status_; }

  const ExchangeRequest& request() const { return request_; }
  const ExchangePart& part(size_t worker) const {
    return request_.parts[request_.parts.size() == 1 ? 0 : worker];
  }
  uint64_t turn() const { return turn_; }
  // Returns the ranks of the other workers from which rows are missing.
  std::vector<int> Missing() const;
  bool is_announced(size_t worker) const { return others_[worker].announced; }
  bool has_arrived(size_t worker) const { return others_[worker].arrived; }

  // The time of the last sign of life of a worker. Needs no lock.
  std::atomic<int64_t> last_sign{0};
  // The time at which this worker began it. Guarded by the mesh's mutex.
  int64_t began = 0;

 private:
  struct Other {
    bool announced = false;
    bool arrived = false;
    FrameHeader header;
    std::unique_ptr<char[]> early;  // bytes that came before the request gave a place for them
    char* into = nullptr;
  };

  // Finds the places of rows, once all workers have sent how many come from each.
  Status Place();
  Status CheckFits(size_t worker, const FrameHeader& header) const;

  const Group* const group_;
  ExchangeRequest request_;
  uint64_t turn_ = 0;
  bool begun_ = false, placed_ = false, own_is_due_ = false, done_ = false;
  std::vector<Other> others_;  // (of the group) this worker included
  size_t unannounced_;         // other workers of whom no frame has come
  size_t unarrived_;           // workers of whom rows are missing, this one too
  int holds_ = 0, frames_ = 0;
  Status status_;
};

}  // namespace sok
