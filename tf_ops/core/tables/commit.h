// The options of a commit, and its outcome.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/types.h"
#include "core/rules/hyper.h"

namespace sok {

// The gradient of an anchor, which a deposit adds to.
struct AnchorGradient {
  float* gradient = nullptr;  // (kAnchorSize); null: the deposit is not named
  bool needs_norm = true;     // whether it gets the norm of what is deposited
};

struct CommitOptions {
  std::string rule;
  std::vector<Hyper> hypers;
  // t of the rule's bias correction, 1 for the first step. 0: the table counts its steps.
  int64_t step = 0;
  float scale = 1.0f;  // gradients are multiplied by it
  // Identifies the optimizer that commits; 0: unknown. If a new optimizer commits that the table
  // has not seen before (`step` <= first_step or, without a step, any optimizer but the first),
  // slots of other optimizers start anew, unless the table keeps its slots.
  int64_t optimizer = 0;
  // The greatest `step` at which an optimizer that the table has not seen counts as new. It is
  // above 1 for an optimizer that accumulates the gradients of several calls, since it counts the
  // calls.
  int64_t first_step = 1;
  // The bound of clipping: each element of the sum of a row's gradients, times the scale, is
  // clipped to [-clip_value, clip_value]. 0: no clipping.
  float clip_value = 0.0f;
  // The gradient of the anchor (kAnchorSize) as the optimizer received it, which names the deposits
  // to apply: see tickets.h. Null: all deposits that wait are applied.
  const float* redeemed = nullptr;
  // True if the gradients of the anchor were only added up and multiplied on their way: see
  // DepositQueue::Redeem.
  bool plain = true;
  float clipped_to = 0.0f;
  bool lists_keys = false;  // see CommitOutcome::keys
};

struct CommitOutcome {
  bool stepped = false;         // there were deposits
  uint64_t rows = 0;            // that the step touched
  bool restarted = false;       // slots of earlier commits were dropped and start anew
  uint64_t left_out = 0;        // keys that got no row, and no step, since the table is full
  bool first_left_out = false;  // true if the table had left out no key before
  std::string previous;         // the rule before, empty if there was none
  // With lists_keys, the distinct keys that had gradients, ascending. A table has one list. An
  // adaptive table has two: the keys of own rows, and the buckets of static rows. A key may have no
  // row, if it was left out, not admitted or evicted.
  std::vector<std::vector<Key>> keys;
};

}  // namespace sok
