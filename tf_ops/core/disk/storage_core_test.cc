// The gate of a storage while rows are published beside other calls.
#include "core/disk/storage_core.h"

#include <doctest/doctest.h>

#include <new>
#include <stdexcept>
#include <thread>

namespace sok {

TEST_CASE("what is published ends once, before anybody else has the gate alone") {
  StorageCore core(/*ttl=*/0, [] { return uint32_t{0}; }, /*cache_bytes=*/1 << 20);
  for (int round = 0; round < 50; ++round) {
    int ends = 0;
    std::thread other;
    auto gate = core.TakeAlone();
    const Status written = core.Publish(
        [&] {
          other = std::thread([&] {
            const auto alone = core.TakeAlone();
            CHECK(ends == 1);
          });
          return Status();
        },
        [&ends](const Status& status) {
          CHECK(status.ok());
          ++ends;
        },
        &gate);
    CHECK(written.ok());
    CHECK(gate.owns_lock());
    CHECK(ends == 1);
    gate.unlock();
    other.join();
    CHECK(ends == 1);
  }
}

TEST_CASE("what keeps rows from being published is told, and the gate is there for others") {
  StorageCore core(/*ttl=*/0, [] { return uint32_t{0}; }, /*cache_bytes=*/1 << 20);
  const auto code_of = [&](const std::function<Status()>& write) {
    Code told = Code::kOk;
    auto gate = core.TakeAlone();
    const Status written = core.Publish(
        write, [&told](const Status& status) { told = status.code(); }, &gate);
    CHECK(gate.owns_lock());
    CHECK(written.code() == told);
    return told;
  };
  CHECK(code_of([] { return Status(Code::kDataLoss, "damaged"); }) == Code::kDataLoss);
  CHECK(code_of([]() -> Status { throw std::bad_alloc(); }) == Code::kResourceExhausted);
  CHECK(code_of([]() -> Status { throw std::runtime_error("no random numbers"); }) ==
        Code::kInternal);
  CHECK(code_of([] { return Status(); }) == Code::kOk);
}

}  // namespace sok
