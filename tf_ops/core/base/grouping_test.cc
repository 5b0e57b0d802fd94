// Compares grouping with std::stable_sort and std::map.
#include "core/base/grouping.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>

namespace sok {
namespace {

TEST_CASE("a counting sort is a stable sort") {
  std::mt19937_64 random(7);
  for (int round = 0; round < 200; ++round) {
    const auto groups = static_cast<uint32_t>(1 + random() % 40);
    std::vector<uint32_t> of_item(random() % 300);
    for (uint32_t& group : of_item) group = static_cast<uint32_t>(random() % groups);
    std::vector<uint32_t> expected(of_item.size());
    std::iota(expected.begin(), expected.end(), 0);
    std::stable_sort(expected.begin(), expected.end(),
                     [&](uint32_t a, uint32_t b) { return of_item[a] < of_item[b]; });

    std::vector<uint32_t> starts(groups + 1, 99);
    CountingSort sort(starts.data(), groups);
    for (uint32_t group : of_item) sort.Count(group);
    sort.Start();
    std::vector<uint32_t> sorted(of_item.size());
    for (uint32_t i = 0; i < of_item.size(); ++i) sorted[sort.Take(of_item[i])] = i;
    sort.Finish();

    CHECK(sorted == expected);
    for (uint32_t group = 0; group < groups; ++group) {
      CHECK(starts[group + 1] - starts[group] == std::count(of_item.begin(), of_item.end(), group));
    }
    CHECK(starts.front() == 0);
    CHECK(starts.back() == of_item.size());
  }
}

TEST_CASE("distinct values are numbered as they appear") {
  std::mt19937_64 random(8);
  DistinctIndex index;
  for (int round = 0; round < 200; ++round) {
    const size_t n = random() % 300;
    const uint64_t range = 1 + random() % 400;
    index.Reset(n);
    std::vector<uint64_t> values;
    std::map<uint64_t, uint32_t> numbers;
    const auto value_of = [&](uint32_t number) { return values[number]; };
    for (size_t i = 0; i < n; ++i) {
      // Small values, and values that differ only in their highest bits.
      const uint64_t value = i % 2 == 0 ? random() % range : (random() % range) << 48;
      const uint32_t size = index.size();
      const uint32_t number = index.FindOrAdd(value, value_of);
      const auto [found, is_new] = numbers.emplace(value, size);
      CHECK(number == found->second);
      CHECK((number == size) == is_new);
      if (is_new) values.push_back(value);
      CHECK(index.size() == numbers.size());
    }
    for (uint64_t value = 0; value < range; ++value) {
      const auto found = numbers.find(value);
      CHECK(index.Find(value, value_of) ==
            (found == numbers.end() ? DistinctIndex::kNone : found->second));
    }
  }
}

}  // namespace
}  // namespace sok
