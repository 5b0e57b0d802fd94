// A store that grows, loses its rows and grows again keeps every row, and tells what memory it has.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <numeric>
#include <random>
#include <unordered_map>
#include <vector>

#include "core/base/test_result.h"
#include "core/base/test_threads.h"
#include "core/rows/memory_store.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // it has memory of its own for ours
#else
constexpr bool kSanitized = false;
#endif

namespace sok {
namespace {

constexpr int kDim = 4;

std::unique_ptr<RowStore> MakeStore(bool direct, uint64_t capacity, int dim) {
  const auto layout = std::make_shared<const RowLayout>(dim, std::vector<Slot>{});
  if (!direct) return MakeHashStore(layout);
  IndexConfig config;
  config.capacity = capacity;
  return MakeDirectStore(layout, config);
}

void Put(RowStore& store, const std::vector<Key>& keys, const std::vector<float>& values, int dim,
         const ParallelFor& parallel_for) {
  REQUIRE(store
              .Upsert(
                  keys.data(), keys.size(), 0, 1,
                  [&](size_t i, RowRef row, bool) { std::fill_n(row.embedding, dim, values[i]); },
                  parallel_for)
              .ok());
}

void CheckSame(RowStore& store, const std::unordered_map<Key, float>& expected, uint64_t keys,
               const ParallelFor& parallel_for) {
  REQUIRE(store.size() == expected.size());
  std::vector<Key> all(keys);
  for (Key key = 0; key < keys; ++key) all[key] = key;
  std::vector<float> out(keys * kDim);
  const auto fill = [](Key, float* embedding) { std::fill_n(embedding, kDim, -1.0f); };
  REQUIRE(store.Gather(all.data(), keys, out.data(), {}, fill, nullptr, parallel_for).ok());
  size_t wrong = 0;
  for (Key key = 0; key < keys; ++key) {
    const auto row = expected.find(key);
    const float value = row == expected.end() ? -1.0f : row->second;
    wrong += std::count(&out[key * kDim], &out[key * kDim] + kDim, value) != kDim;
  }
  REQUIRE(wrong == 0);
  std::unordered_map<Key, float> found;
  const auto frozen = Value(store.Freeze());
  const Status status = frozen->ForEach([&](Key key, RowRef row) {
    if (!found.emplace(key, row.embedding[kDim - 1]).second) ++wrong;
  });
  REQUIRE(status.ok());
  REQUIRE(wrong == 0);
  REQUIRE(found == expected);
}

// Waves of keys come and go: some at random, some in the order in which they came.
void Fuzz(bool direct, const ParallelFor& parallel_for) {
  constexpr uint64_t kKeys = 60000;
  std::mt19937_64 rng(TestSeed() + direct);
  const auto store = MakeStore(direct, kKeys, kDim);
  std::unordered_map<Key, float> expected;
  for (int wave = 0; wave < 10; ++wave) {
    const uint64_t part = 1 + rng() % kKeys, first = rng() % (kKeys - part + 1);
    const size_t batch = 1 + rng() % 5000;
    const bool erase = wave % 2 == 1, at_random = rng() % 2 == 0;
    for (uint64_t at = 0; at < part; at += batch) {
      std::vector<Key> keys(std::min<uint64_t>(batch, part - at));
      std::vector<float> values(keys.size());
      for (size_t i = 0; i < keys.size(); ++i) {
        keys[i] = at_random ? rng() % kKeys : first + at + i;
        values[i] = static_cast<float>(rng() % 1000);
        if (erase) {
          expected.erase(keys[i]);
        } else {
          expected[keys[i]] = values[i];
        }
      }
      if (erase) {
        Value(store->Erase(keys.data(), keys.size(), parallel_for));
      } else {
        Put(*store, keys, values, kDim, parallel_for);
      }
    }
    CheckSame(*store, expected, kKeys, parallel_for);
  }
}

TEST_CASE("stores that grow and shrink in waves do what a map does, on one thread") {
  for (bool direct : {false, true}) Fuzz(direct, SerialFor);
}

TEST_CASE("stores that grow and shrink in waves do what a map does, on several threads") {
  for (bool direct : {false, true}) Fuzz(direct, ThreadedFor);
}

double ResidentBytes() {
  long total = 0, resident = 0;
  std::FILE* statm = std::fopen("/proc/self/statm", "r");
  REQUIRE(statm != nullptr);
  REQUIRE(std::fscanf(statm, "%ld %ld", &total, &resident) == 2);
  std::fclose(statm);
  return static_cast<double>(resident) * static_cast<double>(sysconf(_SC_PAGESIZE));
}

TEST_CASE("a store tells the bytes that it makes resident, while it grows and after removal") {
  if (kSanitized) return;
  constexpr uint64_t kKeys = 400000, kBatch = 20000;
  for (bool direct : {false, true}) {
    CAPTURE(direct);
    std::vector<Key> keys(kBatch);
    const std::vector<float> values(kBatch, 1.0f);
    const auto batch_at = [&](uint64_t at) {
      for (uint64_t i = 0; i < kBatch; ++i) keys[i] = at + i;
    };
    const auto store = MakeStore(direct, 1000 * kKeys, 16);
    batch_at(0);
    const double start = ResidentBytes();
    const auto check = [&] {
      const double told = static_cast<double>(store->index_bytes() + store->row_bytes());
      const double resident = ResidentBytes() - start;
      CAPTURE(store->size());
      CHECK(told > 0.95 * resident - 1.5e6);  // scratch of the calls
      CHECK(told < 1.05 * resident + 1.5e6);
    };
    for (uint64_t at = 0; at < kKeys; at += kBatch) {
      batch_at(at);
      Put(*store, keys, values, 16, SerialFor);
      check();
    }
    const uint64_t full = store->index_bytes() + store->row_bytes();
    for (uint64_t at = 0; at < kKeys / 20 * 19; at += kBatch) {
      batch_at(at);
      CHECK(Value(store->Erase(keys.data(), kBatch, SerialFor)) == kBatch);
      check();
    }
    CHECK(store->index_bytes() + store->row_bytes() <
          full / 5);  // a row or two may hold a huge page
  }
}

TEST_CASE("a cleared store gives the memory of its rows back, and keeps their layout") {
  constexpr uint64_t kKeys = 600;
  for (bool direct : {false, true}) {
    CAPTURE(direct);
    const auto store = MakeStore(direct, kKeys, kDim);
    const auto layout =
        std::make_shared<const RowLayout>(kDim, std::vector<Slot>{{"momentum", kDim, 0.0f}});
    REQUIRE(Value(store->Relayout(layout, {"", layout->slots(), 0}, SerialFor)));
    std::vector<Key> keys(kKeys);
    std::iota(keys.begin(), keys.end(), Key{0});
    Put(*store, keys, std::vector<float>(kKeys, 1.0f), kDim, SerialFor);
    CHECK(store->row_bytes() >= kKeys * 2 * kDim * sizeof(float));
    REQUIRE(store->Replace(store->layout(), {}, nullptr, 0, 0, nullptr, SerialFor).ok());
    CHECK(store->row_bytes() == 0);
    CHECK(store->layout()->slot_floats() == kDim);
  }
}

}  // namespace
}  // namespace sok
