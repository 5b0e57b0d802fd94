#include "core/transport/mesh.h"

#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "core/base/test_result.h"
#include "core/base/test_threads.h"
#include "core/transport/socket.h"

namespace sok {
namespace {

using Meshes = std::vector<std::shared_ptr<Mesh>>;

// Selects the connections of a test's workers: of each two, or, over local sockets, of two levels.
struct LocalSockets {};
struct Ports {};
struct TwoLevels {};

using Hosts = std::vector<std::vector<int>>;

// Returns the hosts of workers, of which two share one if they are four or more, and even.
template <typename Over>
Hosts HostsOf(int size) {
  if (!std::is_same_v<Over, TwoLevels>) return {};
  Hosts hosts(static_cast<size_t>(size > 2 && size % 2 == 0 ? size / 2 : size));
  for (int rank = 0; rank < size; ++rank) {
    hosts[static_cast<size_t>(rank) % hosts.size()].push_back(rank);
  }
  return hosts;
}

// Returns whether workers are on one host, or have the same place on their hosts.
bool AreConnected(const Hosts& hosts, int one, int other) {
  std::array<size_t, 2> host{}, place{};
  for (size_t i = 0; i < hosts.size(); ++i) {
    for (size_t k = 0; k < hosts[i].size(); ++k) {
      if (hosts[i][k] == one) host[0] = i, place[0] = k;
      if (hosts[i][k] == other) host[1] = i, place[1] = k;
    }
  }
  return host[0] == host[1] || place[0] == place[1];
}

// Returns the two ends of a new connection.
template <typename Over>
std::array<Descriptor, 2> NewConnection() {
  if constexpr (!std::is_same_v<Over, Ports>) {
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    return {Descriptor(ends[0]), Descriptor(ends[1])};
  } else {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    const Descriptor listening(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    Descriptor caller(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    REQUIRE(bind(listening.get(), generic, length) == 0);
    REQUIRE(listen(listening.get(), 1) == 0);
    REQUIRE(getsockname(listening.get(), generic, &length) == 0);
    REQUIRE(connect(caller.get(), generic, length) == 0);
    return {std::move(caller), Descriptor(accept(listening.get(), nullptr, nullptr))};
  }
}

// Workers of one process, each of which would be one of its own.
template <typename Over>
Meshes Connected(int size, double timeout_seconds = 60) {
  std::vector<std::vector<Connection>> connections(static_cast<size_t>(size));
  for (auto& of_worker : connections) of_worker.resize(connections.size());
  const Hosts hosts = HostsOf<Over>(size);
  for (size_t i = 0; i < connections.size(); ++i) {
    for (size_t k = 0; k < i; ++k) {
      connections[i][k].place = "place " + std::to_string(k);
      connections[k][i].place = "place " + std::to_string(i);
      if (!AreConnected(hosts, static_cast<int>(i), static_cast<int>(k))) continue;
      auto [one, other] = NewConnection<Over>();
      connections[i][k].socket = std::move(one);
      connections[k][i].socket = std::move(other);
    }
  }
  Meshes meshes;
  for (int rank = 0; rank < size; ++rank) {
    meshes.push_back(Value(Mesh::Make({rank, size, timeout_seconds, hosts},
                                      std::move(connections[static_cast<size_t>(rank)]))));
  }
  return meshes;
}

// One worker's side of an exchange of int64, which waits for its end.
class Side {
 public:
  // `rows` (size) go to each worker.
  void Begin(Mesh* mesh, const std::string& name, std::vector<std::vector<int64_t>> rows,
             std::optional<uint64_t> turn = std::nullopt, uint64_t row_type = 1) {
    sent_ = std::move(rows);
    ExchangeRequest request;
    request.name = name;
    request.turn = turn;
    request.row_type = row_type;
    request.row_bytes = sizeof(int64_t);
    for (const auto& part : sent_) request.parts.push_back({part.data(), part.size()});
    request.allocate = [this](const std::vector<size_t>& counts) -> Result<char*> {
      counts_ = counts;
      size_t total = 0;
      for (const size_t count : counts) total += count;
      received_.resize(total);
      return reinterpret_cast<char*>(received_.data());
    };
    request.done = [this](const Status& status, uint64_t taken) {
      std::lock_guard<std::mutex> guard(mu_);
      status_ = status;
      turn_ = taken;
      ++dones_;
      wake_.notify_all();
    };
    mesh->Exchange(std::move(request));
  }

  Status Wait() {
    std::unique_lock<std::mutex> lock(mu_);
    wake_.wait(lock, [this] { return dones_ > 0; });
    return status_;
  }
  bool done() {
    std::lock_guard<std::mutex> guard(mu_);
    return dones_ > 0;
  }

  // Returns the rows that have come from a worker.
  std::vector<int64_t> From(size_t worker) const {
    size_t begin = 0;
    for (size_t i = 0; i < worker; ++i) begin += counts_[i];
    const auto at = received_.begin() + static_cast<ptrdiff_t>(begin);
    return {at, at + static_cast<ptrdiff_t>(counts_[worker])};
  }
  uint64_t turn() const { return turn_; }
  int dones() const { return dones_; }

 private:
  std::vector<std::vector<int64_t>> sent_;
  std::vector<int64_t> received_;
  std::vector<size_t> counts_;
  std::mutex mu_;
  std::condition_variable wake_;
  Status status_;
  uint64_t turn_ = 0;
  int dones_ = 0;
};

// Returns the rows that `from` sends to `to` in a numbered exchange; their number differs from
// exchange to exchange.
std::vector<int64_t> RowsOf(size_t from, size_t to, uint64_t number, size_t longest) {
  std::mt19937_64 random(number * 1000003 + from * 1009 + to);
  std::vector<int64_t> rows(random() % (longest + 1));
  for (int64_t& row : rows) row = static_cast<int64_t>(random());
  return rows;
}

std::vector<std::vector<int64_t>> PartsOf(size_t from, size_t size, uint64_t number,
                                          size_t longest) {
  std::vector<std::vector<int64_t>> parts;
  for (size_t to = 0; to < size; ++to) parts.push_back(RowsOf(from, to, number, longest));
  return parts;
}

// Returns true if an error of another worker arrives within 30 seconds.
bool Breaks(const Mesh& mesh) {
  for (int i = 0; i < 3000 && !mesh.is_broken(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return mesh.is_broken();
}

std::vector<std::vector<int64_t>> Nothing(size_t size) {
  return std::vector<std::vector<int64_t>>(size);
}

}  // namespace

TEST_CASE_TEMPLATE("every worker gets what the others sent it, by rank", Over, LocalSockets, Ports,
                   TwoLevels) {
  for (const int size : {1, 2, 3, 4, 6}) {
    for (const size_t longest : {size_t{0}, size_t{1}, size_t{100}, size_t{300000}}) {
      const Meshes meshes = Connected<Over>(size);
      std::vector<Side> sides(static_cast<size_t>(size));
      for (size_t rank = 0; rank < sides.size(); ++rank) {
        sides[rank].Begin(meshes[rank].get(), "rows",
                          PartsOf(rank, sides.size(), longest, longest));
      }
      for (size_t rank = 0; rank < sides.size(); ++rank) {
        const Status status = sides[rank].Wait();
        REQUIRE_MESSAGE(status.ok(), status.message());
        for (size_t from = 0; from < sides.size(); ++from) {
          CHECK(sides[rank].From(from) == RowsOf(from, rank, longest, longest));
        }
        CHECK(meshes[rank]->Stats().exchanges == 1);
      }
    }
  }
}

TEST_CASE_TEMPLATE("exchanges of several names run in any order, with delays", Over, LocalSockets,
                   Ports, TwoLevels) {
  constexpr size_t kSize = 4, kNames = 4, kSteps = 60;
  const Meshes meshes = Connected<Over>(kSize);
  const uint64_t seed = TestSeed();
  std::vector<std::thread> workers;
  std::atomic<int> wrong{0};
  for (size_t rank = 0; rank < kSize; ++rank) {
    for (size_t name = 0; name < kNames; ++name) {
      workers.emplace_back([&, rank, name] {
        std::mt19937_64 random(seed + rank * kNames + name);
        for (size_t step = 0; step < kSteps; ++step) {
          if (random() % 3 == 0) {
            std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
          }
          const size_t longest = step % 10 == 0 ? 200000 : 50;
          const uint64_t number = name * kSteps + step;
          Side side;
          side.Begin(meshes[rank].get(), "layer " + std::to_string(name),
                     PartsOf(rank, kSize, number, longest));
          if (!side.Wait().ok()) {
            ++wrong;
            return;
          }
          for (size_t from = 0; from < kSize; ++from) {
            if (side.From(from) != RowsOf(from, rank, number, longest)) ++wrong;
          }
        }
      });
    }
  }
  for (std::thread& worker : workers) worker.join();
  CHECK(wrong == 0);
}

TEST_CASE_TEMPLATE("exchanges of one name are told apart by their turns, whatever their order",
                   Over, LocalSockets, Ports, TwoLevels) {
  constexpr size_t kSize = 2, kTurns = 6;
  const Meshes meshes = Connected<Over>(kSize);
  std::vector<std::vector<Side>> sides;
  for (size_t rank = 0; rank < kSize; ++rank) sides.emplace_back(kTurns);
  for (size_t turn = 0; turn < kTurns; ++turn) {
    sides[0][turn].Begin(meshes[0].get(), "gradients", PartsOf(0, kSize, turn, 9), turn);
  }
  for (size_t turn = kTurns; turn-- > 0;) {
    sides[1][turn].Begin(meshes[1].get(), "gradients", PartsOf(1, kSize, turn, 9), turn);
  }
  for (size_t rank = 0; rank < kSize; ++rank) {
    for (size_t turn = 0; turn < kTurns; ++turn) {
      REQUIRE(sides[rank][turn].Wait().ok());
      CHECK(sides[rank][turn].turn() == turn);
      CHECK(sides[rank][turn].From(1 - rank) == RowsOf(1 - rank, rank, turn, 9));
    }
  }
}

TEST_CASE_TEMPLATE("one turn may be taken again and again", Over, LocalSockets, Ports, TwoLevels) {
  constexpr size_t kSize = 4, kTimes = 300;
  const Meshes meshes = Connected<Over>(kSize);
  std::atomic<int> wrong{0};
  std::vector<std::thread> workers;
  for (size_t rank = 0; rank < kSize; ++rank) {
    workers.emplace_back([&, rank] {
      for (size_t time = 0; time < kTimes; ++time) {
        Side side;
        side.Begin(meshes[rank].get(), "gradients", PartsOf(rank, kSize, time, 2000), 7);
        if (!side.Wait().ok()) {
          ++wrong;
          return;
        }
        for (size_t from = 0; from < kSize; ++from) {
          if (side.From(from) != RowsOf(from, rank, time, 2000)) ++wrong;
        }
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  CHECK(wrong == 0);
}

TEST_CASE_TEMPLATE("a worker that does not come is named on all others within the timeout", Over,
                   LocalSockets, Ports, TwoLevels) {
  const Meshes meshes = Connected<Over>(3, 0.3);
  Side first, second;
  first.Begin(meshes[0].get(), "rows", Nothing(3));
  second.Begin(meshes[1].get(), "rows", Nothing(3));
  for (Side* side : {&first, &second}) {
    const Status status = side->Wait();
    CHECK(status.code() == Code::kUnavailable);
    CHECK_MESSAGE(status.message().find("worker 2") != std::string::npos, status.message());
    CHECK(status.message().find("'rows") != std::string::npos);
  }
  // From here on no call waits.
  for (const auto& mesh : meshes) CHECK(Breaks(*mesh));
  Side late, other;
  late.Begin(meshes[2].get(), "rows", Nothing(3));
  CHECK(!late.Wait().ok());
  other.Begin(meshes[0].get(), "others", Nothing(3));
  CHECK(other.Wait().message() == first.Wait().message());
}

TEST_CASE_TEMPLATE("the end of a worker ends what waits for it", Over, LocalSockets, Ports,
                   TwoLevels) {
  Meshes meshes = Connected<Over>(3);
  Side first, second;
  first.Begin(meshes[0].get(), "rows", PartsOf(0, 3, 1, 400000));
  second.Begin(meshes[1].get(), "rows", PartsOf(1, 3, 1, 400000));
  CHECK(!first.done());
  meshes[2].reset();
  for (Side* side : {&first, &second}) {
    const Status status = side->Wait();
    CHECK(status.code() == Code::kUnavailable);
    CHECK_MESSAGE(status.message().find("worker 2 (place 2)") != std::string::npos,
                  status.message());
  }
  CHECK(first.dones() == 1);
}

TEST_CASE_TEMPLATE("a worker that is lost before this one comes is an error at once", Over,
                   LocalSockets, Ports, TwoLevels) {
  Meshes meshes = Connected<Over>(2);
  Side gone, late;
  gone.Begin(meshes[1].get(), "rows", PartsOf(1, 2, 1, 10));
  meshes[1].reset();
  CHECK(!gone.Wait().ok());
  CHECK(Breaks(*meshes[0]));
  late.Begin(meshes[0].get(), "rows", PartsOf(0, 2, 1, 10));
  CHECK(!late.Wait().ok());
}

TEST_CASE_TEMPLATE("a worker that has done its part may leave", Over, LocalSockets, Ports,
                   TwoLevels) {
  Meshes meshes = Connected<Over>(3);
  std::vector<Side> sides(3);
  for (size_t rank = 0; rank < 2; ++rank) {
    sides[rank].Begin(meshes[rank].get(), "rows", PartsOf(rank, 3, 7, 20));
  }
  sides[2].Begin(meshes[2].get(), "rows", PartsOf(2, 3, 7, 20));
  REQUIRE(sides[2].Wait().ok());
  meshes[2].reset();
  for (size_t rank = 0; rank < 2; ++rank) {
    REQUIRE(sides[rank].Wait().ok());
    CHECK(sides[rank].From(2) == RowsOf(2, rank, 7, 20));
  }
  Side next;
  next.Begin(meshes[0].get(), "rows", Nothing(3));
  CHECK(next.Wait().code() == Code::kUnavailable);
}

TEST_CASE_TEMPLATE("rows of different types are an error on every worker", Over, LocalSockets,
                   Ports, TwoLevels) {
  const Meshes meshes = Connected<Over>(2);
  Side first, second;
  first.Begin(meshes[0].get(), "rows", PartsOf(0, 2, 1, 5), std::nullopt, 1);
  second.Begin(meshes[1].get(), "rows", PartsOf(1, 2, 1, 5), std::nullopt, 2);
  for (Side* side : {&first, &second}) {
    const std::string message = side->Wait().message();
    CHECK_MESSAGE(message.find("of one type and shape on all workers") != std::string::npos,
                  message);
  }
}

TEST_CASE_TEMPLATE("an exchange that finds no memory for its rows ends the mesh of every worker",
                   Over, LocalSockets, Ports, TwoLevels) {
  const Meshes meshes = Connected<Over>(2);
  Side first;
  first.Begin(meshes[0].get(), "rows", PartsOf(0, 2, 3, 50));
  std::mutex mu;
  std::condition_variable wake;
  std::optional<Status> second;
  ExchangeRequest request;
  request.name = "rows";
  request.row_type = 1;
  request.row_bytes = 8;
  request.parts.resize(2);
  request.allocate = [](const std::vector<size_t>&) -> Result<char*> {
    return Status(Code::kResourceExhausted, "no memory in this test");
  };
  request.done = [&](const Status& status, uint64_t) {
    std::lock_guard<std::mutex> guard(mu);
    second = status;
    wake.notify_all();
  };
  meshes[1]->Exchange(std::move(request));
  {
    std::unique_lock<std::mutex> lock(mu);
    wake.wait(lock, [&] { return second.has_value(); });
  }
  CHECK(second->code() == Code::kResourceExhausted);
  // The first worker may have had all that it needs, but there is no other exchange.
  Side next;
  next.Begin(meshes[0].get(), "next", Nothing(2));
  CHECK(next.Wait().message().find("no memory in this test") != std::string::npos);
}

TEST_CASE_TEMPLATE("one part goes to all", Over, LocalSockets, Ports, TwoLevels) {
  for (const int size : {1, 2, 4, 6}) {
    const Meshes meshes = Connected<Over>(size);
    std::vector<Side> sides(meshes.size());
    for (size_t rank = 0; rank < sides.size(); ++rank) {
      sides[rank].Begin(meshes[rank].get(), "rows", {RowsOf(rank, 0, 5, 30000)});
    }
    for (Side& side : sides) {
      REQUIRE(side.Wait().ok());
      for (size_t from = 0; from < sides.size(); ++from) {
        CHECK(side.From(from) == RowsOf(from, 0, 5, 30000));
      }
    }
  }
}

TEST_CASE("with two levels all workers name the one that is lost, connected to it or not") {
  constexpr size_t kSize = 6, kLost = 4;
  for (const bool ends : {true, false}) {
    Meshes meshes = Connected<TwoLevels>(kSize, ends ? 60 : 0.3);
    std::vector<Side> sides(kSize);
    for (size_t rank = 0; rank < kSize; ++rank) {
      if (rank != kLost) sides[rank].Begin(meshes[rank].get(), "rows", PartsOf(rank, kSize, 1, 9));
    }
    if (ends) meshes[kLost].reset();
    for (size_t rank = 0; rank < kSize; ++rank) {
      if (rank == kLost) continue;
      const std::string message = sides[rank].Wait().message();
      CHECK_MESSAGE(message.find("expected worker 4 (place 4)") != std::string::npos, message);
      // It names the worker that has found out, and none of those that have passed it on.
      CHECK(message.find("has given up") == message.rfind("has given up"));
    }
  }
}

TEST_CASE("a message names a few of many workers that are lost") {
  Meshes meshes = Connected<LocalSockets>(12);
  Side side;
  side.Begin(meshes[0].get(), "rows", Nothing(12));
  meshes.resize(1);
  const std::string message = side.Wait().message();
  CHECK_MESSAGE(message.find("8 (place 8) and 3 more") != std::string::npos, message);
}

TEST_CASE("hosts that do not make two levels are refused") {
  for (const Hosts& hosts : {Hosts{{0, 1}, {2}}, Hosts{{0, 1}, {1, 2}}, Hosts{{0, 1}, {2, 4}},
                             Hosts{{0, 1}}, Hosts{{}, {}}}) {
    CHECK(Mesh::Make({0, 4, 60, hosts}, std::vector<Connection>(4)).status().code() ==
          Code::kInvalidArgument);
  }
}

TEST_CASE("what a mesh cannot be made of is refused") {
  const auto code = [](const MeshOptions& options, size_t connections) {
    return Mesh::Make(options, std::vector<Connection>(connections)).status().code();
  };
  CHECK(code({2, 2}, 2) == Code::kInvalidArgument);
  CHECK(code({0, 0}, 0) == Code::kInvalidArgument);
  CHECK(code({0, 1, 0}, 1) == Code::kInvalidArgument);
  CHECK(code({0, 1}, 2) == Code::kInvalidArgument);
  CHECK(code({0, 2}, 2) == Code::kUnavailable);  // no socket
}

TEST_CASE("a local socket takes more at a time than the system's default") {
  const auto [plain, prepared] = NewConnection<LocalSockets>();
  REQUIRE(PrepareForExchanges(prepared.get()).ok());
  const auto room_of = [](const Descriptor& socket) {
    int room = 0;
    socklen_t length = sizeof(room);
    REQUIRE(getsockopt(socket.get(), SOL_SOCKET, SO_SNDBUF, &room, &length) == 0);
    return room;
  };
  CHECK(room_of(prepared) > room_of(plain));
}

TEST_CASE_TEMPLATE("two exchanges of one name and turn at a time are refused", Over, LocalSockets,
                   Ports, TwoLevels) {
  const Meshes meshes = Connected<Over>(2);
  Side first, second;
  first.Begin(meshes[0].get(), "rows", Nothing(2), 4);
  second.Begin(meshes[0].get(), "rows", Nothing(2), 4);
  CHECK(second.Wait().code() == Code::kFailedPrecondition);
  CHECK(!first.Wait().ok());
}

TEST_CASE("a mesh is found by its number") {
  const auto mesh = Connected<Ports>(1)[0];
  const int64_t number = AddMesh(mesh);
  CHECK((FindMesh(number) == mesh));
  RemoveMesh(number);
  CHECK(!FindMesh(number));
  RemoveMesh(number);
}

}  // namespace sok
