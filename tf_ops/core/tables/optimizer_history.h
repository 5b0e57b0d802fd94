// Records the optimizers that have committed to a table. It decides whether slots that another
// optimizer has left start anew, and which step a commit uses for bias correction.
//
// Not thread-safe: the table asks it with its commits locked.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <unordered_map>

namespace sok {

// Identifies the optimizer of a commit.
struct Committer {
  static constexpr int64_t kNobody = 0;  // stands for all commits that name no optimizer
  static constexpr int64_t kUncounted = 0;

  int64_t optimizer = kNobody;
  // The optimizer's step, 1 for its first one. kUncounted: the table counts the steps.
  int64_t step = kUncounted;
  // The greatest step at which an optimizer that the table has not seen counts as new. It is above
  // 1 for an optimizer that accumulates the gradients of several calls, since it counts the calls.
  int64_t first_step = 1;
};

class OptimizerHistory {
 public:
  OptimizerHistory() = default;
  // Returns the history of a table that keeps its slots whichever optimizer commits.
  static OptimizerHistory KeepingSlots() {
    OptimizerHistory history;
    history.keeps_slots_ = true;
    return history;
  }

  // Records the optimizer of a commit to a table that has taken `steps` steps. It is called in a
  // commit without deposits too, so that an optimizer's first step is seen even if this table has
  // no part in it.
  void Record(const Committer& who, int64_t steps) {
    const bool follows_another = !earlier_steps_.empty();
    const bool is_unknown = earlier_steps_.emplace(who.optimizer, 0).second;
    const bool is_first = IsFirstStep(who, follows_another);
    const bool begins = is_first && (is_unknown || who.optimizer == Committer::kNobody);
    if (!keeps_slots_) {
      begun_ |= begins;
    } else if (is_unknown || begins) {
      // An optimizer that was restored with the table has counted the table's steps; a new one has
      // not.
      const int64_t known = is_first ? 0 : who.step - 1;
      earlier_steps_[who.optimizer] = std::max<int64_t>(0, steps - known);
    }
  }

  // Returns true if a step of `rule` must not find the slots that `trained`, the rule of the steps
  // so far, has left: another rule's slot of the same name means something else.
  bool StartsAnew(const std::string& trained, const std::string& rule) const {
    return !trained.empty() && (begun_ || trained != rule);
  }

  // Forgets the steps that optimizers had not counted, after all slots were dropped.
  void DropEarlierSteps() {
    for (auto& [optimizer, earlier] : earlier_steps_) earlier = 0;
  }

  // Returns t of the bias correction, for a commit after which the table has taken `steps` steps.
  int64_t StepOf(const Committer& who, int64_t steps) const {
    if (who.step <= Committer::kUncounted) return steps;
    const auto met = earlier_steps_.find(who.optimizer);
    return who.step + (met == earlier_steps_.end() ? 0 : met->second);
  }

  // Notes that the rows have taken the step: their slots belong to the optimizer that committed.
  void Stepped() { begun_ = false; }

 private:
  static bool IsFirstStep(const Committer& who, bool follows_another) {
    if (who.step == Committer::kUncounted) {
      // Without a step, an optimizer counts as new if another one committed before. The very first
      // may have been restored with the table.
      return follows_another && who.optimizer != Committer::kNobody;
    }
    return who.step >= 1 && who.step <= who.first_step;
  }

  bool keeps_slots_ = false;
  // Each optimizer that has committed, with the steps of the table that it has not counted.
  std::unordered_map<int64_t, int64_t> earlier_steps_;
  bool begun_ = false;  // a new optimizer has come, and has not applied gradients yet
};

}  // namespace sok
