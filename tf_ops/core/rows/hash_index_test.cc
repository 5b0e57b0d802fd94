#include "core/rows/hash_index.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <unordered_map>
#include <vector>

#include "core/base/test_threads.h"

namespace sok {
namespace {

using Rows = std::unordered_map<Key, uint32_t>;

// Returns the key with this hash: HashIndex::Hash backwards, step by step.
Key KeyOfHash(uint64_t hash) {
  const auto unshift = [](uint64_t y, int shift) {
    uint64_t x = y;
    for (int known = shift; known < 64; known += shift) x = y ^ (x >> shift);
    return x;
  };
  const auto inverse = [](uint64_t odd) {  // modulo 2^64; each step of Newton doubles the bits
    uint64_t x = odd;
    for (int i = 0; i < 6; ++i) x *= 2 - odd * x;
    return x;
  };
  uint64_t x = unshift(hash, 31) * inverse(0x94d049bb133111ebull);
  x = unshift(x, 27) * inverse(0xbf58476d1ce4e5b9ull);
  return unshift(x, 30) - 0x9e3779b97f4a7c15ull;
}

std::vector<Key> RandomKeys(std::mt19937_64& rng) {
  std::vector<Key> keys(4000);
  for (Key& key : keys) key = rng();
  return keys;
}

// Returns the ends of the range, neighbours, and keys that differ in their highest bits only.
std::vector<Key> RegularKeys() {
  std::vector<Key> keys;
  for (Key i = 0; i < 1000; ++i) {
    for (Key key : {i, ~i, (Key{1} << 63) + i, (Key{1} << 63) - 1 - i, (i + 1) << 54}) {
      keys.push_back(key);
    }
  }
  return keys;
}

// Returns keys that all want one bin and have one tag.
std::vector<Key> CollidingKeys() {
  std::vector<Key> keys;
  for (uint64_t i = 0; i < 500; ++i) keys.push_back(KeyOfHash(i << 48 | 0x2a5));
  return keys;
}

void Insert(HashIndex& index, Key key, uint32_t row) {
  REQUIRE(index.Reserve(1).ok());
  index.Insert(key, HashIndex::Hash(key), row);
}

uint32_t Find(const HashIndex& index, Key key) { return index.Find(key, HashIndex::Hash(key)); }

uint32_t FindInSteps(const HashIndex& index, Key key) {
  const uint64_t hash = HashIndex::Hash(key);
  return index.Resolve(key, hash, index.Candidate(hash, index.Place(hash)));
}

Rows Contents(const HashIndex& index) {
  Rows rows;
  index.ForEach([&](Key key, uint32_t row) {
    INFO("key ", key, " was visited twice");
    REQUIRE(rows.emplace(key, row).second);
  });
  return rows;
}

void CheckSame(const HashIndex& index, const Rows& expected, const std::vector<Key>& keys) {
  REQUIRE(index.size() == expected.size());
  REQUIRE(Contents(index) == expected);
  for (Key key : keys) {
    const auto found = expected.find(key);
    const uint32_t row = found == expected.end() ? HashIndex::kNone : found->second;
    REQUIRE(Find(index, key) == row);
    REQUIRE(FindInSteps(index, key) == row);
  }
}

void Fuzz(std::vector<Key> keys, std::mt19937_64& rng) {
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  IndexConfig config;
  config.shard_bits = 3;
  HashIndex index(config, rng() % 8);  // one of the sizes that shards have
  Rows expected;
  for (int phase = 0; phase < 12; ++phase) {
    const uint64_t erase_percent = phase % 2 == 0 ? 20 : 80;  // grow and shrink in turn
    for (size_t i = 0; i < 2 * keys.size(); ++i) {
      const Key key = keys[rng() % keys.size()];
      const auto found = expected.find(key);
      if (rng() % 1000 == 0) REQUIRE(index.Reserve(rng() % 3000).ok());
      if (rng() % 100 < erase_percent) {
        const uint32_t row = found == expected.end() ? HashIndex::kNone : found->second;
        REQUIRE(index.Erase(key, HashIndex::Hash(key)) == row);
        expected.erase(key);
        if (rng() % 3 == 0) index.Trim(rng() % 6);
      } else if (found == expected.end()) {
        const auto row = static_cast<uint32_t>(rng() >> 33);
        Insert(index, key, row);
        expected[key] = row;
      } else {
        REQUIRE(Find(index, key) == found->second);
      }
      if (rng() % 4000 == 0) CheckSame(index, expected, keys);  // wherever growth has come to
    }
    CheckSame(index, expected, keys);
  }
}

TEST_CASE("a hash index does what an unordered_map does, with keys of every kind") {
  std::mt19937_64 rng(TestSeed());
  SUBCASE("random") { Fuzz(RandomKeys(rng), rng); }
  SUBCASE("regular") { Fuzz(RegularKeys(), rng); }
  SUBCASE("colliding") { Fuzz(CollidingKeys(), rng); }
  SUBCASE("few") { Fuzz({0, 1, ~Key{0}, Key{1} << 63}, rng); }
}

TEST_CASE("an index for at most so many keys keeps to its bytes a key while keys come and go") {
  std::mt19937_64 rng(TestSeed());
  for (const uint64_t most : {uint64_t{50'000}, 80'000 + rng() % 90'000, uint64_t{1} << 18}) {
    if (!LongTests() && most == uint64_t{1} << 18) break;
    CAPTURE(most);
    HashIndex index = HashIndex::ForAtMost(most);
    const uint64_t allowed = most * HashIndex::kBytesAKey + (uint64_t{2} << 20);  // a huge page
    Rows expected;
    std::vector<Key> keys;
    while (keys.size() < most) {
      keys.push_back(rng());
      Insert(index, keys.back(), expected[keys.back()] = static_cast<uint32_t>(rng() >> 33));
    }
    while (index.bytes() > allowed) REQUIRE(index.Reserve(100).ok());  // the last growth ends
    uint64_t moments = 0, small = 0;
    for (uint64_t i = 0; i < (LongTests() ? 6 : 3) * most; ++i) {
      Key& key = keys[rng() % most];
      index.Erase(key, HashIndex::Hash(key));
      expected.erase(key);
      key = rng();
      Insert(index, key, expected[key] = static_cast<uint32_t>(rng() >> 33));
      if (i % 1000 != 0) continue;
      // Now and then keys move to an array of the same size.
      REQUIRE(index.bytes() <= 2 * allowed);
      moments += 1;
      small += index.bytes() <= allowed;
    }
    CHECK(small > moments * 3 / 4);
    CheckSame(index, expected, keys);
  }
}

TEST_CASE("a walk that fetches ahead comes to all in turn, while keys come and go") {
  std::mt19937_64 rng(TestSeed());
  for (const size_t n : {0, 1, 15, 16, 17, 33, 1000}) {
    HashIndex index;
    Rows expected;
    std::vector<Key> keys(n);
    for (Key& key : keys) {
      key = rng();
      if (rng() % 2 == 0) Insert(index, key, expected[key] = static_cast<uint32_t>(rng() >> 33));
    }
    REQUIRE(index.Reserve(static_cast<uint32_t>(n)).ok());
    size_t next = 0;
    index.ForEachAhead(
        n, [&](size_t i) { return keys.at(i); },
        [&](size_t i) {
          REQUIRE(i == next++);
          const uint64_t hash = HashIndex::Hash(keys[i]);
          if (expected.erase(keys[i]) > 0) {
            REQUIRE(index.Erase(keys[i], hash) != HashIndex::kNone);
          } else {
            index.Insert(keys[i], hash, expected[keys[i]] = static_cast<uint32_t>(i));
          }
        });
    REQUIRE(next == n);
    CheckSame(index, expected, keys);
  }
}

TEST_CASE("a key that was erased from a full bin is not found by what its cell still holds") {
  // There are 100 keys of one first bin and as many tags; the bin holds sixteen of them.
  HashIndex index;
  REQUIRE(index.Reserve(10000).ok());
  std::vector<Key> keys;
  for (uint64_t tag = 0; tag < 100; ++tag) keys.push_back(KeyOfHash(uint64_t{5} << 7 | tag));
  for (Key key : keys) index.Insert(key, HashIndex::Hash(key), static_cast<uint32_t>(key >> 40));
  Rows expected = Contents(index);
  std::mt19937_64 rng(TestSeed());
  std::vector<Key> leaving = keys;
  std::shuffle(leaving.begin(), leaving.end(), rng);
  for (Key key : leaving) {
    REQUIRE(index.Erase(key, HashIndex::Hash(key)) != HashIndex::kNone);
    expected.erase(key);
    CheckSame(index, expected, keys);
  }
}

TEST_CASE("an empty hash index holds nothing") {
  HashIndex index;
  for (Key key : {Key{0}, ~Key{0}}) {
    CHECK(Find(index, key) == HashIndex::kNone);
    CHECK(FindInSteps(index, key) == HashIndex::kNone);
    CHECK(index.Erase(key, HashIndex::Hash(key)) == HashIndex::kNone);
  }
  CHECK(Contents(index).empty());
  CHECK(index.size() == 0);
  CHECK(index.bytes() == 0);
}

TEST_CASE("erasing and inserting in turn does not make a hash index grow without bound") {
  constexpr Key kLive = 1000;
  HashIndex index;
  for (Key key = 0; key < kLive; ++key) Insert(index, key, static_cast<uint32_t>(key));
  size_t most_bytes = 0;
  for (Key key = kLive; key < 200 * kLive; ++key) {
    REQUIRE(index.Erase(key - kLive, HashIndex::Hash(key - kLive)) == key - kLive);
    Insert(index, key, static_cast<uint32_t>(key));
    most_bytes = std::max(most_bytes, index.bytes());
  }
  CHECK(index.size() == kLive);
  CHECK(most_bytes <= 64 * kLive);  // 13 bytes a cell, at most twice 137 bins of 16
}

TEST_CASE("ForEach visits the keys that are there, each once, and none that was erased") {
  HashIndex index;
  Rows expected;
  for (Key key = 0; key < 5000; ++key) Insert(index, key, static_cast<uint32_t>(7 * key));
  for (Key key = 0; key < 5000; ++key) {
    if (key % 3 == 0) {
      index.Erase(key, HashIndex::Hash(key));
    } else {
      expected[key] = static_cast<uint32_t>(7 * key);
    }
  }
  CHECK(Contents(index) == expected);
}

TEST_CASE("Reserve changes nothing that can be seen but the size of the index") {
  HashIndex index;
  for (Key key : CollidingKeys()) Insert(index, key, static_cast<uint32_t>(key >> 32));
  for (Key key = 0; key < 300; ++key) Insert(index, key, static_cast<uint32_t>(key));
  for (Key key = 0; key < 300; key += 2) index.Erase(key, HashIndex::Hash(key));
  const Rows before = Contents(index);
  for (uint32_t more : {0u, 1u, 1000u, 100000u}) {
    REQUIRE(index.Reserve(more).ok());
    CheckSame(index, before, CollidingKeys());
  }
  CHECK(index.bytes() > 100000 * sizeof(Key));
}

constexpr uint32_t kMany = 60000;
// A step that comes with one key does no more than move some bins of 208 bytes. That may touch a
// page of control bytes and one of entries for the first time, or give one small array back.
const size_t kMostBytesAStep = 4 * PageBuffer(1, false).page_bytes();

TEST_CASE("an index grows by a few pages at a time") {
  HashIndex index;
  Rows expected;
  size_t before = 0, most = 0;
  for (Key key = 0; key < kMany; ++key) {
    Insert(index, key, static_cast<uint32_t>(key));
    expected[key] = static_cast<uint32_t>(key);
    if (index.bytes() > before) most = std::max(most, index.bytes() - before);
    before = index.bytes();
  }
  CHECK(most <= kMostBytesAStep);
  CheckSame(index, expected, {0, kMany - 1, kMany});
}

TEST_CASE("an index that has lost most of its keys gives memory back, a piece at a time") {
  HashIndex index;
  REQUIRE(index.Reserve(kMany).ok());
  for (Key key = 0; key < kMany; ++key) {
    index.Insert(key, HashIndex::Hash(key), static_cast<uint32_t>(key));
  }
  const size_t full = index.bytes();
  size_t before = full, most = 0;
  const auto erase = [&](Key first, Key last) {
    for (Key key = first; key < last; ++key) {
      REQUIRE(index.Erase(key, HashIndex::Hash(key)) == key);
      index.Trim(1);
      if (index.bytes() > before) most = std::max(most, index.bytes() - before);
      before = index.bytes();
    }
  };
  erase(0, kMany / 2);
  CHECK(index.bytes() == full);
  erase(kMany / 2, kMany - 3000);
  CHECK(index.bytes() < full / 6);
  CHECK(most <= kMostBytesAStep);
  Rows left;
  for (Key key = kMany - 3000; key < kMany; ++key) left[key] = static_cast<uint32_t>(key);
  CheckSame(index, left, {0, kMany / 2, kMany - 3001, kMany - 3000, kMany - 1});
}

TEST_CASE("the shards of a table do not grow at once") {
  IndexConfig config;
  config.shard_bits = 3;
  std::vector<HashIndex> shards;
  for (uint32_t s = 0; s < 8; ++s) shards.emplace_back(config, s);
  std::vector<size_t> before(8);
  int steps = 0, most = 0;
  for (Key key = 0; key < kMany; key += 500) {
    int growing = 0;
    for (int s = 0; s < 8; ++s) {
      REQUIRE(shards[s].Reserve(500).ok());
      for (Key k = key; k < key + 500; ++k) shards[s].Insert(k, HashIndex::Hash(k), 0);
      growing += shards[s].bytes() > before[s];
      before[s] = shards[s].bytes();
    }
    if (key < kMany / 2) continue;  // small ones grow often
    ++steps;
    most = std::max(most, growing);
  }
  CHECK(steps > 0);
  CHECK(most <= 4);
}

TEST_CASE(
    "the first keys of ForEach are from everywhere, so that they do not crowd another index") {
  HashIndex index;
  REQUIRE(index.Reserve(kMany).ok());
  for (Key key = 0; key < kMany; ++key) index.Insert(key, HashIndex::Hash(key), 0);
  constexpr int kParts = 16;
  std::vector<int> in_part(kParts);
  int visited = 0;
  index.ForEach([&](Key key, uint32_t) {
    if (visited++ < static_cast<int>(kMany / 10)) ++in_part[HashIndex::Hash(key) >> 44 & 0xf];
  });
  for (const int keys : in_part) {
    CHECK(keys > static_cast<int>(kMany) / 10 / kParts * 3 / 4);
    CHECK(keys < static_cast<int>(kMany) / 10 / kParts * 5 / 4);
  }
}

TEST_CASE("no Insert for which there was a Reserve makes the index larger") {
  HashIndex index;
  REQUIRE(index.Reserve(10000).ok());
  const size_t bytes = index.bytes();
  for (Key key = 0; key < 10000; ++key) index.Insert(key, HashIndex::Hash(key), 1);
  CHECK(index.bytes() == bytes);
  CHECK(Contents(index).size() == 10000);
}

TEST_CASE("a Reserve beyond what a shard can hold is an error that changes nothing") {
  HashIndex index;
  for (Key key = 0; key < 100; ++key) Insert(index, key, static_cast<uint32_t>(key));
  const Rows before = Contents(index);
  const size_t bytes = index.bytes();
  const Status status = index.Reserve(UINT32_MAX);
  CHECK(status.code() == Code::kResourceExhausted);
  CHECK(index.bytes() == bytes);
  CheckSame(index, before, {0, 99, 100});
}

TEST_CASE("the hash is a bijection that can be turned around") {
  std::mt19937_64 rng(TestSeed());
  for (int i = 0; i < 1000; ++i) {
    const uint64_t hash = rng();
    REQUIRE(HashIndex::Hash(KeyOfHash(hash)) == hash);
  }
}

}  // namespace
}  // namespace sok
