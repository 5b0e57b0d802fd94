#include "core/rules/row_optimizer.h"

#include <cxxabi.h>

#include <cstdlib>
#include <utility>

#include "core/base/status_macros.h"
#include "core/rules/parameters.h"
#include "core/rules/rule_optimizer.h"
#include "core/rules/rules.h"
#include "core/rules/schedule.h"

namespace sok {
namespace {

template <typename Rule>
std::unique_ptr<RowOptimizer> Make(const Values& values, const Schedule* schedule) {
  return std::make_unique<RuleOptimizer<Rule>>(values, schedule);
}

// Makes Ftrl or GroupFtrl.
template <template <bool> typename Rule>
std::unique_ptr<RowOptimizer> MakeFtrl(const Values& values, const Schedule* schedule) {
  return values["learning_rate_power"] == -0.5f ? Make<Rule<true>>(values, schedule)
                                                : Make<Rule<false>>(values, schedule);
}

struct Entry {
  const char* name;
  std::vector<Parameter> (*parameters)();
  std::unique_ptr<RowOptimizer> (*make)(const Values& values, const Schedule* schedule);
  bool takes_schedule;
};

template <typename Rule>
constexpr Entry EntryOf(const char* name) {
  return {name, Rule::Parameters, Make<Rule>, HasRate<Rule>::value};
}

// The entries are sorted by name. "kv_" begins the rules of sok_embed.kv, and "v1_" a formula of
// tf.compat.v1.train that Keras does not have. "group_ftrl" is DeepRec's. "deferred_n" has n slots
// for a formula that the core does not have.
constexpr Entry kRegistry[] = {
    EntryOf<Adadelta>("adadelta"),
    EntryOf<Adagrad>("adagrad"),
    EntryOf<Adam>("adam"),
    EntryOf<Adamax>("adamax"),
    EntryOf<AdamW>("adamw"),
    EntryOf<Amsgrad>("amsgrad"),
    EntryOf<Deferred<0>>("deferred_0"),
    EntryOf<Deferred<1>>("deferred_1"),
    EntryOf<Deferred<2>>("deferred_2"),
    EntryOf<Deferred<3>>("deferred_3"),
    EntryOf<Deferred<4>>("deferred_4"),
    EntryOf<Deferred<5>>("deferred_5"),
    EntryOf<Deferred<6>>("deferred_6"),
    EntryOf<Deferred<7>>("deferred_7"),
    EntryOf<Deferred<8>>("deferred_8"),
    {"ftrl", Ftrl<true>::Parameters, MakeFtrl<Ftrl>, /*takes_schedule=*/false},
    {"group_ftrl", GroupFtrl<true>::Parameters, MakeFtrl<GroupFtrl>, /*takes_schedule=*/false},
    EntryOf<KvAdagrad>("kv_adagrad"),
    EntryOf<KvAdam>("kv_adam"),
    EntryOf<KvAdamW>("kv_adamw"),
    EntryOf<KvAmsgrad>("kv_amsgrad"),
    EntryOf<KvFtrl>("kv_ftrl"),
    EntryOf<KvLion>("kv_lion"),
    EntryOf<KvSgd>("kv_sgd"),
    EntryOf<Lion>("lion"),
    EntryOf<Momentum>("momentum"),
    EntryOf<Nadam>("nadam"),
    EntryOf<Rmsprop>("rmsprop"),
    EntryOf<RmspropCentered>("rmsprop_centered"),
    EntryOf<RmspropCenteredMomentum>("rmsprop_centered_momentum"),
    EntryOf<RmspropMomentum>("rmsprop_momentum"),
    EntryOf<RowwiseAdagrad>("rowwise_adagrad"),
    EntryOf<Sgd>("sgd"),
    EntryOf<V1Momentum>("v1_momentum"),
};

const Entry* FindEntry(const std::string& rule) {
  for (const Entry& entry : kRegistry) {
    if (rule == entry.name) return &entry;
  }
  return nullptr;
}

Status NoScheduleExpected(const std::string& rule, const Schedule& schedule) {
  std::vector<std::string> takers;
  for (const Entry& entry : kRegistry) {
    if (entry.takes_schedule) takers.push_back(entry.name);
  }
  return InvalidArgument(
      "Row optimizer \"{rule}\": expected no learning rate schedule. Received: \"{schedule}\". The "
      "rules that take one are {takers}.",
      {{"rule", RuleName{rule}}, {"schedule", schedule.name()}, {"takers", RuleNames{takers}}});
}

}  // namespace

std::string TypeName(const std::type_info& type) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(
      abi::__cxa_demangle(type.name(), nullptr, nullptr, &status), std::free);
  return status == 0 ? std::string(name.get()) : std::string(type.name());
}

std::vector<std::string> RowOptimizerNames() {
  std::vector<std::string> names;
  for (const Entry& entry : kRegistry) names.push_back(entry.name);
  return names;
}

std::vector<Hyper> RowOptimizerDefaults(const std::string& rule) {
  const Entry* entry = FindEntry(rule);
  return entry == nullptr ? std::vector<Hyper>() : Defaults(entry->parameters());
}

std::vector<Slot> RowOptimizerSlots(const std::string& rule, int dim) {
  const auto optimizer = MakeRowOptimizer(rule, {});
  return optimizer.ok() ? optimizer.value()->slots(dim) : std::vector<Slot>();
}

Result<std::unique_ptr<RowOptimizer>> MakeRowOptimizer(const std::string& rule,
                                                       const std::vector<Hyper>& hypers,
                                                       const Schedule* schedule) {
  const Entry* entry = FindEntry(rule);
  if (entry == nullptr) {
    return InvalidArgument("Expected a row optimizer of {known}. Received: \"{got}\".",
                           {{"known", RuleNames{RowOptimizerNames()}}, {"got", RuleName{rule}}});
  }
  if (schedule != nullptr && !entry->takes_schedule) return NoScheduleExpected(rule, *schedule);
  SOK_ASSIGN_OR_RETURN(const auto values,
                       BindParameters("Row optimizer \"{owner}\"", {"owner", RuleName{rule}},
                                      entry->parameters(), hypers));
  return entry->make(values, schedule);
}

}  // namespace sok
