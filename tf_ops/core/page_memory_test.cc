#include "core/page_memory.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

namespace sok {
namespace {

bool IsZero(const char* bytes, size_t n) {
  return std::all_of(bytes, bytes + n, [](char byte) { return byte == 0; });
}

TEST_CASE("a page buffer is zero, and at least as large as was asked for") {
  for (bool huge : {false, true}) {
    PageBuffer buffer(100000, huge);
    REQUIRE(buffer.data() != nullptr);
    CHECK(buffer.bytes() >= 100000);
    CHECK(IsZero(buffer.data(), buffer.bytes()));
    CHECK(reinterpret_cast<uintptr_t>(buffer.data()) % (huge ? 2 << 20 : 4096) == 0);
    std::memset(buffer.data(), 1, buffer.bytes());
  }
}

TEST_CASE("a page buffer that was moved is where it went, and nowhere else") {
  PageBuffer from(5000, false);
  char* const place = from.data();
  place[7] = 7;
  PageBuffer to(std::move(from));
  CHECK(to.data() == place);
  CHECK(to.data()[7] == 7);
  PageBuffer last(9000, false);
  last = std::move(to);
  CHECK(last.data() == place);
  CHECK(last.bytes() >= 5000);
}

TEST_CASE("a page buffer of nothing, or of more than there is, has no memory") {
  CHECK(PageBuffer(0, false).data() == nullptr);
  CHECK(PageBuffer().data() == nullptr);
  for (bool huge : {false, true}) {
    const PageBuffer buffer(size_t{1} << 58, huge);
    CHECK(buffer.data() == nullptr);
    CHECK(buffer.bytes() == 0);
  }
}

TEST_CASE("the blocks of an arena are zero, aligned to 64 bytes and apart, also in huge pages") {
  Arena arena;
  struct Block {
    char* place;
    size_t bytes;
  };
  std::vector<Block> blocks;
  size_t asked = 0;
  while (asked < Arena::kHugeFrom + (size_t{8} << 20)) {
    const size_t bytes = 1 + (asked * 7919) % 60000;
    Block block{arena.Allocate(bytes), bytes};
    REQUIRE(block.place != nullptr);
    REQUIRE(reinterpret_cast<uintptr_t>(block.place) % 64 == 0);
    REQUIRE(IsZero(block.place, bytes));
    std::memset(block.place, static_cast<int>(1 + blocks.size() % 100), bytes);
    asked += bytes;
    blocks.push_back(block);
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    const char mark = static_cast<char>(1 + i % 100);
    const char* begin = blocks[i].place;
    REQUIRE(std::count(begin, begin + blocks[i].bytes, mark) ==
            static_cast<std::ptrdiff_t>(blocks[i].bytes));
  }
  CHECK(arena.bytes_used() >= asked);
  CHECK(arena.bytes_used() < asked + 64 * blocks.size());
}

TEST_CASE("an arena that gets no memory says so and keeps what it has") {
  Arena arena;
  char* block = arena.Allocate(100);
  REQUIRE(block != nullptr);
  block[99] = 9;
  const size_t used = arena.bytes_used();
  CHECK(arena.Allocate(size_t{1} << 58) == nullptr);
  CHECK(arena.bytes_used() == used);
  CHECK(block[99] == 9);
  CHECK(arena.Allocate(100) != nullptr);
}

}  // namespace
}  // namespace sok
