// An exchange at two levels: first among the workers of each host, then among the workers that have
// the same place on their hosts. Internal to the transport.
//
// The worker at place l of host h sends what is for place m of any host to the worker at place m of
// its own host. That one sends what has come for host i to place m of host i. Before the rows of a
// message stand the numbers of rows of its runs. A run is what one worker sends to another, or to
// all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/transport/mesh.h"

namespace sok {

// Memory of exchanges that have ended, for those to come: the system zeroes new memory, which takes
// longer than to copy rows into it. Thread-safe.
class SpareMemory {
 public:
  struct Block {
    std::unique_ptr<char[]> data;
    size_t bytes = 0;
  };

  // Returns a block of `bytes` or more, which may hold anything.
  Block Take(size_t bytes);
  void Give(Block block);

 private:
  std::mutex mu_;
  std::vector<Block> blocks_;
};

// Must live until the requests that it makes are done. The caller sets their `done`.
class TwoLevelExchange {
 public:
  using Hosts = std::vector<std::vector<int>>;  // the ranks of the workers of each

  TwoLevelExchange(const Hosts& hosts, SpareMemory* spare, ExchangeRequest request)
      : hosts_(hosts), spare_(spare), request_(std::move(request)) {}
  ~TwoLevelExchange();
  TwoLevelExchange(const TwoLevelExchange&) = delete;

  const ExchangeRequest& request() const { return request_; }
  // Returns the request to the workers of this host.
  ExchangeRequest AmongWorkers();
  // Returns the request to the other hosts, once the first is done. `turn` is that of the first.
  Result<ExchangeRequest> AmongHosts(uint64_t turn);
  // Hands the rows to the caller, once the second is done.
  Status Finish();

 private:
  // By the worker of the group that gets them or has sent them.
  using Runs = std::vector<std::vector<ExchangePart>>;

  // The numbers and rows that are sent and received at one level.
  struct Level {
    std::vector<uint64_t> counts;  // rows of the runs that are sent
    SpareMemory::Block received;
    std::vector<size_t> rows;  // that have come from each worker
  };

  ExchangeRequest Sending(const Runs& runs, Level* level) const;
  // Returns the runs that have come, so many from each worker.
  Result<Runs> Received(const Level& level, size_t runs) const;
  // With the same rows for all, workers send each other one run.
  bool is_for_all() const { return request_.parts.size() == 1; }

  const Hosts& hosts_;
  SpareMemory* const spare_;
  ExchangeRequest request_;
  Level workers_, between_;
};

}  // namespace sok
