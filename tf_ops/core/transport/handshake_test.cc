#include "core/transport/handshake.h"

#include <doctest/doctest.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/base/test_result.h"
#include "core/base/test_threads.h"
#include "core/transport/mesh.h"
#include "core/transport/socket.h"

namespace sok {
namespace {

// The lengths of the messages, in the order in which they are sent.
constexpr size_t kGreeting = 48, kAnswer = 64, kProof = 32, kTakenIn = 1;
constexpr int64_t kEnough = 20000;  // milliseconds

// Workers of one process that listen.
struct Workers {
  explicit Workers(int size, const std::string& secret, double timeout_seconds = 30) {
    for (int rank = 0; rank < size; ++rank) {
      meshes.push_back(
          Value(Mesh::Listen({rank, size, "127.0.0.1", timeout_seconds, true, secret})));
      addresses.push_back(meshes.back()->address());
    }
    statuses.resize(meshes.size());
  }
  ~Workers() {
    for (std::thread& thread : threads) thread.join();
  }

  WorkerAddress At(size_t rank) const { return Value(WorkerAddress::FromText(addresses[rank])); }

  // Begins to connect a worker to all others, by the addresses that there are now.
  void Connect(size_t rank) {
    threads.emplace_back(
        [this, rank, known = addresses] { statuses[rank] = meshes[rank]->Connect(known); });
  }
  void Join() {
    for (std::thread& thread : threads) thread.join();
    threads.clear();
  }

