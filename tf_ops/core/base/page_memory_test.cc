#include "core/base/page_memory.h"

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

TEST_CASE("what a page buffer releases reads as zero, and the rest stays") {
  const size_t page = PageBuffer(1, false).page_bytes();
  PageBuffer buffer(5 * page, false);
  std::memset(buffer.data(), 7, buffer.bytes());
  buffer.Release(page, 2 * page);
  const auto sevens = [&](size_t first, size_t last) {
    return static_cast<size_t>(
        std::count(buffer.data() + first * page, buffer.data() + last * page, 7));
  };
  CHECK(sevens(0, 1) == page);
  CHECK(IsZero(buffer.data() + page, 2 * page));
  CHECK(sevens(3, 5) == 2 * page);
}

TEST_CASE("freed blocks are handed out again, the one at the lowest place first") {
  Arena arena;
  std::vector<char*> blocks;
  for (int i = 0; i < 50; ++i) blocks.push_back(arena.Allocate(1000));
  const size_t used = arena.bytes_used();
  std::vector<char*> freed{blocks[31], blocks[7], blocks[40]};
  for (char* block : freed) arena.Free(block, 1000);
  CHECK(arena.bytes_used() == used - 3 * 1024);
  char* const other = arena.Allocate(500);
  CHECK(std::count(blocks.begin(), blocks.end(), other) == 0);
  std::sort(freed.begin(), freed.end());
  for (char* block : freed) CHECK(arena.Allocate(1000) == block);
  CHECK(arena.bytes_used() == used + 512);
}

TEST_CASE("pages go back to the system once no block is on them, and what others hold stays") {
  // Runs with small pages, and with huge pages.
  for (const size_t total : {size_t{4} << 20, Arena::kHugeFrom + (size_t{64} << 20)}) {
    Arena arena;
    constexpr size_t kBytes = 100000;
    std::vector<char*> blocks;
    while (arena.bytes_used() < total) {
      blocks.push_back(arena.Allocate(kBytes));
      std::memset(blocks.back(), 5, kBytes);
    }
    const size_t resident = arena.resident_bytes();
    CHECK(resident >= arena.bytes_used());
    CHECK(resident < arena.bytes_used() + (size_t{8} << 20));
    // One of forty blocks is kept, so the kept blocks are 4 MB apart.
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (i % 40 != 0) arena.Free(blocks[i], kBytes);
    }
    CHECK(arena.resident_bytes() < resident * 3 / 4);
    for (size_t i = 0; i < blocks.size(); i += 40) {
      REQUIRE(std::count(blocks[i], blocks[i] + kBytes, 5) == static_cast<std::ptrdiff_t>(kBytes));
      arena.Free(blocks[i], kBytes);
    }
    CHECK(arena.bytes_used() == 0);
    CHECK(arena.resident_bytes() == 0);
    CHECK(IsZero(blocks.front(), kBytes));
    CHECK(IsZero(blocks.back(), kBytes));
    for (size_t i = 0; i < blocks.size(); ++i) std::memset(arena.Allocate(kBytes), 6, kBytes);
    CHECK(arena.resident_bytes() == resident);
  }
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

TEST_CASE("memory that shall have huge pages keeps what is in it") {
  for (const size_t bytes : {size_t{0}, size_t{100}, size_t{5} << 20}) {
    std::vector<char> memory(bytes + 1, 'x');
    PreferHugePages(memory.data() + 1, bytes);  // the range does not begin at a page
    CHECK(std::count(memory.begin(), memory.end(), 'x') == static_cast<ptrdiff_t>(bytes) + 1);
  }
  PreferHugePages(nullptr, size_t{8} << 20);
}

}  // namespace
}  // namespace sok
