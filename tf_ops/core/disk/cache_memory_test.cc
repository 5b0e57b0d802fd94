#include "core/disk/cache_memory.h"

#include <doctest/doctest.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "core/base/test_threads.h"

namespace sok {
namespace {

constexpr size_t kBlock = CacheMemory::kBlockBytes;

// A holder that gives up the last of its blocks, unless it refuses.
class Keeper final : public CacheMemory::Holder {
 public:
  void EndAhead() override {}
  explicit Keeper(CacheMemory* memory) : memory_(memory) { memory_->Register(this); }
  ~Keeper() {
    memory_->Unregister(this);
    while (!blocks_.empty()) Drop();
  }

  bool Take(size_t blocks, bool beyond_budget = false) {
    for (size_t i = 0; i < blocks; ++i) {
      char* block = memory_->Allocate(this, kBlock, beyond_budget);
      if (block == nullptr) return false;
      blocks_.push_back(block);
    }
    return true;
  }
  void Drop() {
    memory_->Free(this, blocks_.back(), kBlock);
    blocks_.pop_back();
  }
  bool GiveUpBlock() override {
    ++asked;
    if (refuses || blocks_.empty()) return false;
    Drop();
    return true;
  }

  size_t blocks() const { return blocks_.size(); }
  int asked = 0;
  bool refuses = false;

