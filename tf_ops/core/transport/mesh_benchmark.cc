// Measures what the exchanges of a step cost with many workers.
//
//   cmake --build build/native --target sok_mesh_benchmark
//   build/native/sok_mesh_benchmark WORKERS [ROWS [STEPS [TCP [WORKERS_OF_A_HOST]]]]
//
// Starts WORKERS processes that are connected. A step has the three exchanges of a lookup that is
// trained: keys of 8 bytes, then rows and gradients of 64. A worker sends ROWS of each, an equal
// part to every worker. Prints means of one worker and one step, and of one frame, a message from
// one worker to another.
//
// TCP is 1 for connections over the loopback interface, and 0 for local sockets. With fewer
// WORKERS_OF_A_HOST than workers, exchanges have two levels, and local sockets within a host.
//
// All processes share this machine, so the time of a step is not that of as many machines. The
// processor's time is that of each, but for caches and the network.
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <future>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/transport/mesh.h"

namespace sok {
namespace {

constexpr size_t kKeyBytes = 8, kRowBytes = 64;
constexpr int kWarmUp = 3;

struct Figures {
  double seconds = 0;         // of all steps
  double cpu_seconds = 0;     // of the process
  double caller_seconds = 0;  // of these, of the thread that calls
  uint64_t bytes = 0;         // that the worker has sent
};

[[noreturn]] void Fail(const std::string& why) {
  std::fprintf(stderr, "sok_mesh_benchmark: %s\n", why.c_str());
  _exit(1);
}

double Seconds(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// The exchanges of one worker, which wait for their ends.
class Worker {
 public:
  Worker(std::shared_ptr<Mesh> mesh, size_t rows) : mesh_(std::move(mesh)), rows_(rows) {}

  void Step() {
    Exchange("keys", kKeyBytes);
    Exchange("rows", kRowBytes);
    Exchange("gradients", kRowBytes);
  }

 private:
  // Every byte that a worker sends to another is the sum of their ranks.
  void Exchange(const std::string& name, size_t row_bytes) {
    const auto size = static_cast<size_t>(mesh_->size()), rank = static_cast<size_t>(mesh_->rank());
    const size_t bytes = rows_ / size * row_bytes;
    sent_.resize(size * bytes);
    ExchangeRequest request;
    request.name = name;
    request.row_bytes = row_bytes;
    for (size_t to = 0; to < size; ++to) {
      char* const part = sent_.data() + to * bytes;
      std::fill(part, part + bytes, static_cast<char>(rank + to));
      request.parts.push_back({part, rows_ / size});
    }
    request.allocate = [this, size, bytes](const std::vector<size_t>&) -> Result<char*> {
      received_.resize(size * bytes);
      return received_.data();
    };
    std::promise<Status> ended;
    request.done = [&ended](const Status& status, uint64_t) { ended.set_value(status); };
    mesh_->Exchange(std::move(request));
    const Status status = ended.get_future().get();
    if (!status.ok()) Fail(status.message());
    for (size_t from = 0; from < size && bytes > 0; ++from) {
      if (received_[(from + 1) * bytes - 1] != static_cast<char>(from + rank)) Fail("wrong rows");
    }
  }

  const std::shared_ptr<Mesh> mesh_;
  const size_t rows_;
  std::vector<char> sent_, received_;
};

Figures Measured(const MeshOptions& options, std::vector<Connection> connections, size_t rows,
                 int steps) {
  auto mesh = Mesh::Make(options, std::move(connections));
  if (!mesh.ok()) Fail(mesh.status().message());
  Worker worker(mesh.value(), rows);
  for (int i = 0; i < kWarmUp; ++i) worker.Step();
  const uint64_t sent = mesh.value()->Stats().bytes_sent;
  const double began = Seconds(CLOCK_MONOTONIC), cpu = Seconds(CLOCK_PROCESS_CPUTIME_ID),
               caller = Seconds(CLOCK_THREAD_CPUTIME_ID);
  for (int i = 0; i < steps; ++i) worker.Step();
  return {Seconds(CLOCK_MONOTONIC) - began, Seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu,
          Seconds(CLOCK_THREAD_CPUTIME_ID) - caller, mesh.value()->Stats().bytes_sent - sent};
}

std::pair<int, int> LocalPair() {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) Fail("no more local sockets");
  return {pair[0], pair[1]};
}

std::pair<int, int> PortPair() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  const int listening = socket(AF_INET, SOCK_STREAM, 0), caller = socket(AF_INET, SOCK_STREAM, 0);
  if (bind(listening, generic, length) != 0 || listen(listening, 1) != 0 ||
      getsockname(listening, generic, &length) != 0 || connect(caller, generic, length) != 0) {
    Fail("no more ports");
  }
  const int called = accept(listening, nullptr, nullptr);
  close(listening);
  return {caller, called};
}

void CloseAll(const std::vector<int>& ends) {
  for (const int end : ends) {
    if (end >= 0) close(end);
  }
}

// Workers of one host have ranks one after the other.
bool AreConnected(size_t one, size_t other, size_t of_host) {
  return one / of_host == other / of_host || one % of_host == other % of_host;
}

void Run(size_t workers, size_t rows, int steps, bool over_tcp, size_t of_host) {
  MeshOptions options;
  options.size = static_cast<int>(workers);
  for (size_t rank = 0; rank < workers && of_host < workers; ++rank) {
    if (rank % of_host == 0) options.hosts.emplace_back();
    options.hosts.back().push_back(static_cast<int>(rank));
  }
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max = std::max<rlim_t>(files.rlim_max, workers * workers);
  setrlimit(RLIMIT_NOFILE, &files);  // what is missing is an error of socketpair
  auto* const figures =
      static_cast<Figures*>(mmap(nullptr, workers * sizeof(Figures), PROT_READ | PROT_WRITE,
                                 MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  if (figures == MAP_FAILED) Fail("no memory");
  // The ends of connections by worker and other worker. A process has those of workers to come.
  std::vector<std::vector<int>> ends(workers, std::vector<int>(workers, -1));
  for (size_t rank = 0; rank < workers; ++rank) {
    for (size_t other = rank + 1; other < workers; ++other) {
      if (!AreConnected(rank, other, of_host)) continue;
      const bool are_near = of_host < workers && rank / of_host == other / of_host;
      std::tie(ends[rank][other], ends[other][rank]) =
          over_tcp && !are_near ? PortPair() : LocalPair();
    }
    const pid_t process = fork();
    if (process < 0) Fail("no process");
    if (process == 0) {
      std::vector<Connection> own;
      for (const int end : ends[rank]) own.push_back({Descriptor(end), ""});
      for (size_t other = rank + 1; other < workers; ++other) CloseAll(ends[other]);
      options.rank = static_cast<int>(rank);
      figures[rank] = Measured(options, std::move(own), rows, steps);
      _exit(0);
    }
    CloseAll(ends[rank]);
  }
  for (size_t i = 0; i < workers; ++i) {
    int status = 0;
    if (wait(&status) < 0 || status != 0) Fail("a worker has failed");
  }
  Figures sum;
  for (size_t rank = 0; rank < workers; ++rank) {
    sum.seconds += figures[rank].seconds;
    sum.cpu_seconds += figures[rank].cpu_seconds;
    sum.caller_seconds += figures[rank].caller_seconds;
    sum.bytes += figures[rank].bytes;
  }
  const double all = static_cast<double>(workers) * steps;
  size_t sockets = 0;
  for (size_t other = 1; other < workers; ++other) sockets += AreConnected(0, other, of_host);
  const size_t frames = 3 * sockets;
  std::printf(
      "%zu workers, %zu sockets each: %zu frames and %.0f bytes a step, %.2f ms, of which "
      "%.2f ms of a processor, %.2f of them in the mesh's thread: %.1f us a frame\n",
      workers, sockets, frames, static_cast<double>(sum.bytes) / all, sum.seconds / all * 1e3,
      sum.cpu_seconds / all * 1e3, (sum.cpu_seconds - sum.caller_seconds) / all * 1e3,
      sum.cpu_seconds / all / static_cast<double>(frames) * 1e6);
}

}  // namespace
}  // namespace sok

int main(int count, char** arguments) {
  const auto argument = [&](int i, int otherwise) {
    return count > i ? std::atoi(arguments[i]) : otherwise;
  };
  const int workers = argument(1, 0), rows = argument(2, 4096), steps = argument(3, 20),
            of_host = argument(5, workers);
  if (workers < 2 || rows < 0 || steps < 1 || of_host < 1 || workers % of_host != 0) {
    std::fprintf(stderr,
                 "usage: sok_mesh_benchmark WORKERS [ROWS [STEPS [TCP [WORKERS_OF_A_HOST]]]]\n");
    return 2;
  }
  sok::Run(static_cast<size_t>(workers), static_cast<size_t>(rows), steps, argument(4, 0) != 0,
           static_cast<size_t>(of_host));
  return 0;
}
