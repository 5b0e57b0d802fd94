#include "core/base/repeated_job.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace sok {
namespace {

// A job that waits until it may end.
class HeldJob {
 public:
  void Run() {
    std::unique_lock<std::mutex> lock(mu_);
    ++begun_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return may_end_ >= begun_; });
    ++ended_;
  }
  void WaitUntilBegun(int times) {
    std::unique_lock<std::mutex> lock(mu_);
    changed_.wait(lock, [&] { return begun_ >= times; });
  }
  void LetEnd(int times) {
    const std::lock_guard<std::mutex> lock(mu_);
    may_end_ += times;
    changed_.notify_all();
  }
  int begun() const {
    const std::lock_guard<std::mutex> lock(mu_);
    return begun_;
  }
  int ended() const {
    const std::lock_guard<std::mutex> lock(mu_);
    return ended_;
  }

 private:
  mutable std::mutex mu_;
  std::condition_variable changed_;
  int begun_ = 0;
  int may_end_ = 0;
  int ended_ = 0;
};

}  // namespace

TEST_CASE("a job that is asked for while it runs, however often, runs once more") {
  HeldJob held;
  RepeatedJob job([&] { held.Run(); });
  CHECK_FALSE(job.busy());
  CHECK_FALSE(job.AskIfBusy());
  job.Settle();
  REQUIRE(job.Ask());
  CHECK(job.busy());
  held.WaitUntilBegun(1);
  for (int i = 0; i < 5; ++i) CHECK(job.AskIfBusy());
  REQUIRE(job.Ask());
  held.LetEnd(1);
  held.WaitUntilBegun(2);
  CHECK(held.ended() == 1);
  held.LetEnd(1);
  job.Settle();
  CHECK(held.begun() == 2);
  CHECK(held.ended() == 2);
  CHECK_FALSE(job.busy());
  REQUIRE(job.Ask());  // the thread is still there
  held.WaitUntilBegun(3);
  held.LetEnd(1);
}

TEST_CASE("settling withdraws a request, and waits for the job that runs") {
  HeldJob held;
  RepeatedJob job([&] { held.Run(); });
  REQUIRE(job.Ask());
  held.WaitUntilBegun(1);
  REQUIRE(job.Ask());
  std::thread settling([&] {
    job.Settle();
    CHECK(held.ended() == 1);
  });
  // By the time that the job may end, the request is withdrawn, or it has begun and is settled too.
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  held.LetEnd(2);
  settling.join();
  job.Settle();
  CHECK_FALSE(job.busy());
  CHECK(held.begun() == held.ended());
}

TEST_CASE("every request is followed by a run, from any number of threads") {
  std::atomic<int> value{0}, seen{0};
  RepeatedJob job([&] { seen = value.load(); });
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) {
        ++value;
        CHECK(job.Ask());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  while (job.busy()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(seen == value);
}

TEST_CASE("the end waits for a job that runs") {
  HeldJob held;
  auto job = std::make_unique<RepeatedJob>([&] { held.Run(); });
  REQUIRE(job->Ask());
  held.WaitUntilBegun(1);
  std::thread letting_end([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    held.LetEnd(1);
  });
  job.reset();
  CHECK(held.ended() == 1);
  letting_end.join();
}

}  // namespace sok
