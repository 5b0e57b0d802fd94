#include <cstdint>
#include <string>
#include <vector>

#include "binding/binding.h"
#include "core/rows/row_slabs.h"
#include "core/rules/row_optimizer.h"
#include "core/rules/schedule.h"

namespace sok::binding {
namespace {

void Make(PyOptimizer* self, const std::string& rule, const NamedNumbers& hypers,
          const std::string& schedule, const NamedNumbers& parameters) {
  std::unique_ptr<RowOptimizer> made;
  if (schedule.empty()) {
    made = Value(MakeRowOptimizer(rule, ToHypers(hypers)));
  } else {
    const Schedule bound = Value(Schedule::Make(schedule, ToHypers(parameters)));
    made = Value(MakeRowOptimizer(rule, ToHypers(hypers), &bound));
  }
  new (self) PyOptimizer{rule, std::move(made)};
}

RowLayout Layout(const PyOptimizer& self, int64_t dim) {
  if (dim < 1 || dim > Table::kMostDim) {
    Raise(InvalidArgument("expected a dimension from 1 to " + std::to_string(Table::kMostDim) +
                          ", got " + std::to_string(dim)));
  }
  const int floats = static_cast<int>(dim);
  return RowLayout(floats, self.optimizer->slots(floats));
}

void Apply(const PyOptimizer& self, const FloatsOut& row, const FloatsIn& gradient,
           int64_t number) {
  const RowLayout layout = Layout(self, static_cast<int64_t>(gradient.size()));
  const int slots = static_cast<int>(layout.slot_floats());
  CheckSize("row", row.size(), gradient.size() + static_cast<size_t>(slots),
            "a gradient of " + std::to_string(gradient.size()) + " and slots of " +
                std::to_string(slots));
  if (number < 1) {
    Raise(InvalidArgument("expected the number of an update, from 1 on, got " +
                          std::to_string(number)));
  }
  float* const rows = row.data();
  const float* const gradients = gradient.data();
  const GilReleased released;
  self.optimizer->Apply({number, 1.0f}, &rows, &gradients, 1, layout.dim());
}

// Returns the names of a rule's slots, in the order in which they follow an embedding.
std::vector<std::string> RuleSlots(const std::string& rule) {
  std::vector<std::string> names;
  for (const Slot& slot : RowOptimizerSlots(rule, 1)) names.push_back(slot.name);
  return names;
}

double ScheduleValue(const std::string& name, const NamedNumbers& parameters, double initial,
                     int64_t step) {
  const Schedule schedule = Value(Schedule::Make(name, ToHypers(parameters)));
  if (step < 0) {
    Raise(InvalidArgument("expected a step from 0 on, got " + std::to_string(step)));
  }
  return schedule(initial, step);
}

}  // namespace

void BindOptimizer(nb::module_& module) {
  nb::class_<PyOptimizer>(module, "Optimizer")
      .def("__init__", Make, nb::arg("rule"), nb::arg("hypers"), nb::arg("schedule") = "",
           nb::arg("schedule_parameters") = NamedNumbers())
      .def_prop_ro("rule", [](const PyOptimizer& self) { return self.rule; })
      .def(
          "slot_floats",
          [](const PyOptimizer& self, int64_t dim) { return Layout(self, dim).slot_floats(); },
          nb::arg("dim"))
      .def(
          "slot_start",
          [](const PyOptimizer& self, int64_t dim) {
            return ToNumpy(Layout(self, dim).slot_start());
          },
          nb::arg("dim"))
      .def("apply", Apply, nb::arg("row").noconvert(), nb::arg("gradient").noconvert(),
           nb::arg("number"));
  module.def("rule_names", RowOptimizerNames);
  module.def("rule_slots", RuleSlots, nb::arg("rule"));
  module.def(
      "rule_defaults",
      [](const std::string& rule) { return FromHypers(RowOptimizerDefaults(rule)); },
      nb::arg("rule"));
  module.def("schedule_names", ScheduleNames);
  module.def(
      "schedule_defaults",
      [](const std::string& name) { return FromHypers(ScheduleDefaults(name)); }, nb::arg("name"));
  module.def("schedule_value", ScheduleValue, nb::arg("name"), nb::arg("parameters"),
             nb::arg("initial"), nb::arg("step"));
}

}  // namespace sok::binding
