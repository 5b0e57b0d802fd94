// A mesh: connections between every two workers of a job, over which they exchange rows.
//
//   Result<std::shared_ptr<Mesh>> mesh = Mesh::Listen({rank, size, "10.0.0.2"});
//   // every worker tells the others its mesh->address(), in whatever way they have
//   Status status = mesh->Connect(addresses);
//   mesh->Exchange({"clicks.keys", …});
//
// An exchange has a name. The k-th exchange of a name on one worker meets the k-th of that name on
// the others: k is its turn. Exchanges of different names may run at once, and begin in any order:
// what comes for one that this worker has not begun is kept. A frame says its size, so that sizes
// need no round of their own.
//
// Errors end a mesh. When a worker is lost, does not come within the timeout or sends what does not
// fit, every exchange under way, on every worker, ends with a status that says so, and so does
// every later one.
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
  // By which the other workers reach this one: a name or a number.
  std::string host = "127.0.0.1";
  // The time that an exchange waits without a sign of life of a worker.
  double timeout_seconds = 600;
  // True if workers of one system talk over local sockets, and not over its loopback interface.
  bool local_sockets = true;
  // A secret of the job, the same for all workers. With one, only processes that
  // know it take part; without one, any process that knows the addresses can.
  std::string secret = {};
};

// Rows for one worker. They must stay as they are until the exchange is done.
struct ExchangePart {
  const void* rows = nullptr;
  size_t count = 0;
};

struct ExchangeRequest {
  std::string name;
  // The number of the exchange among those of its name, which the caller chooses: it tells two
  // exchanges apart whose order may differ from worker to worker. Default: they are counted.
  std::optional<uint64_t> turn;
  // Says what a row is. Must be the same on every worker.
  uint64_t row_type = 0;
  size_t row_bytes = 1;
  std::vector<ExchangePart> parts;  // (size) for each worker, for this one too
  // Is told how many rows come from each worker, and returns where they go, one after another.
  std::function<Result<char*>(const std::vector<size_t>& counts)> allocate;
  // Is called once, on any thread, with the turn. What is not OK is the error of the whole mesh.
  std::function<void(const Status& status, uint64_t turn)> done;
};

struct MeshStats {
  uint64_t exchanges = 0;   // that are done
  uint64_t bytes_sent = 0;  // of rows, to other workers
  // The time in which one exchange or more were under way, from their beginning here to their end
  // here: the others' delays are part of it.
  double seconds = 0;
};

class Mesh {
 public:
  // Listens for the other workers, on a port that the system chooses.
  static Result<std::shared_ptr<Mesh>> Listen(const MeshOptions& options);
  // Closes all connections: workers that wait for this one get an error.
  ~Mesh();
  Mesh(const Mesh&) = delete;

  int rank() const;
  int size() const;
  // Returns the address of this worker for Connect of the other workers. Without a secret of the
  // job, anyone who has it can take part.
  const std::string& address() const;

  // Connects to all workers; collective. `addresses` (size) are theirs by rank.
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

// Meshes have numbers, for code that cannot hold a pointer to one. A number stands for its mesh
// until RemoveMesh. FindMesh returns null for a number that stands for none.
int64_t AddMesh(std::shared_ptr<Mesh> mesh);
std::shared_ptr<Mesh> FindMesh(int64_t number);
void RemoveMesh(int64_t number);

}  // namespace sok
