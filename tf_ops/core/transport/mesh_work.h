// The implementation of a Mesh. Internal to the transport.
//
// Callers begin exchanges and send. The mesh's own thread reads from all connections, goes on
// sending where a connection had no room, and ends the mesh after an error. No other thread
// receives into the memory of rows, so that memory is not in use when the thread ends an exchange.
//
// Locks: a thread that holds the mesh's mutex may take an outbox's mutex, but not the other way
// round. It holds neither when it calls `done` of a request.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/forked_child.h"
#include "core/base/interrupt.h"
#include "core/base/status.h"
#include "core/transport/frame.h"
#include "core/transport/mesh.h"
#include "core/transport/outbox.h"
#include "core/transport/pending_exchange.h"
#include "core/transport/two_level_exchange.h"

namespace sok {

// Names an exchange on all workers.
struct ExchangeTag {
  uint64_t name, turn;
  bool operator<(const ExchangeTag& other) const {
    return name != other.name ? name < other.name : turn < other.turn;
  }
};

// The connection to one worker. But for its outbox, only the mesh's own thread uses it.
struct Peer {
  const Group* group = nullptr;
  size_t at = 0;  // its place in the group
  Descriptor socket;
  Outbox outbox;
  bool lost = false;  // guarded by the mesh's mutex

  // Many small frames are read by one system call, through a buffer. The rest of a large frame is
  // read directly to its place.
  static constexpr size_t kBufferBytes = 64 << 10;
  std::unique_ptr<char[]> buffer{new char[kBufferBytes]};
  FrameHeader header;
  size_t header_bytes = 0;  // bytes of the header that have come
  std::shared_ptr<PendingExchange> exchange;
  std::string why;  // the words of a worker that gives up
  char* into = nullptr;
  size_t left = 0;  // bytes of the frame that have not come
};

class Mesh::Work {
 public:
  explicit Work(const MeshOptions& options) : options_(options) {}
  ~Work();

  const MeshOptions& options() const { return options_; }
  Status Start(std::vector<Connection> connections);
  void Exchange(ExchangeRequest request);
  MeshStats Stats() const;
  bool is_broken() const {
    if (is_child()) return true;
    std::lock_guard<std::mutex> guard(mu_);
    return !broken_.ok();
  }

 private:
  using Pending = std::shared_ptr<PendingExchange>;

  // --- how it begins
  void MakeGroups();
  Status Connect(const Group* group, std::vector<Connection>* connections);

  // --- the callers' side
  Status CheckRequest(const ExchangeRequest& request) const;
  void ExchangeWithin(const Group* group, ExchangeRequest request);
  void ExchangeByHosts(ExchangeRequest request);
  Status Begin(const Group* group, ExchangeRequest* request, uint64_t* turn, Pending* begun);
  void SendParts(const Pending& exchange);
  // Copies what this worker has for itself, if there is a place for it now.
  void CopyOwnIfDue(const Pending& exchange);
  // Ends an exchange if nothing is missing. Called without the mutex.
  void Settle(const Pending& exchange);
  // Asks the mesh's thread to end the mesh.
  void BreakSoon(const Status& status);

  // --- the mesh's own thread
  void Run();
  void Handle(uint32_t events, Peer* peer);
  // Returns false once the connection has ended.
  bool Read(Peer* peer);
  Status Take(Peer* peer, const char* bytes, size_t n);
  Status BeginFrame(Peer* peer);
  Status EndFrame(Peer* peer);
  void LoseConnection(Peer* peer);
  void FailExchangesOfLost();
  void CheckTimes();
  void Break(const Status& status);

  // Returns the error of an exchange of a group that waits for workers that are gone. Called with
  // the mutex.
  Status ErrorOfLost(const Group* group, const std::string& exchange) const;

  bool is_child() const { return process_ != getpid(); }
  // Returns the first exchange of a tag for which `is_open` returns true, or a new one. Called with
  // the mutex.
  template <typename IsOpen>
  Pending Find(const Group* group, const ExchangeTag& tag, const IsOpen& is_open) {
    const auto [begin, end] = pending_.equal_range(tag);
    for (auto at = begin; at != end; ++at) {
      if (is_open(*at->second)) return at->second;
    }
    Pending made = std::make_shared<PendingExchange>(group);
    made->last_sign = NowMilliseconds();
    pending_.emplace(tag, made);
    return made;
  }
  Peer* PeerOf(const Group* group, size_t at) const {
    return peers_[static_cast<size_t>(group->ranks[at])].get();
  }
  // Returns "1 (10.0.0.2:4711), 3 (10.0.0.4:4711)", with the first of many.
  std::string Places(const std::vector<int>& ranks) const;

  const MeshOptions options_;
  SpareMemory spare_;  // of exchanges at two levels
  // One of all workers, or those of this host, and those with the same place on all hosts.
  std::vector<Group> groups_;
  std::vector<std::string> places_;           // (size)
  std::vector<std::unique_ptr<Peer>> peers_;  // (size) null without a connection
  Descriptor epoll_, wake_;
  ThreadOfProcess thread_;
  int64_t lost_since_ = 0;  // when a worker was lost whose exchanges the thread must end; 0: none
  // The words of another worker that has ended the mesh. Workers pass them on as they are.
  std::string words_;
  int speaker_ = -1;

  mutable std::mutex mu_;
  Status broken_, break_soon_;
  bool ending_ = false;
  const int process_ = getpid();  // its children have neither connections nor the mesh's thread
  struct Name {
    std::string text;
    uint64_t turns = 0;
  };
  std::unordered_map<uint64_t, Name> names_;
  // The exchanges under way; those of one tag in their order. A tag may occur twice: a gradient may
  // be computed twice, and a worker that is done with the first begins the second while others are
  // still at the first.
  std::multimap<ExchangeTag, Pending> pending_;
  MeshStats stats_;
  size_t under_way_ = 0;  // exchanges that have begun and not ended
  std::chrono::steady_clock::time_point under_way_since_;
};

}  // namespace sok
