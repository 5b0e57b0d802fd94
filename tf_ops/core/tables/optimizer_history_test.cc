#include "core/tables/optimizer_history.h"

#include <doctest/doctest.h>

namespace sok {
namespace {

// A table as its history sees it: commits of one rule, each with deposits.
class Commits {
 public:
  explicit Commits(OptimizerHistory history = {}) : history_(std::move(history)) {}

  struct Seen {
    bool anew;
    int64_t step;  // of bias correction
  };
  Seen Commit(const Committer& who, const std::string& rule = "adam") {
    history_.Record(who, steps_);
    const bool anew = history_.StartsAnew(rule_, rule);
    if (anew) {
      steps_ = 0;
      history_.DropEarlierSteps();
    }
    rule_ = rule;
    ++steps_;
    history_.Stepped();
    return {anew, history_.StepOf(who, steps_)};
  }
  bool Anew(const Committer& who) { return Commit(who).anew; }
  int64_t Step(const Committer& who) { return Commit(who).step; }
  void RecordOnly(const Committer& who) { history_.Record(who, steps_); }

 private:
  OptimizerHistory history_;
  std::string rule_;
  int64_t steps_ = 0;
};

TEST_CASE("the first optimizer of a table finds nothing to start anew") {
  for (const int64_t step : {0, 1, 7}) {
    Commits table;
    CHECK_FALSE(table.Anew({5, step}));
  }
}

TEST_CASE("slots start anew for a new optimizer at its first step, once") {
  Commits table;
  table.Commit({5, 1});
  CHECK_FALSE(table.Anew({5, 2}));
  CHECK(table.Anew({6, 1}));
  CHECK_FALSE(table.Anew({6, 2}));
  CHECK_FALSE(table.Anew({5, 3}));  // the first one again, which is known
}

TEST_CASE("an optimizer that comes with later steps was restored along") {
  Commits table;
  table.Commit({5, 1});
  CHECK_FALSE(table.Anew({6, 2}));
}

TEST_CASE("an optimizer that accumulates counts calls, so its first step may be a later one") {
  for (const int64_t step : {1, 4, 5}) {
    Commits table;
    table.Commit({5, 1});
    CHECK(table.Anew({6, step, 4}) == (step <= 4));
  }
}

TEST_CASE("nobody in particular is new whenever it comes with step 1") {
  Commits table;
  CHECK_FALSE(table.Anew({Committer::kNobody, 1}));
  CHECK_FALSE(table.Anew({Committer::kNobody, 2}));
  CHECK(table.Anew({Committer::kNobody, 1}));
}

TEST_CASE(
    "of those who leave counting to the table, all but the first are new, and nobody is not") {
  Commits table;
  CHECK_FALSE(table.Anew({5}));
  CHECK_FALSE(table.Anew({5}));
  CHECK(table.Anew({6}));
  CHECK_FALSE(table.Anew({5}));
  CHECK_FALSE(table.Anew({Committer::kNobody}));
}

TEST_CASE("a new optimizer whose first step has no deposits starts anew with the next that has") {
  Commits table;
  table.Commit({5, 1});
  table.RecordOnly({6, 1});
  CHECK(table.Anew({6, 2}));
  CHECK_FALSE(table.Anew({6, 3}));
}

TEST_CASE("another rule starts anew, whoever comes with it; a table without a rule never does") {
  OptimizerHistory history;
  CHECK(history.StartsAnew("adam", "sgd"));
  CHECK_FALSE(history.StartsAnew("adam", "adam"));
  CHECK_FALSE(history.StartsAnew("", "adam"));
}

TEST_CASE("bias correction counts the optimizer's steps, or the table's where it has none") {
  Commits table;
  CHECK(table.Step({5, 1}) == 1);
  CHECK(table.Step({5, 9}) == 9);
  CHECK(table.Step({5}) == 3);
  CHECK(table.Step({6, 1}) == 1);  // anew
}

TEST_CASE("kept slots do not start anew, and a new optimizer goes on from the table's steps") {
  Commits table(OptimizerHistory::KeepingSlots());
  for (int64_t step = 1; step <= 4; ++step) CHECK(table.Step({5, step}) == step);
  const Commits::Seen first = table.Commit({6, 1});
  CHECK_FALSE(first.anew);
  CHECK(first.step == 5);
  CHECK(table.Step({6, 2}) == 6);
  CHECK(table.Step({5, 5}) == 5);  // it knows nothing of the other's steps
}

TEST_CASE(
    "an optimizer that was restored along with kept slots adds the steps that it has not counted") {
  Commits same(OptimizerHistory::KeepingSlots()), behind(OptimizerHistory::KeepingSlots());
  for (int64_t step = 1; step <= 6; ++step) {
    same.Commit({5, step});
    behind.Commit({5, step});
  }
  CHECK(same.Step({6, 7}) == 7);    // it has seen all six
  CHECK(behind.Step({6, 3}) == 7);  // it has seen two of them
  CHECK(behind.Step({6, 4}) == 8);
}

TEST_CASE("where kept slots are dropped for another rule, nobody has earlier steps") {
  Commits table(OptimizerHistory::KeepingSlots());
  for (int64_t step = 1; step <= 4; ++step) table.Commit({5, step});
  CHECK(table.Commit({6, 1}, "sgd").anew);
  CHECK(table.Commit({6, 2}, "sgd").step == 2);
}

}  // namespace
}  // namespace sok
