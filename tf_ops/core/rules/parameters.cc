#include "core/rules/parameters.h"

#include <cmath>
#include <cstddef>
#include <sstream>

namespace sok {
namespace {

// Returns a description of the valid values, or nullptr if the value is valid. It is checked in
// float32, since rows are computed in float32: 1 - 1e-9 is 1 there.
const char* Violation(Range range, float x) {
  if (range == Range::kOptional && std::isnan(x)) return nullptr;
  if (!std::isfinite(x)) return "a finite float32";
  switch (range) {
    case Range::kFinite:
      return nullptr;
    case Range::kPositive:
      return x > 0 ? nullptr : "a value above 0";
    case Range::kNonNegative:
    case Range::kOptional:
      return x >= 0 ? nullptr : "a value of at least 0";
    case Range::kNonPositive:
      return x <= 0 ? nullptr : "a value of at most 0";
    case Range::kUnit:
      return x >= 0 && x <= 1 ? nullptr : "a value in [0, 1]";
    case Range::kUnitBelowOne:
      return x >= 0 && x < 1 ? nullptr : "a value in [0, 1)";
    case Range::kUnitAboveZero:
      return x > 0 && x <= 1 ? nullptr : "a value in (0, 1]";
    case Range::kFlag:
      return x == 0 || x == 1 ? nullptr : "0 or 1";
  }
  return nullptr;
}

template <typename Hypers>
auto FindHyper(Hypers& hypers, const std::string& name) -> decltype(hypers.data()) {
  for (auto& hyper : hypers) {
    if (hyper.name == name) return &hyper;
  }
  return nullptr;
}

}  // namespace

std::vector<Hyper> Defaults(const std::vector<Parameter>& parameters) {
  std::vector<Hyper> hypers;
  for (const Parameter& parameter : parameters) {
    hypers.push_back({parameter.name, parameter.default_value});
  }
  return hypers;
}

Result<Values> BindParameters(const std::string& owner, const ErrorField& name,
                              const std::vector<Parameter>& parameters,
                              const std::vector<Hyper>& hypers) {
  std::vector<Hyper> values = Defaults(parameters);
  for (const Hyper& hyper : hypers) {
    Hyper* value = FindHyper(values, hyper.name);
    if (value == nullptr) {
      return InvalidArgument(owner + ": expected parameters of {known}. Received: \"{got}\".",
                             {name, {"known", JoinNames(values)}, {"got", hyper.name}});
    }
    value->value = hyper.value;
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = parameters[i];
    const char* expected = Violation(parameter.range, static_cast<float>(values[i].value));
    if (expected == nullptr) continue;
    std::ostringstream got;
    if (FindHyper(hypers, parameter.name) == nullptr) {
      got << "no value, and it has no default";
    } else {
      got << values[i].value;
    }
    return InvalidArgument(
        owner + ": expected {parameter} to be {expected}. Received: {got}.",
        {name, {"parameter", parameter.name}, {"expected", expected}, {"got", got.str()}});
  }
  return Values(std::move(values));
}

}  // namespace sok
