#include "core/optimizers/row_optimizer.h"

#include <cmath>
#include <sstream>
#include <utility>

#include "core/optimizers/adagrad.h"
#include "core/optimizers/adam.h"
#include "core/optimizers/adamw.h"
#include "core/optimizers/amsgrad.h"
#include "core/optimizers/ftrl.h"
#include "core/optimizers/lion.h"
#include "core/optimizers/momentum.h"
#include "core/optimizers/rmsprop.h"
#include "core/optimizers/rowwise_adagrad.h"
#include "core/optimizers/rule_optimizer.h"
#include "core/optimizers/sgd.h"

namespace sok {
namespace {

template <typename Rule>
std::unique_ptr<RowOptimizer> Make(const Values& values) {
  return std::make_unique<RuleOptimizer<Rule>>(values);
}

std::unique_ptr<RowOptimizer> MakeFtrl(const Values& values) {
  return values["learning_rate_power"] == -0.5f ? Make<Ftrl<true>>(values)
                                                : Make<Ftrl<false>>(values);
}

struct Entry {
  const char* name;
  std::vector<Parameter> (*parameters)();
  std::unique_ptr<RowOptimizer> (*make)(const Values& values);
};

// Sorted by name.
constexpr Entry kRegistry[] = {
    {"adagrad", Adagrad::Parameters, Make<Adagrad>},
    {"adam", Adam::Parameters, Make<Adam>},
    {"adamw", AdamW::Parameters, Make<AdamW>},
    {"amsgrad", Amsgrad::Parameters, Make<Amsgrad>},
    {"ftrl", Ftrl<true>::Parameters, MakeFtrl},
    {"lion", Lion::Parameters, Make<Lion>},
    {"momentum", Momentum::Parameters, Make<Momentum>},
    {"rmsprop", Rmsprop::Parameters, Make<Rmsprop>},
    {"rmsprop_centered", RmspropCentered::Parameters, Make<RmspropCentered>},
    {"rmsprop_centered_momentum", RmspropCenteredMomentum::Parameters,
     Make<RmspropCenteredMomentum>},
    {"rmsprop_momentum", RmspropMomentum::Parameters, Make<RmspropMomentum>},
    {"rowwise_adagrad", RowwiseAdagrad::Parameters, Make<RowwiseAdagrad>},
    {"sgd", Sgd::Parameters, Make<Sgd>},
};

const Entry* FindEntry(const std::string& rule) {
  for (const Entry& entry : kRegistry) {
    if (rule == entry.name) return &entry;
  }
  return nullptr;
}

template <typename Items>
std::string JoinNames(const Items& items) {
  std::string joined;
  for (const auto& item : items) {
    if (!joined.empty()) joined += ", ";
    joined += item.name;
  }
  return joined;
}

// What the value should have been, or nullptr if it is right. Checked in float32, which the rows
// are computed in: 1 - 1e-9 is 1 there.
const char* Violation(Range range, float x) {
  if (!std::isfinite(x)) return "a finite float32";
  switch (range) {
    case Range::kFinite:
      return nullptr;
    case Range::kPositive:
      return x > 0 ? nullptr : "a value above 0";
    case Range::kNonNegative:
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

Hyper* FindHyper(std::vector<Hyper>& hypers, const std::string& name) {
  for (Hyper& hyper : hypers) {
    if (hyper.name == name) return &hyper;
  }
  return nullptr;
}

}  // namespace

std::vector<std::string> RowOptimizerNames() {
  std::vector<std::string> names;
  for (const Entry& entry : kRegistry) names.push_back(entry.name);
  return names;
}

std::vector<Hyper> RowOptimizerDefaults(const std::string& rule) {
  std::vector<Hyper> hypers;
  const Entry* entry = FindEntry(rule);
  if (entry == nullptr) return hypers;
  for (const Parameter& parameter : entry->parameters()) {
    hypers.push_back({parameter.name, parameter.default_value});
  }
  return hypers;
}

Result<std::unique_ptr<RowOptimizer>> MakeRowOptimizer(const std::string& rule,
                                                       const std::vector<Hyper>& hypers) {
  const Entry* entry = FindEntry(rule);
  if (entry == nullptr) {
    return InvalidArgument("Expected a row optimizer of " + JoinNames(kRegistry) +
                           ". Received: \"" + rule + "\".");
  }
  std::vector<Hyper> values = RowOptimizerDefaults(rule);
  for (const Hyper& hyper : hypers) {
    Hyper* value = FindHyper(values, hyper.name);
    if (value == nullptr) {
      return InvalidArgument("Row optimizer \"" + rule + "\": expected parameters of " +
                             JoinNames(values) + ". Received: \"" + hyper.name + "\".");
    }
    value->value = hyper.value;
  }
  const std::vector<Parameter> parameters = entry->parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const char* expected = Violation(parameters[i].range, static_cast<float>(values[i].value));
    if (expected == nullptr) continue;
    std::ostringstream message;
    message << "Row optimizer \"" << rule << "\": expected " << parameters[i].name << " to be "
            << expected << ". Received: " << values[i].value << ".";
    return InvalidArgument(message.str());
  }
  return entry->make(Values(std::move(values)));
}

}  // namespace sok
