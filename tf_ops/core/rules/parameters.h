// Binds the values of the parameters of a rule or a schedule.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/rules/hyper.h"
#include "core/rules/parameter.h"

namespace sok {

// The values of all of a rule's parameters, checked.
class Values {
 public:
  explicit Values(std::vector<Hyper> hypers) : hypers_(std::move(hypers)) {}

  // Returns a value in float64. The name is one of the rule's parameters.
  double Exact(const char* name) const {
    for (const Hyper& hyper : hypers_) {
      if (hyper.name == name) return hyper.value;
    }
    return 0.0;
  }
  float operator[](const char* name) const { return static_cast<float>(Exact(name)); }

  // Returns the values in the order of the rule's parameters.
  const std::vector<Hyper>& all() const { return hypers_; }

 private:
  std::vector<Hyper> hypers_;
};

// Returns the parameters, each with its default.
std::vector<Hyper> Defaults(const std::vector<Parameter>& parameters);

// Binds values; a parameter that is not in `hypers` takes its default. Messages begin with `owner`,
// a text with a placeholder for `name`: Row optimizer "{owner}". Errors: kInvalidArgument for an
// unknown parameter, a missing one and a value out of its range.
Result<Values> BindParameters(const std::string& owner, const ErrorField& name,
                              const std::vector<Parameter>& parameters,
                              const std::vector<Hyper>& hypers);

// Returns the names of items that have one, as a message lists them.
template <typename Items>
std::string JoinNames(const Items& items) {
  std::string joined;
  for (const auto& item : items) {
    if (!joined.empty()) joined += ", ";
    joined += item.name;
  }
  return joined;
}

}  // namespace sok