 private:
  CacheMemory* const memory_;
  std::vector<char*> blocks_;
};

TEST_CASE("a holder gets blocks up to the budget, and more only beyond it") {
  CacheMemory memory(3 * kBlock + kBlock / 2);
  Keeper keeper(&memory);
  CHECK(memory.budget() == 3 * kBlock + kBlock / 2);
  CHECK_FALSE(keeper.Take(4));
  CHECK(keeper.blocks() == 3);
  CHECK(memory.used() == 3 * kBlock);
  CHECK(keeper.held() == 3 * kBlock);
  CHECK(keeper.Take(2, /*beyond_budget=*/true));
  CHECK(memory.used() == 5 * kBlock);
  CHECK_FALSE(keeper.Take(1));
  keeper.Drop();
  keeper.Drop();
  keeper.Drop();
  CHECK(memory.used() == 2 * kBlock);
  CHECK(keeper.held() == 2 * kBlock);
  CHECK(keeper.Take(1));
}

TEST_CASE(
    "blocks of a large cache are huge pages, and the system has back what is above the limit") {
  CHECK(CacheMemory((uint64_t{1} << 30) - 1).block_bytes() == kBlock);
  CacheMemory memory(uint64_t{1} << 30);
  const size_t bytes = memory.block_bytes();
  REQUIRE(bytes == size_t{2} << 20);
  Keeper keeper(&memory);
  std::vector<char*> blocks;
  for (int i = 0; i < 4; ++i) {
    blocks.push_back(memory.Allocate(&keeper, bytes, false));
    REQUIRE(blocks.back() != nullptr);
    std::memset(blocks.back(), 1, bytes);
  }
  memory.Charge(0, uint64_t{2} << 30);
  CHECK(memory.charged() == uint64_t{2} << 30);
  CHECK(memory.limit() == uint64_t{1} << 28);
  for (char* block : blocks) memory.Free(&keeper, block, bytes);
  memory.Charge(uint64_t{2} << 30, 0);
  CHECK(memory.limit() == uint64_t{1} << 30);
  char* const again = memory.Allocate(&keeper, bytes, false);
  CHECK(again == blocks.back());
  memory.Free(&keeper, again, bytes);
}

TEST_CASE("the budget is one for all holders") {
  CacheMemory memory(4 * kBlock);
  Keeper first(&memory), second(&memory);
  CHECK(first.Take(3));
  CHECK(second.Take(1));
  CHECK_FALSE(second.Take(1));
  first.Drop();
  CHECK(second.Take(1));
  CHECK(first.held() == 2 * kBlock);
  CHECK(second.held() == 2 * kBlock);
}

TEST_CASE("a block that came back goes to the next who asks") {
  CacheMemory memory(64 * kBlock);
  Keeper first(&memory), second(&memory);
  std::set<char*> blocks;
  for (int i = 0; i < 8; ++i) blocks.insert(memory.Allocate(&first, kBlock, false));
  REQUIRE(blocks.size() == 8);
  for (char* block : blocks) memory.Free(&first, block, kBlock);
  for (int i = 0; i < 8; ++i) {
    char* block = memory.Allocate(&second, kBlock, false);
    CHECK(blocks.erase(block) == 1);
    memory.Free(&second, block, kBlock);
    blocks.insert(block);
  }
}

TEST_CASE("blocks of any length are aligned to cache lines and count with their length") {
  CacheMemory memory(uint64_t{1} << 30);
  Keeper keeper(&memory);
  for (size_t bytes : {kBlock, kBlock + 64, 5 * kBlock, 40 * kBlock + 192}) {
    char* block = memory.Allocate(&keeper, bytes, false);
    REQUIRE(block != nullptr);
    CHECK(reinterpret_cast<uintptr_t>(block) % 64 == 0);
    std::memset(block, 1, bytes);
    CHECK(memory.used() == bytes);
    CHECK(keeper.held() == bytes);
    memory.Free(&keeper, block, bytes);
  }
  CHECK(memory.used() == 0);
  CHECK(keeper.held() == 0);
}

// This is not tried under the sanitizers, which end the process over such a length.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_CASE("memory that the system does not have leaves nothing counted") {
  CacheMemory memory(~uint64_t{0} >> 2);
  Keeper keeper(&memory);
  CHECK(memory.Allocate(&keeper, size_t{1} << 60, true) == nullptr);
  CHECK(memory.used() == 0);
  CHECK(keeper.held() == 0);
}
#endif

TEST_CASE("the richest holder gives a block up, if it is richer by the margin") {
  CacheMemory memory(64 * kBlock);
  Keeper poor(&memory), middle(&memory), rich(&memory);
  REQUIRE(poor.Take(1));
  REQUIRE(middle.Take(3));
  REQUIRE(rich.Take(5));
  CHECK_FALSE(memory.TakeFromRichest(&poor, 5 * kBlock));
  CHECK(rich.asked == 0);
  CHECK(memory.TakeFromRichest(&poor, 4 * kBlock));
  CHECK(rich.blocks() == 4);
  CHECK(memory.TakeFromRichest(&middle, kBlock));
  CHECK(rich.blocks() == 3);
  // No holder is asked for a block of its own.
  CHECK_FALSE(memory.TakeFromRichest(&rich, kBlock));
  CHECK(middle.asked == 0);
  CHECK(poor.asked == 0);
}

TEST_CASE("a holder may refuse, and one that is gone is not asked") {
  CacheMemory memory(64 * kBlock);
  Keeper poor(&memory);
  {
    Keeper rich(&memory);
    REQUIRE(rich.Take(5));
    rich.refuses = true;
    CHECK_FALSE(memory.TakeFromRichest(&poor, kBlock));
    CHECK(rich.asked == 1);
    CHECK(rich.blocks() == 5);
  }
  CHECK(memory.used() == 0);
  CHECK_FALSE(memory.TakeFromRichest(&poor, 0));
}

TEST_CASE("threads stay within the budget together, and no block has two owners") {
  constexpr int kThreads = 4;
  CacheMemory memory(10 * kBlock);
  std::atomic<int> shared{0}, over{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      Keeper keeper(&memory);
      std::mt19937_64 rng(TestSeed() + t);
      std::vector<char*> blocks;
      for (int i = 0; i < 3000; ++i) {
        if (blocks.size() < 6 && rng() % 2 == 0) {
          if (char* block = memory.Allocate(&keeper, kBlock, false)) {
            std::memset(block, t, 64);
            blocks.push_back(block);
          }
        } else if (!blocks.empty()) {
          for (int j = 0; j < 64; ++j) shared += blocks.back()[j] != t;
          memory.Free(&keeper, blocks.back(), kBlock);
          blocks.pop_back();
        }
        over += keeper.held() != blocks.size() * kBlock;
        memory.TakeFromRichest(&keeper, 100 * kBlock);
      }
      for (char* block : blocks) memory.Free(&keeper, block, kBlock);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(shared.load() == 0);
  CHECK(over.load() == 0);
  CHECK(memory.used() == 0);
}

}  // namespace
}  // namespace sok