  std::vector<std::shared_ptr<Mesh>> meshes;
  std::vector<std::string> addresses;
  std::vector<Status> statuses;
  std::vector<std::thread> threads;
};

// Has workers send each other their ranks. Returns whether each got those of all.
bool Exchange(const Workers& workers) {
  const size_t size = workers.meshes.size();
  std::vector<int64_t> sent(size);
  std::vector<std::vector<int64_t>> received(size, std::vector<int64_t>(size, -1));
  std::mutex mu;
  std::condition_variable wake;
  size_t done = 0, failed = 0;
  for (size_t rank = 0; rank < size; ++rank) {
    sent[rank] = static_cast<int64_t>(rank);
    ExchangeRequest request;
    request.name = "ranks";
    request.row_bytes = sizeof(int64_t);
    request.parts.assign(size, ExchangePart{&sent[rank], 1});
    request.allocate = [&received, rank](const std::vector<size_t>&) -> Result<char*> {
      return reinterpret_cast<char*>(received[rank].data());
    };
    request.done = [&](const Status& status, uint64_t) {
      std::lock_guard<std::mutex> guard(mu);
      ++done;
      if (!status.ok()) ++failed;
      wake.notify_all();
    };
    workers.meshes[rank]->Exchange(std::move(request));
  }
  std::unique_lock<std::mutex> lock(mu);
  wake.wait(lock, [&] { return done == size; });
  for (const auto& each : received) {
    if (each != sent) return false;
  }
  return failed == 0;
}

std::string Greeting(uint32_t caller, uint32_t callee) {
  std::string greeting = "sokmesh2";
  greeting.append(reinterpret_cast<const char*>(&caller), sizeof(caller));
  greeting.append(reinterpret_cast<const char*>(&callee), sizeof(callee));
  return greeting + std::string(32, 'n');
}

bool Send(const Descriptor& to, const std::string& bytes) {
  return SendAll(to.get(), bytes.data(), bytes.size(), kEnough).ok();
}

// Returns so many bytes; nothing if the connection ends before.
std::string Receive(const Descriptor& from, size_t n) {
  std::string bytes(n, '\0');
  return ReceiveAll(from.get(), bytes.data(), n, kEnough).ok() ? bytes : "";
}

Descriptor Accepted(const Descriptor& listening) {
  pollfd polled{listening.get(), POLLIN, 0};
  poll(&polled, 1, static_cast<int>(kEnough));
  return Descriptor(accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
}

// A caller of some kind that has only the address.
void Visit(const WorkerAddress& address, uint64_t kind, std::mt19937_64* random) {
  Result<Descriptor> made =
      kind % 2 == 0 ? ConnectTo(address, kEnough) : ConnectLocally(address.token);
  if (!made.ok()) return;
  const Descriptor& to = made.value();
  std::string nonsense((*random)() % 200, '\0');
  for (char& byte : nonsense) byte = static_cast<char>((*random)());
  switch (kind / 2 % 4) {
    case 0:
      break;  // ends at once
    case 1:
      Send(to, nonsense);
      break;
    case 2:
      Send(to, "sokmesh2" + nonsense);
      break;
    case 3:  // an impostor of any rank
      Send(to, Greeting(static_cast<uint32_t>((*random)() % 4),
                        static_cast<uint32_t>((*random)() % 3)));
      if (Receive(to, kAnswer).empty()) return;
      nonsense.resize(kProof);
      Send(to, nonsense);
      CHECK(Receive(to, kTakenIn).empty());
  }
}

}  // namespace

TEST_CASE("workers connect and exchange among strangers of every kind") {
  const uint64_t seed = TestSeed();
  for (const std::string secret : {"", "a secret of the job"}) {
    Workers workers(3, secret);
    std::atomic<bool> ends{false};
    const std::vector<WorkerAddress> known{workers.At(0), workers.At(1), workers.At(2)};
    std::vector<std::thread> strangers;
    for (size_t i = 0; i < 3; ++i) {
      strangers.emplace_back([&, i] {
        std::mt19937_64 random(seed + i);
        while (!ends) Visit(known[i], random(), &random);
      });
    }
    for (size_t rank = 3; rank-- > 0;) workers.Connect(rank);
    workers.Join();
    ends = true;
    for (std::thread& stranger : strangers) stranger.join();
    for (const Status& status : workers.statuses) REQUIRE_MESSAGE(status.ok(), status.message());
    CHECK(Exchange(workers));
  }
}

TEST_CASE("connections that are held open take no worker's room") {
  for (const std::string secret : {"", "a secret of the job"}) {
    Workers workers(2, secret);
    std::vector<Descriptor> held;
    for (int i = 0; i < 200; ++i) {
      held.push_back(Value(i % 2 == 0 ? ConnectTo(workers.At(0), kEnough)
                                      : ConnectLocally(workers.At(0).token)));
      // Some have said all but the last.
      if (i % 3 == 0) REQUIRE(Send(held.back(), Greeting(1, 0)));
    }
    workers.Connect(0);
    workers.Connect(1);
    workers.Join();
    for (const Status& status : workers.statuses) REQUIRE_MESSAGE(status.ok(), status.message());
    CHECK(Exchange(workers));
  }
}

TEST_CASE("what was recorded of a worker is of no use") {
  Workers workers(3, "a secret of the job");
  // Worker 1 is led through this test, which hands on what is said and keeps it.
  WorkerAddress between = workers.At(0);
  between.system.clear();
  const WorkerAddress first = between;
  const Descriptor listening = Value(ListenFor("127.0.0.1", 8, &between.port));
  const std::string of_first = workers.addresses[0];
  workers.Connect(0);
  workers.addresses[0] = between.ToText();
  workers.Connect(1);
  const Descriptor from = Accepted(listening), to = Value(ConnectTo(first, kEnough));
  const std::string greeting = Receive(from, kGreeting);
  REQUIRE(Send(to, greeting));
  REQUIRE(Send(from, Receive(to, kAnswer)));
  const std::string proof = Receive(from, kProof);
  REQUIRE(Send(to, proof));
  const std::string taken_in = Receive(to, kTakenIn);
  CHECK(taken_in.size() == kTakenIn);
  for (int i = 0; i < 5; ++i) {
    const Descriptor again = Value(ConnectTo(first, kEnough));
    REQUIRE(Send(again, greeting));
    CHECK(Receive(again, kAnswer).size() == kAnswer);
    REQUIRE(Send(again, proof));
    CHECK(Receive(again, kTakenIn).empty());
  }
  // Its own answer is not a proof either.
  const Descriptor mirror = Value(ConnectTo(first, kEnough));
  REQUIRE(Send(mirror, Greeting(2, 0)));
  REQUIRE(Send(mirror, Receive(mirror, kAnswer).substr(kAnswer - kProof)));
  CHECK(Receive(mirror, kTakenIn).empty());
  // The place of worker 1 is still held by the caller that had it.
  REQUIRE(Send(from, taken_in));
  workers.addresses[0] = of_first;
  workers.Connect(2);
  workers.Join();
  for (const Status& status : workers.statuses) REQUIRE_MESSAGE(status.ok(), status.message());
}

TEST_CASE("an impostor of who is called is found out") {
  Workers workers(2, "a secret of the job");
  WorkerAddress impostor = workers.At(0);
  impostor.system.clear();
  const Descriptor listening = Value(ListenFor("127.0.0.1", 8, &impostor.port));
  workers.addresses[0] = impostor.ToText();
  workers.Connect(1);
  const Descriptor connection = Accepted(listening);
  CHECK(Receive(connection, kGreeting).size() == kGreeting);
  REQUIRE(Send(connection, std::string(kAnswer, 'x')));
  CHECK(Receive(connection, kProof).empty());  // it proves nothing to a stranger
  workers.Join();
  CHECK(workers.statuses[1].code() == Code::kUnavailable);
  const std::string& message = workers.statuses[1].message();
  CHECK_MESSAGE(message.find("SOK_EMBED_SECRET") != std::string::npos, message);
  CHECK_MESSAGE(message.find("worker 0") != std::string::npos, message);
}

TEST_CASE("a worker whose connection ends before it is taken in calls again") {
  Workers workers(2, "");
  WorkerAddress between = workers.At(0);
  between.system.clear();
  const WorkerAddress first = between;
  const Descriptor listening = Value(ListenFor("127.0.0.1", 8, &between.port));
  workers.Connect(0);
  workers.addresses[0] = between.ToText();
  workers.Connect(1);
  for (int i = 0; i < 3; ++i) {
    const Descriptor ended = Accepted(listening);
    CHECK(Receive(ended, kGreeting).size() == kGreeting);
  }
  const Descriptor from = Accepted(listening), to = Value(ConnectTo(first, kEnough));
  REQUIRE(Send(to, Receive(from, kGreeting)));
  REQUIRE(Send(from, Receive(to, kAnswer)));
  REQUIRE(Send(to, Receive(from, kProof)));
  REQUIRE(Send(from, Receive(to, kTakenIn)));
  workers.Join();
  for (const Status& status : workers.statuses) REQUIRE_MESSAGE(status.ok(), status.message());
}

TEST_CASE("a local socket takes more at a time than the system's default") {
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  const Descriptor plain(ends[0]), prepared(ends[1]);
  REQUIRE(PrepareForExchanges(prepared.get()).ok());
  const auto room_of = [](const Descriptor& socket) {
    int room = 0;
    socklen_t length = sizeof(room);
    REQUIRE(getsockopt(socket.get(), SOL_SOCKET, SO_SNDBUF, &room, &length) == 0);
    return room;
  };
  CHECK(room_of(prepared) > room_of(plain));
}

TEST_CASE("workers with different secrets do not connect, and say so") {
  Workers workers(2, "a secret of the job", 1);
  workers.meshes[1] = Value(Mesh::Listen({1, 2, "127.0.0.1", 1, true, "another"}));
  workers.addresses[1] = workers.meshes[1]->address();
  workers.Connect(0);
  workers.Connect(1);
  workers.Join();
  CHECK(workers.statuses[1].message().find("SOK_EMBED_SECRET") != std::string::npos);
  CHECK(workers.statuses[0].message().find("still missing: 1") != std::string::npos);
}

}  // namespace sok
