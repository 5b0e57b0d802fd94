#include "core/base/thread_pool.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <numeric>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

namespace sok {
namespace {

constexpr int64_t kHeavy = 1000000;  // nanoseconds: every item is worth a chunk

using Chunk = std::pair<int64_t, int64_t>;

// Returns the chunks of a run, in their order.
std::set<Chunk> ChunksOf(ThreadPool& pool, int64_t total, int64_t unit_cost) {
  std::mutex mu;
  std::set<Chunk> chunks;
  pool.Run(total, unit_cost, [&](int64_t begin, int64_t end) {
    std::lock_guard<std::mutex> guard(mu);
    chunks.emplace(begin, end);
  });
  return chunks;
}

TEST_CASE("the chunks of a run cover it, each item once") {
  ThreadPool pool(4);
  for (int64_t total : {1, 2, 3, 15, 16, 17, 1000, 12345}) {
    for (int64_t unit_cost : {int64_t{0}, int64_t{1}, int64_t{100}, kHeavy, int64_t{1} << 62}) {
      CAPTURE(total);
      CAPTURE(unit_cost);
      int64_t next = 0;
      for (const auto& [begin, end] : ChunksOf(pool, total, unit_cost)) {
        REQUIRE(begin == next);
        REQUIRE(end > begin);
        next = end;
      }
      REQUIRE(next == total);
    }
  }
}

TEST_CASE("a run over nothing calls nothing") {
  ThreadPool pool(4);
  for (int64_t total : {0, -1}) CHECK(ChunksOf(pool, total, kHeavy).empty());
}

TEST_CASE("what is not worth two chunks runs on the caller alone") {
  ThreadPool pool(4);
  std::thread::id runner;
  int calls = 0;
  pool.Run(1000, ThreadPool::kChunkNanoseconds / 1000, [&](int64_t begin, int64_t end) {
    runner = std::this_thread::get_id();
    ++calls;
    CHECK(begin == 0);
    CHECK(end == 1000);
  });
  CHECK(calls == 1);
  const bool on_caller = runner == std::this_thread::get_id();
  CHECK(on_caller);
  CHECK(ChunksOf(pool, 10000, ThreadPool::kChunkNanoseconds / 1000).size() == 10);
}

TEST_CASE("a run has as many threads as the pool, the caller among them") {
  constexpr int kThreads = 4;
  ThreadPool pool(kThreads);
  std::mutex mu;
  std::set<std::thread::id> runners;
  std::atomic<int> waiting{0};
  pool.Run(kThreads, kHeavy, [&](int64_t, int64_t) {
    {
      std::lock_guard<std::mutex> guard(mu);
      runners.insert(std::this_thread::get_id());
    }
    // Each of the four items waits for the others, so that no thread can take two.
    ++waiting;
    while (waiting < kThreads) std::this_thread::yield();
  });
  CHECK(runners.size() == kThreads);
  CHECK(runners.count(std::this_thread::get_id()) == 1);
}

TEST_CASE("runs from many threads, and runs inside of runs, all come to their end") {
  for (int threads : {1, 2, 4}) {
    ThreadPool pool(threads);
    std::atomic<int64_t> items{0};
    const auto outer = [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        pool.Run(8, kHeavy, [&](int64_t from, int64_t to) {
          pool.Run(to - from, kHeavy, [&](int64_t a, int64_t b) { items += b - a; });
        });
      }
    };
    std::vector<std::thread> callers;
    for (int t = 0; t < 6; ++t) {
      callers.emplace_back([&] {
        for (int i = 0; i < 50; ++i) pool.Run(5, kHeavy, outer);
      });
    }
    for (std::thread& caller : callers) caller.join();
    CHECK(items.load() == 6 * 50 * 5 * 8);
  }
}

TEST_CASE("what a run wrote can be read once it is over") {
  ThreadPool pool(4);
  std::vector<int64_t> squares(10000);
  for (int round = 0; round < 20; ++round) {
    pool.Run(static_cast<int64_t>(squares.size()), 1000, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) squares[i] = i * i + round;
    });
    bool as_written = true;
    for (int64_t i = 0; i < 10000; ++i) as_written &= squares[i] == i * i + round;
    REQUIRE(as_written);
  }
}

TEST_CASE("an exception comes out of the run once nothing of it runs, and the pool goes on") {
  ThreadPool pool(4);
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> running{0};
    const auto fail = [&](int64_t begin, int64_t) {
      ++running;
      std::this_thread::sleep_for(std::chrono::microseconds(50));
      --running;
      if (begin >= 3) throw std::runtime_error("from a chunk");
    };
    CHECK_THROWS_WITH_AS(pool.Run(16, kHeavy, fail), "from a chunk", std::runtime_error);
    CHECK(running.load() == 0);
  }
  CHECK(ChunksOf(pool, 16, kHeavy).size() == 16);
}

int64_t SumOnProcessPool() {
  std::atomic<int64_t> sum{0};
  ProcessPool()(1000, kHeavy, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) sum += i;
  });
  return sum;
}

TEST_CASE("threads that find no pool yet all use the same one") {
  std::vector<std::thread> threads;
  std::atomic<int64_t> sums{0};
  for (int t = 0; t < 4; ++t) threads.emplace_back([&] { sums += SumOnProcessPool(); });
  for (std::thread& thread : threads) thread.join();
  CHECK(sums.load() == 4 * 499500);
}

// The thread sanitizer does not let a forked child start threads.
#ifndef __SANITIZE_THREAD__
TEST_CASE("a forked child has threads of its own, and the parent keeps its threads") {
  REQUIRE(SumOnProcessPool() == 499500);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    alarm(60);  // ends the test if it hangs
    _exit(SumOnProcessPool() == 499500 && SumOnProcessPool() == 499500 ? 0 : 1);
  }
  CHECK(SumOnProcessPool() == 499500);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}
#endif

TEST_CASE("the pool of the process works again after its end") {
  for (int round = 0; round < 3; ++round) {
    std::atomic<int64_t> sum{0};
    ProcessPool()(1000, 1000000, [&](int64_t begin, int64_t end) { sum += end - begin; });
    CHECK(sum == 1000);
    EndProcessPool();
  }
}

}  // namespace
}  // namespace sok
