// Compares counts with those of std::unordered_map, and tells how often a key is taken for a
// frequent one.
#include "core/adaptive/count_min_sketch.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/test_result.h"
#include "core/base/thread_pool.h"
#include "core/policies/chunk_format.h"

namespace sok {
namespace {

constexpr uint64_t kSeed = 20240919;

struct Batch {
  std::vector<Key> keys;
  std::vector<uint32_t> buckets;
  std::vector<uint32_t> counts;

  void Append(Key key, uint32_t bucket, uint32_t count) {
    keys.push_back(key);
    buckets.push_back(bucket);
    counts.push_back(count);
  }
};

std::unique_ptr<CountMinSketch> Make(uint64_t buckets, uint64_t cells_per_bucket, int cell_bits) {
  return Value(CountMinSketch::Make({buckets, cells_per_bucket, cell_bits}));
}

std::vector<uint32_t> Add(CountMinSketch* sketch, const Batch& batch) {
  std::vector<uint32_t> estimates(batch.keys.size());
  sketch->Add(batch.keys.data(), batch.buckets.data(), batch.counts.data(), batch.keys.size(),
              estimates.data());
  return estimates;
}

std::vector<uint32_t> Estimate(const CountMinSketch& sketch, const Batch& batch) {
  std::vector<uint32_t> estimates(batch.keys.size());
  sketch.Estimate(batch.keys.data(), batch.buckets.data(), batch.keys.size(), estimates.data());
  return estimates;
}

// Draws keys below `distinct`, and adds up how often each was drawn.
std::map<Key, uint32_t> Draw(std::mt19937_64* rng, size_t draws, uint64_t distinct) {
  std::map<Key, uint32_t> counts;
  for (size_t i = 0; i < draws; ++i) ++counts[(*rng)() % distinct];
  return counts;
}

Batch InGroups(const std::map<Key, uint32_t>& counts, uint64_t buckets) {
  Batch batch;
  for (const auto& [key, count] : counts) {
    batch.Append(key, static_cast<uint32_t>(key % buckets), count);
  }
  return batch;
}

TEST_CASE("counts are exact where keys share no cells") {
  for (int bits : {8, 16}) {
    CAPTURE(bits);
    // Gives each key a bucket of its own, so that nothing can collide.
    const auto sketch = Make(1000, 4, bits);
    Batch batch;
    for (uint32_t i = 0; i < 1000; ++i) batch.Append(~Key{i}, i, i % 7);
    CHECK(Estimate(*sketch, batch) == std::vector<uint32_t>(1000));
    CHECK(Add(sketch.get(), batch) == batch.counts);
    std::vector<uint32_t> twice = batch.counts;
    for (uint32_t& count : twice) count *= 2;
    CHECK(Add(sketch.get(), batch) == twice);
    CHECK(Estimate(*sketch, batch) == twice);
    // Puts a few keys into many cells.
    const auto wide = Make(2, 1 << 16, bits);
    const Batch few = InGroups({{0, 3}, {1, 1}, {2, 4}, {3, 1}, {UINT64_MAX, 5}}, 2);
    CHECK(Add(wide.get(), few) == few.counts);
    CHECK(Estimate(*wide, few) == few.counts);
  }
}

TEST_CASE("a key of another bucket is never in the way") {
  const auto sketch = Make(3, 4, 8);
  Batch batch;
  batch.Append(5, 1, 9);
  CHECK(Add(sketch.get(), batch) == std::vector<uint32_t>{9});
  Batch others;
  for (uint32_t bucket : {0, 1, 2}) others.Append(5 + bucket, bucket, 0);
  // Groups of four cells have one for each row, so all keys of a bucket share them.
  CHECK(Estimate(*sketch, others) == std::vector<uint32_t>{0, 9, 0});
}

TEST_CASE("a sketch over workers counts as one that is not") {
  constexpr uint64_t kGroups = 12, kWorkers = 3, kCells = 16;
  CAPTURE(kSeed);
  std::mt19937_64 rng(kSeed);
  const auto whole = Make(kGroups, kCells, 8);
  std::vector<std::unique_ptr<CountMinSketch>> parts;
  for (uint64_t w = 0; w < kWorkers; ++w) parts.push_back(Make(kGroups / kWorkers, kCells, 8));
  for (int step = 0; step < 20; ++step) {
    const Batch batch = InGroups(Draw(&rng, 100, 60), kGroups);
    const std::vector<uint32_t> expected = Add(whole.get(), batch);
    for (uint64_t w = 0; w < kWorkers; ++w) {
      Batch mine;
      std::vector<uint32_t> of_mine;
      for (size_t i = 0; i < batch.keys.size(); ++i) {
        if (batch.buckets[i] % kWorkers != w) continue;
        mine.Append(batch.keys[i], batch.buckets[i] / kWorkers, batch.counts[i]);
        of_mine.push_back(expected[i]);
      }
      REQUIRE(Add(parts[w].get(), mine) == of_mine);
    }
  }
}

TEST_CASE("a count is never below the truth, and that of most keys is the truth") {
  constexpr uint64_t kDistinct = 3000;
  CAPTURE(kSeed);
  for (int bits : {8, 16}) {
    for (uint64_t buckets : {1, 7, 1000, 5000}) {
      CAPTURE(bits);
      CAPTURE(buckets);
      std::mt19937_64 rng(kSeed);
      const auto sketch = Make(buckets, CountMinSketch::CellsPerBucket(kDistinct, buckets), bits);
      std::unordered_map<Key, uint32_t> truth;
      for (int step = 0; step < 20; ++step) {
        const Batch batch = InGroups(Draw(&rng, 1000, kDistinct), buckets);
        const std::vector<uint32_t> estimates = Add(sketch.get(), batch);
        size_t exact = 0;
        for (size_t i = 0; i < batch.keys.size(); ++i) {
          const uint32_t count = truth[batch.keys[i]] += batch.counts[i];
          REQUIRE(estimates[i] >= count);
          exact += estimates[i] == count;
        }
        CHECK(static_cast<double>(exact) > 0.9 * static_cast<double>(batch.keys.size()));
      }
      Batch all;
      for (const auto& [key, count] : truth) {
        all.Append(key, static_cast<uint32_t>(key % buckets), count);
      }
      const std::vector<uint32_t> estimates = Estimate(*sketch, all);
      for (size_t i = 0; i < all.keys.size(); ++i) REQUIRE(estimates[i] >= all.counts[i]);
    }
  }
}

TEST_CASE("the order of a batch makes no difference, whatever collides") {
  CAPTURE(kSeed);
  std::mt19937_64 rng(kSeed);
  const auto one = Make(5, 16, 8), other = Make(5, 16, 8);
  for (int step = 0; step < 10; ++step) {
    const Batch batch = InGroups(Draw(&rng, 300, 400), 5);
    std::vector<size_t> order(batch.keys.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::shuffle(order.begin(), order.end(), rng);
    Batch shuffled;
    for (size_t i : order) shuffled.Append(batch.keys[i], batch.buckets[i], batch.counts[i]);
    const std::vector<uint32_t> estimates = Add(one.get(), batch);
    const std::vector<uint32_t> of_shuffled = Add(other.get(), shuffled);
    for (size_t i = 0; i < order.size(); ++i) REQUIRE(of_shuffled[i] == estimates[order[i]]);
    REQUIRE(one->Dump() == other->Dump());
  }
}

TEST_CASE("halving rounds down, in every cell and on any number of threads") {
  constexpr uint32_t kGroups = 5003;  // the cells of several blocks, and of a part of one
  const ParallelFor pool = ProcessPool();
  for (int bits : {8, 16}) {
    for (const ParallelFor& parallel_for : {ParallelFor(SerialFor), pool}) {
      CAPTURE(bits);
      const auto sketch = Make(kGroups, 4, bits);
      Batch batch;
      for (uint32_t i = 0; i < kGroups; ++i) batch.Append(i, i, i % 256);
      std::vector<uint32_t> expected = Add(sketch.get(), batch);
      CHECK(expected == batch.counts);
      for (int times = 0; times < 9; ++times) {
        sketch->Halve(parallel_for);
        for (uint32_t& count : expected) count /= 2;
        REQUIRE(Estimate(*sketch, batch) == expected);
      }
      CHECK(expected == std::vector<uint32_t>(kGroups));
    }
  }
}

TEST_CASE("a count stops at the largest that a cell holds") {
  for (const auto& [bits, max] : {std::pair(8, 255u), std::pair(16, 65535u)}) {
    CAPTURE(bits);
    const auto sketch = Make(4, 4, bits);
    CHECK(sketch->max() == max);
    CHECK(sketch->Saturation() == 0);
    Batch batch;
    batch.Append(1, 0, max - 1);
    batch.Append(2, 2, UINT32_MAX);
    CHECK(Add(sketch.get(), batch) == std::vector<uint32_t>{max - 1, max});
    CHECK(sketch->Saturation() == 0.25);
    CHECK(Add(sketch.get(), batch) == std::vector<uint32_t>{max, max});
    CHECK(sketch->Saturation() == 0.5);
    batch.counts = {1, 0};
    CHECK(Add(sketch.get(), batch) == std::vector<uint32_t>{max, max});
    sketch->Halve(SerialFor);
    CHECK(sketch->Saturation() == 0);
    CHECK(Estimate(*sketch, batch) == std::vector<uint32_t>{max / 2, max / 2});
  }
}

TEST_CASE("a sketch goes on from its dump") {
  CAPTURE(kSeed);
  for (int bits : {8, 16}) {
    CAPTURE(bits);
    std::mt19937_64 rng(kSeed);
    const auto sketch = Make(9, 40, bits), loaded = Make(9, 40, bits);
    const Batch batch = InGroups(Draw(&rng, 1000, 100), 9);
    Add(sketch.get(), batch);
    const std::string dump = sketch->Dump();
    CHECK(dump.size() == 36 + 9 * 40 * static_cast<size_t>(bits) / 8);
    CHECK(dump.substr(0, 8) == std::string("SOKC\1\0\0\0", 8));
    CHECK(ReadLittleEndian(dump.data() + 8, 8) == 9);
    CHECK(ReadLittleEndian(dump.data() + 16, 8) == 40);
    CHECK(ReadLittleEndian(dump.data() + 24, 4) == static_cast<uint64_t>(bits));
    Add(loaded.get(), InGroups(Draw(&rng, 1000, 100), 9));  // Load replaces these counts
    REQUIRE(loaded->Load(dump).ok());
    CHECK(loaded->Dump() == dump);
    CHECK(Add(loaded.get(), batch) == Add(sketch.get(), batch));
  }
}

// These values were computed in Python from the definition of the hash.
TEST_CASE("a key's cells are where version 1 of the format has them") {
  const auto sketch = Make(2, 400, 8);
  Batch batch;
  batch.Append(42, 1, 7);
  Add(sketch.get(), batch);
  const std::string dump = sketch->Dump();
  std::vector<size_t> raised;
  for (size_t i = 0; i < 800; ++i) {
    if (dump[36 + i] != 0) raised.push_back(i);
  }
  CHECK(raised == std::vector<size_t>{499, 504, 623, 759});
}

TEST_CASE("a dump that was cut short, grew or has any bit changed is refused") {
  const auto sketch = Make(3, 4, 16);
  Batch batch;
  batch.Append(1, 2, 300);
  Add(sketch.get(), batch);
  const std::string dump = sketch->Dump();
  const auto other = Make(3, 4, 16);
  const std::string empty = other->Dump();
  for (size_t size = 0; size < dump.size(); ++size) {
    REQUIRE(other->Load(dump.substr(0, size)).code() == Code::kDataLoss);
  }
  CHECK(other->Load(dump + '\0').code() == Code::kDataLoss);
  for (size_t bit = 0; bit < dump.size() * 8; ++bit) {
    std::string changed = dump;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ 1 << bit % 8);
    const bool version = bit / 32 == 1;
    REQUIRE(other->Load(changed).code() == (version ? Code::kInvalidArgument : Code::kDataLoss));
  }
  CHECK(other->Dump() == empty);
}

TEST_CASE("a dump of another config is refused, and nothing has changed") {
  const auto sketch = Make(3, 8, 8);
  Batch batch;
  batch.Append(1, 2, 30);
  Add(sketch.get(), batch);
  const std::string before = sketch->Dump();
  for (const auto& other : {Make(4, 8, 8), Make(3, 4, 8), Make(3, 8, 16), Make(6, 4, 8)}) {
    const Status status = sketch->Load(other->Dump());
    CHECK(status.code() == Code::kInvalidArgument);
    CHECK(status.message().find("Expected a count-min sketch of 3 buckets of 8 cells of 8 bits.") ==
          0);
  }
  CHECK(sketch->Dump() == before);
}

TEST_CASE("a config that cannot be is an error") {
  const auto code = [](uint64_t buckets, uint64_t cells, int bits) {
    return CountMinSketch::Make({buckets, cells, bits}).status().code();
  };
  CHECK(code(0, 8, 8) == Code::kInvalidArgument);
  CHECK(code(1, 0, 8) == Code::kInvalidArgument);
  CHECK(code(1, 7, 8) == Code::kInvalidArgument);
  CHECK(code(1, UINT64_MAX - 3, 8) == Code::kInvalidArgument);
  for (int bits : {-8, 0, 4, 12, 32}) CHECK(code(1, 8, bits) == Code::kInvalidArgument);
  CHECK(code(UINT64_MAX, 8, 8) == Code::kResourceExhausted);
  CHECK(code(uint64_t{1} << 60, 8, 16) == Code::kResourceExhausted);
  CHECK(code(1, 4, 8) == Code::kOk);
}

TEST_CASE("a capacity has eight cells a key and eight more a bucket") {
  CHECK(CountMinSketch::CellsPerBucket(1000000, 1) == 8000008);
  CHECK(CountMinSketch::CellsPerBucket(1000000, 1000) == 8008);
  CHECK(CountMinSketch::CellsPerBucket(1000000, 1000000) == 16);
  CHECK(CountMinSketch::CellsPerBucket(1000000, 700000) == 20);
  CHECK(CountMinSketch::CellsPerBucket(1, 1000000) == 12);
  CHECK(CountMinSketch::CellsPerBucket(0, 1) == 8);
  CHECK(CountMinSketch::CellsPerBucket(UINT64_MAX, 1) % CountMinSketch::kRows == 0);
}

// Counts keys of Zipf's distribution until they reach k, as promotion does.
TEST_CASE("few keys reach k before they were drawn so often") {
  constexpr uint64_t kDistinct = 20000;
  constexpr size_t kDraws = 400000, kBatch = 8192;
  CAPTURE(kSeed);
  std::mt19937_64 rng(kSeed);
  std::vector<double> weights(kDistinct);
  for (size_t i = 0; i < kDistinct; ++i) {
    weights[i] = std::pow(static_cast<double>(i + 1), -1.05);
  }
  std::discrete_distribution<Key> zipf(weights.begin(), weights.end());
  std::vector<Key> draws(kDraws);
  for (Key& key : draws) key = zipf(rng);
  std::vector<std::map<Key, uint32_t>> batches;
  for (size_t i = 0; i < kDraws; ++i) {
    if (i % kBatch == 0) batches.emplace_back();
    ++batches.back()[draws[i]];
  }
  for (uint64_t buckets : {20, 2000, 20000}) {
    for (uint32_t k : {2u, 3u, 10u}) {
      CAPTURE(buckets);
      CAPTURE(k);
      const auto sketch = Make(buckets, CountMinSketch::CellsPerBucket(kDistinct, buckets), 8);
      std::vector<uint32_t> truth(kDistinct);
      std::vector<bool> promoted(kDistinct);
      for (const std::map<Key, uint32_t>& counts : batches) {
        Batch batch;
        for (const auto& [key, count] : counts) {
          truth[key] += count;
          // A multiplication spreads the keys over the buckets.
          const auto bucket = static_cast<uint32_t>((key * 0x9e3779b97f4a7c15ull >> 32) % buckets);
          if (!promoted[key]) batch.Append(key, bucket, count);
        }
        const std::vector<uint32_t> estimates = Add(sketch.get(), batch);
        for (size_t i = 0; i < estimates.size(); ++i) {
          if (estimates[i] >= k) promoted[batch.keys[i]] = true;
        }
      }
      int seen = 0, early = 0, missed = 0;
      for (size_t key = 0; key < kDistinct; ++key) {
        seen += truth[key] > 0;
        early += promoted[key] && truth[key] < k;
        missed += !promoted[key] && truth[key] >= k;
      }
      CAPTURE(early);
      CHECK(seen > 0.8 * kDistinct);
      CHECK(missed == 0);
      CHECK(early <= 0.005 * seen);
    }
  }
}

}  // namespace
}  // namespace sok
