// The gate of a storage, where memory ends.
#include "core/disk/storage_core.h"

#include <doctest/doctest.h>

#include <functional>
#include <new>
#include <utility>

namespace sok {
namespace {

// Can be copied only while there is memory.
struct Write {
  explicit Write(const bool* ended) : memory_has_ended(ended) {}
  Write(const Write& other) : memory_has_ended(other.memory_has_ended) {
    if (*memory_has_ended) throw std::bad_alloc();
  }
  Status operator()() const { return Status(); }
  const bool* memory_has_ended;
};

}  // namespace

TEST_CASE("a publication that memory keeps from starting leaves the gate to others") {
  StorageCore core(/*ttl=*/0, [] { return uint32_t{0}; }, /*cache_bytes=*/1 << 20);
  bool memory_has_ended = false;
  int ends = 0;
  const auto end = [&ends](const Status&) { ++ends; };
  {
    const auto gate = core.TakeAlone();
    std::function<Status()> write = Write(&memory_has_ended);
    memory_has_ended = true;
    CHECK(core.Publish(std::move(write), end).code() == Code::kResourceExhausted);
  }
  CHECK_FALSE(core.is_publishing());
  memory_has_ended = false;
  {
    const auto gate = core.TakeAlone();
    REQUIRE(core.Publish(Write(&memory_has_ended), end).ok());
  }
  CHECK(core.JoinPublisher().ok());
  CHECK(ends == 1);
}

}  // namespace sok
