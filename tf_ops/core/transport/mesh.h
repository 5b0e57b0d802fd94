// A mesh: connections between every two workers of a job, over which they exchange rows.
//
//   Result<std::shared_ptr<Mesh>> mesh = Mesh::Listen({rank, size, "10.0.0.2"});
//   // every worker sends the others its mesh->address(), by any means they have
//   Status status = mesh->Connect(addresses);
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
// All functions are thread-safe once Connect has returned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/status.h"

namespace sok {

struct MeshOptions {
  int rank = 0;
  int size = 1;
  // The name or number of the host under which the other workers reach this one.
  std::string host = "127.0.0.1";
  // The longest time that an exchange waits for a worker that shows no sign of life.
  double timeout_seconds = 600;
  // True if workers on one system talk over local sockets. Otherwise they use its loopback
  // interface.
  bool local_sockets = true;
  // A secret of the job, the same for all workers. With a secret, only processes that know it can
  // take part; without one, any process that knows the addresses can.
  std::string secret = {};
};

// Rows for one worker. They must stay as they are until the exchange is done.
struct ExchangePart {
  const void* rows = nullptr;
  size_t count = 0;
};

struct ExchangeRequest {
  std::string name;
  // The number of the exchange among the exchanges of its name. A caller gives it where workers may
  // begin two exchanges in different orders. Default: exchanges of a name are counted.
  std::optional<uint64_t> turn;
  // A number that stands for the type and shape of a row. Must be the same on every worker.
  uint64_t row_type = 0;
  size_t row_bytes = 1;
  std::vector<ExchangePart> parts;  // (size) one for each worker, this one included
  // Called with the number of rows that come from each worker. Returns the memory for them, in
  // which they lie worker by worker.
  std::function<Result<char*>(const std::vector<size_t>& counts)> allocate;
  // Called once, on any thread, with the turn. A status that is not OK is the error of the whole
  // mesh.
  std::function<void(const Status& status, uint64_t turn)> done;
};

struct MeshStats {
  uint64_t exchanges = 0;   // that are done
  uint64_t bytes_sent = 0;  // rows alone, to other workers
  // The time during which at least one exchange was under way on this worker. It includes waiting
  // for other workers.
  double seconds = 0;
};

class Mesh {
 public:
  // Listens for the other workers, on a port that the system chooses.
  static Result<std::shared_ptr<Mesh>> Listen(const MeshOptions& options);
  // Closes all connections. Workers that wait for this one get an error.
  ~Mesh();
  Mesh(const Mesh&) = delete;

  int rank() const;
  int size() const;
  // Returns the address that the other workers give to Connect. Without a secret of the job, anyone
  // who knows the address can take part.
  const std::string& address() const;

  // Connects to all workers; collective. `addresses` (size) has the address of each worker, by
  // rank.
  Status Connect(const std::vector<std::string>& addresses);

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
