#include "core/rules/row_optimizer.h"

#include <utility>

#include "core/base/status_macros.h"
#include "core/rules/deferred/deferred.h"
#include "core/rules/keras/adadelta.h"
#include "core/rules/keras/adagrad.h"
#include "core/rules/keras/adam.h"
#include "core/rules/keras/adamax.h"
#include "core/rules/keras/adamw.h"
#include "core/rules/keras/amsgrad.h"
#include "core/rules/keras/ftrl.h"
#include "core/rules/keras/group_ftrl.h"
#include "core/rules/keras/lion.h"
#include "core/rules/keras/momentum.h"
#include "core/rules/keras/nadam.h"
#include "core/rules/keras/rmsprop.h"
#include "core/rules/keras/rowwise_adagrad.h"
#include "core/rules/keras/sgd.h"
#include "core/rules/parameters.h"
#include "core/rules/rule_optimizer.h"
#include "core/rules/schedule.h"
#include "core/rules/torch/adagrad.h"
#include "core/rules/torch/adam.h"
#include "core/rules/torch/adamw.h"
#include "core/rules/torch/amsgrad.h"
#include "core/rules/torch/ftrl.h"
#include "core/rules/torch/lion.h"
#include "core/rules/torch/sgd.h"
#include "core/rules/v1/momentum.h"

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

// The entries are sorted by name. Those of "kv_" are the rules of sok_embed.kv, and "v1_" is a
// formula of tf.compat.v1.train that Keras does not have. "group_ftrl" is DeepRec's. "deferred_n"
// has n slots for a formula that the core does not have.
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
