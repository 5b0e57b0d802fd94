#include "core/rules/deferred/deferred.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "core/rules/row_optimizer.h"

namespace sok {
namespace {

TEST_CASE("a deferred rule leaves the scaled gradient and the step, and keeps weights and slots") {
  for (int count = 0; count <= 8; ++count) {
    CAPTURE(count);
    std::vector<Hyper> hypers = {{"learning_rate", 0.5}};
    for (int i = 0; i < count; ++i) hypers.push_back({"initial_" + std::to_string(i), i + 1.0});
    const auto made = MakeRowOptimizer("deferred_" + std::to_string(count), hypers);
    REQUIRE(made.ok());
    const RowOptimizer& optimizer = *made.value();
    std::vector<float> row = {3, 4}, expected = row;
    int slot = 0;
    for (const Slot& each : optimizer.slots(2)) {
      const bool kept = slot < count;
      CHECK(each.name == (kept            ? "slot_" + std::to_string(slot)
                          : slot == count ? "gradient"
                                          : "step"));
      CHECK(each.width == (slot > count ? 1 : 2));
      CHECK(each.initial == (kept ? slot + 1.0f : 0.0f));
      row.insert(row.end(), each.width, each.initial);
      if (kept) expected.insert(expected.end(), each.width, each.initial);
      ++slot;
    }
    CHECK(slot == count + 2);
    expected.insert(expected.end(), {0.5f, -1.0f, 7.0f});
    const std::vector<float> gradient = {1, -2};
    float* rows[] = {row.data()};
    const float* gradients[] = {gradient.data()};
    optimizer.Apply({7, 0.5f}, rows, gradients, 1, 2);
    CHECK(row == expected);
  }
}

TEST_CASE("weights decay under a deferred rule as under every other") {
  const auto made =
      MakeRowOptimizer("deferred_0", {{"learning_rate", 0.5}, {"weight_decay", 0.25}});
  REQUIRE(made.ok());
  std::vector<float> row = {8, 0, 0};
  const float gradient = 1;
  float* rows[] = {row.data()};
  const float* gradients[] = {&gradient};
  made.value()->Apply({1, 1.0f}, rows, gradients, 1, 1);
  CHECK(row == std::vector<float>{7, 1, 1});
}

}  // namespace
}  // namespace sok
