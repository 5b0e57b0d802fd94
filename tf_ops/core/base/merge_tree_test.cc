#include "core/base/merge_tree.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "core/base/test_threads.h"

namespace sok {

TEST_CASE("a merge tree visits the keys of any number of runs in their order") {
  std::mt19937_64 rng(TestSeed());
  for (size_t runs : {0, 1, 2, 3, 5, 8, 31, 100}) {
    for (const uint64_t keys : {uint64_t{3}, ~uint64_t{0}}) {  // few, with equal ones, or all
      std::vector<std::vector<uint64_t>> values(runs);
      std::vector<std::pair<uint64_t, size_t>> expected;
      for (size_t run = 0; run < runs; ++run) {
        values[run].resize(rng() % 20);
        for (uint64_t& value : values[run]) {
          value = rng() % 8 == 0 ? keys : rng() % keys;
          expected.emplace_back(value, run);
        }
        std::sort(values[run].begin(), values[run].end());
      }
      std::sort(expected.begin(), expected.end());

      MergeTree tree(runs);
      std::vector<size_t> next(runs, 1);
      for (size_t run = 0; run < runs; ++run) {
        if (!values[run].empty()) tree.Set(run, values[run][0]);
      }
      std::vector<std::pair<uint64_t, size_t>> visited;
      for (tree.Start(); !tree.ended();) {
        const size_t run = tree.run();
        visited.emplace_back(tree.key(), run);
        if (next[run] < values[run].size()) {
          tree.Next(values[run][next[run]++]);
        } else {
          tree.End();
        }
      }
      REQUIRE(visited == expected);
    }
  }
}

}  // namespace sok
