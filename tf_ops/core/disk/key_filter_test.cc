#include "core/disk/key_filter.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "core/base/hash.h"
#include "core/base/test_folder.h"
#include "core/base/test_threads.h"

namespace sok {
namespace {

std::vector<RowKey> Keys(uint64_t first, uint64_t count, int group = 0) {
  std::vector<RowKey> keys;
  for (uint64_t i = 0; i < count; ++i) keys.emplace_back(group, Mix64(first + i));
  return keys;
}

size_t Selected(const KeyFilter& filter, const std::vector<RowKey>& keys) {
  return filter.Select(keys.data(), keys.size()).size();
}

}  // namespace

TEST_CASE("a key filter selects all keys that were added, and few others, at every size") {
  for (const uint64_t part_bytes : {KeyFilter::kLeastBytes, uint64_t{1} << 20}) {
    CAPTURE(part_bytes);
    KeyFilter filter(part_bytes);
    CHECK(Selected(filter, Keys(0, 100)) == 0);
    uint64_t added = 0;
    for (uint64_t count : {1, 100, 100000, 400000, 1000000}) {
      const auto keys = Keys(added, count);
      filter.Add(keys.data(), keys.size());
      added += count;
      const auto all = Keys(0, added);
      CHECK(Selected(filter, all) == added);
      // Half a percent is what eight bits of 512 with 44 keys give; each of the parts may have as
      // many.
      const uint64_t others = 200000;
      CHECK(Selected(filter, Keys(uint64_t{1} << 40, others)) < others * filter.parts() / 180 + 1);
      CHECK(Selected(filter, Keys(0, std::min<uint64_t>(added, 1000), /*group=*/7)) < 60);
      // A key that seems to be there is not counted again, and so is one of the others.
      CHECK(filter.size() <= added);
      CHECK(filter.size() > added - added / 40 - 1);
      const uint64_t size = filter.size();
      filter.Add(all.data(), all.size());
      CHECK(filter.size() == size);
    }
  }
}

TEST_CASE("a key filter that grows far has few parts and little memory, and passes few others") {
  // The parts are as many as a cache of 2 GiB has large ones with 200 million rows.
  KeyFilter filter;
  constexpr uint64_t kKeys = 800000;
  constexpr uint64_t kAtOnce = 10000;
  uint32_t parts = 0;
  for (uint64_t first = 0; first < kKeys; first += kAtOnce) {
    const auto keys = Keys(first, kAtOnce);
    filter.Add(keys.data(), keys.size(), /*are_new=*/true);
    CHECK(filter.size() == first + kAtOnce);
    if (filter.parts() == parts || filter.parts() < 4) continue;
    parts = filter.parts();
    // A new part is empty: this is the most memory that a key takes.
    CHECK(filter.bytes() < 2.3 * static_cast<double>(filter.size()));
  }
  CHECK(filter.parts() == 4);
  CHECK(filter.bytes() < 1.5 * kKeys);
  CHECK(Selected(filter, Keys(0, kKeys)) == kKeys);
  const uint64_t others = 1000000;
  const size_t passed = Selected(filter, Keys(uint64_t{1} << 40, others));
  CHECK(passed < others * 22 / 1000);
  CHECK(passed > others * 5 / 1000);
}

TEST_CASE("random keys, new and known, are in a filter and in what is read from its file") {
  const uint64_t seed = TestSeed();
  CAPTURE(seed);
  std::mt19937_64 rng(seed);
  const TestFolder folder;
  auto filter = std::make_unique<KeyFilter>();
  std::unordered_set<Key> model;
  uint64_t files = 0;
  for (int step = 0; step < (LongTests() ? 400 : 60); ++step) {
    std::vector<RowKey> some;
    const bool are_new = rng() % 2 == 0;
    for (uint64_t n = rng() % 20000; some.size() < n;) {
      // Known ones come from a small range.
      const Key key = are_new ? rng() | uint64_t{1} << 63 : rng() % 100000;
      if (model.insert(key).second || !are_new) some.emplace_back(0, key);
    }
    filter->Add(some.data(), some.size(), are_new);
    if (rng() % 8 == 0) {
      // Another cache may have been larger or smaller.
      auto read = std::make_unique<KeyFilter>(KeyFilter::kLeastBytes << rng() % 3);
      std::vector<KeyFilter::SeenFile> seen;
      REQUIRE(filter->Save(folder / "keys", {{++files, 0}}).ok());
      REQUIRE(read->Load(folder / "keys", &seen));
      REQUIRE(seen.size() == 1);
      CHECK(seen[0].number == files);
      CHECK(read->size() == filter->size());
      CHECK(read->bytes() == filter->bytes());
      filter = std::move(read);
    }
  }
  std::vector<RowKey> all;
  for (Key key : model) all.emplace_back(0, key);
  CHECK(Selected(*filter, all) == all.size());
}

TEST_CASE("a key filter gives the positions in ascending order") {
  KeyFilter filter;
  std::vector<RowKey> keys = Keys(0, 1000);
  std::vector<RowKey> even;
  for (size_t i = 0; i < keys.size(); i += 2) even.push_back(keys[i]);
  filter.Add(even.data(), even.size());
  const auto positions = filter.Select(keys.data(), keys.size());
  CHECK(std::is_sorted(positions.begin(), positions.end()));
  const std::set<uint32_t> found(positions.begin(), positions.end());
  for (uint32_t i = 0; i < keys.size(); i += 2) CHECK(found.count(i) == 1);
}

TEST_CASE("threads add keys to a filter at once, and look others up") {
  KeyFilter filter;
  constexpr uint64_t kEach = 100000;
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&filter, t] {
      for (uint64_t i = 0; i < kEach; i += 1000) {
        const auto keys = Keys(t * kEach + i, 1000);
        filter.Add(keys.data(), keys.size());
        CHECK(Selected(filter, Keys(t * kEach, i + 1000)) == i + 1000);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(Selected(filter, Keys(0, 4 * kEach)) == 4 * kEach);
}

TEST_CASE("a filter comes back from its file, or not at all") {
  const TestFolder folder;
  const std::string path = folder / "keys";
  KeyFilter filter;
  const auto keys = Keys(0, 300000);
  filter.Add(keys.data(), keys.size());
  REQUIRE(filter.Save(path, {{7, 70}, {9, 90}}).ok());
  std::vector<KeyFilter::SeenFile> seen;
  {
    KeyFilter read;
    REQUIRE(read.Load(path, &seen));
    REQUIRE(seen.size() == 2);
    CHECK(seen[1].number == 9);
    CHECK(seen[1].mark == 90);
    CHECK(read.size() == filter.size());
    CHECK(read.bytes() == filter.bytes());
    const auto others = Keys(uint64_t{1} << 40, 100000);
    CHECK(read.Select(others.data(), others.size()) == filter.Select(others.data(), others.size()));
    const auto more = Keys(300000, 300000);
    read.Add(more.data(), more.size());
    CHECK(Selected(read, Keys(0, 600000)) == 600000);
  }
  std::ifstream in(path, std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(in)), {});
  const auto write = [&](const std::string& bytes) {
    std::ofstream out(path, std::ios::binary | std::ios::trunc);
    out << bytes;
  };
  const auto loads = [&] {
    KeyFilter read;
    const bool loaded = read.Load(path, &seen);
    if (!loaded) CHECK(read.size() == 0);
    return loaded;
  };
  seen.clear();
  for (size_t cut : {size_t{0}, size_t{5}, size_t{24}, size_t{40}, size_t{70}, whole.size() / 2,
                     whole.size() - 8, whole.size() - 1}) {
    write(whole.substr(0, cut));
    CHECK_FALSE(loads());
  }
  write(whole + "x");
  CHECK_FALSE(loads());
  // Every bit of the beginning, and some of the rest.
  for (size_t bit = 0; bit < 8 * whole.size(); bit += bit < 800 ? 1 : 200003) {
    std::string damaged = whole;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    write(damaged);
    CHECK_FALSE(loads());
  }
  CHECK(seen.empty());
  write(whole);
  CHECK(loads());
}

}  // namespace sok
