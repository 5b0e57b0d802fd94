// A parameter of a rule or a schedule.
#pragma once

namespace sok {

// The values that a parameter may take.
enum class Range {
  kFinite,
  kPositive,
  kNonNegative,
  kNonPositive,
  kUnit,           // [0, 1]
  kUnitBelowOne,   // [0, 1)
  kUnitAboveZero,  // (0, 1]
  kFlag,           // 0 or 1
  kOptional,       // at least 0, or NaN for none
};

struct Parameter {
  const char* name;
  double default_value;  // NaN means that there is no default, unless the range is kOptional
  Range range;
};

}  // namespace sok
