// A mesh: connections between every two workers of a job, over which they exchange rows.
//
//   Result<std::shared_ptr<Mesh>> mesh = Mesh::Make({rank, size}, std::move(connections));
//   mesh->Exchange({"clicks.keys", …});
//
// An exchange has a name. The k-th exchange of a name on one worker meets the k-th exchange of that
// name on the others: k is its turn. Exchanges of different names may run at once, and begin in any
// order: rows for an exchange that this worker has not begun yet are kept. A frame has its size in
// its header, so workers do not exchange sizes first.
//
// An error ends the whole mesh. When a worker is lost, does not come to an exchange within the
// timeout, or sends rows that do not fit, every exchange under way on every worker ends with a
// status that says so, and so does every later exchange.
//
// With two levels a worker is connected to the workers of its host, and to one worker of each other
// host: 7 + 63 connections instead of 511 for 64 hosts of 8. Rows go first to the worker of this
// host that has the same place there as the worker that they are for, then to that. Workers receive
// the same rows in the same order as with one level.
//
// All functions are thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/descriptor.h"
#include "core/base/status.h"

namespace sok {

struct MeshOptions {
  int rank = 0;
  int size = 1;
  // The longest time that an exchange waits for a worker that shows no sign of life; twice that
  // for the workers of other hosts, which may wait for one of theirs.
  double timeout_seconds = 600;
  // The ranks of the workers of each host, equally many. Default: one level.
  std::vector<std::vector<int>> hosts = {};
};

// A connection to another worker, which knows which worker is at this end.
struct Connection {
  Descriptor socket;  // invalid: none to this worker itself, and none that two levels do not use
  std::string place;  // for messages, such as "10.0.0.2:4711"
};

struct ExchangePiece {
  const void* at = nullptr;
  size_t bytes = 0;
};

// Rows for one worker. They must stay as they are until the exchange is done.
struct ExchangePart {
  const void* rows = nullptr;
  size_t count = 0;
  // The pieces of the rows, and of the bytes before them, if these are not all at `rows`.
  std::vector<ExchangePiece> pieces = {};
};

struct ExchangeRequest {
  std::string name;
  // The number of the exchange among the exchanges of its name. A caller gives it where workers may
  // begin two exchanges in different orders. Default: exchanges of a name are counted.
  std::optional<uint64_t> turn;
  // A number that stands for the type and shape of a row. Must be the same on every worker.
  uint64_t row_type = 0;
  size_t row_bytes = 1;
  // So many bytes go before the rows of each part, in its pieces.
  size_t lead_bytes = 0;
  // (size) one for each worker, this one included; or one alone, which goes to all.
  std::vector<ExchangePart> parts;
  // Called with the number of rows that come from each worker. Returns the memory for them, in
  // which they lie worker by worker.
  std::function<Result<char*>(const std::vector<size_t>& counts)> allocate;
  // Called once, on any thread, with the turn. A status that is not OK is the error of the whole
  // mesh.
  std::function<void(const Status& status, uint64_t turn)> done;
};

struct MeshStats {
  uint64_t exchanges = 0;   // that are done
  uint64_t bytes_sent = 0;  // rows alone, to other workers, at both levels
  // The time during which at least one exchange was under way on this worker. It includes waiting
  // for other workers.
  double seconds = 0;
};

class Mesh {
 public:
  // Makes a mesh of connected sockets (size), local ones or of TCP, by the ranks of the workers at
  // their other ends.
  static Result<std::shared_ptr<Mesh>> Make(const MeshOptions& options,
                                            std::vector<Connection> connections);
  // Closes all connections. Workers that wait for this one get an error.
  ~Mesh();
  Mesh(const Mesh&) = delete;

  int rank() const;
  int size() const;
  // Sends rows to every worker, and receives from each. Returns at once.
  void Exchange(ExchangeRequest request);

  MeshStats Stats() const;
  // Returns true if an error has ended the mesh.
  bool is_broken() const;

 private:
  class Work;
  explicit Mesh(std::unique_ptr<Work> work);

  std::unique_ptr<Work> work_;
};

// Numbers of meshes, for code that cannot hold a pointer to a mesh, such as attributes of ops. A
// number stands for its mesh until RemoveMesh. After that FindMesh returns null for it.
int64_t AddMesh(std::shared_ptr<Mesh> mesh);
std::shared_ptr<Mesh> FindMesh(int64_t number);
void RemoveMesh(int64_t number);

}  // namespace sok
