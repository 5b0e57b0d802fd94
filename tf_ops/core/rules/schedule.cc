#include "core/rules/schedule.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "core/base/status_macros.h"
#include "core/rules/parameters.h"

namespace sok {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
constexpr double kPi = 3.14159265358979323846;

// With a decay rate below 0, a power or a quotient would be NaN at some steps.
std::vector<Parameter> RateParameters() {
  return {{"decay_steps", kNone, Range::kPositive},
          {"decay_rate", kNone, Range::kNonNegative},
          {"staircase", 0, Range::kFlag}};
}

double Periods(const double* values, double step) {
  const double decay_steps = values[0];
  const bool staircase = values[2] != 0.0;
  return staircase ? std::floor(step / decay_steps) : step / decay_steps;
}

double ExponentialDecay(const double* values, double initial, double step) {
  return initial * std::pow(values[1], Periods(values, step));
}

double InverseTimeDecay(const double* values, double initial, double step) {
  return initial / (1.0 + values[1] * Periods(values, step));
}

std::vector<Parameter> NaturalExponentialParameters() {
  std::vector<Parameter> parameters = RateParameters();
  parameters[1].range = Range::kFinite;
  return parameters;
}

double NaturalExponentialDecay(const double* values, double initial, double step) {
  return initial * std::exp(-values[1] * Periods(values, step));
}

// With a power below 0, the formula would divide by 0 at the end.
std::vector<Parameter> PolynomialParameters() {
  return {{"decay_steps", kNone, Range::kPositive},
          {"end_learning_rate", 1e-4, Range::kNonNegative},
          {"power", 1, Range::kNonNegative},
          {"cycle", 0, Range::kFlag}};
}

double PolynomialDecay(const double* values, double initial, double step) {
  const double end = values[1], power = values[2];
  const bool cycle = values[3] != 0.0;
  double decay_steps = values[0];
  if (cycle) {
    decay_steps *= std::max(1.0, std::ceil(step / decay_steps));
  } else {
    step = std::min(step, decay_steps);
  }
  // Because of rounding, the product for a cycle may be slightly below step.
  const double left = std::max(0.0, 1.0 - step / decay_steps);
  return (initial - end) * std::pow(left, power) + end;
}

std::vector<Parameter> CosineParameters() {
  return {{"decay_steps", kNone, Range::kPositive},
          {"alpha", 0, Range::kNonNegative},
          {"warmup_target", kNone, Range::kOptional},
          {"warmup_steps", 0, Range::kNonNegative}};
}

// Without a warmup_target, warmup_steps has no meaning, as in Keras.
double CosineDecay(const double* values, double initial, double step) {
  const double decay_steps = values[0], alpha = values[1], target = values[2];
  double peak = initial;
  if (!std::isnan(target)) {
    const double warmup_steps = values[3];
    if (step < warmup_steps) return (target - initial) * (step / warmup_steps) + initial;
    step -= warmup_steps;
    peak = target;
  }
  const double fraction = std::min(step, decay_steps) / decay_steps;
  return peak * ((1.0 - alpha) * 0.5 * (1.0 + std::cos(kPi * fraction)) + alpha);
}

std::vector<Parameter> LinearCosineParameters() {
  return {{"decay_steps", kNone, Range::kPositive},
          {"num_periods", 0.5, Range::kFinite},
          {"alpha", 0, Range::kNonNegative},
          {"beta", 1e-3, Range::kNonNegative}};
}

double LinearCosineDecay(const double* values, double initial, double step) {
  const double decay_steps = values[0], num_periods = values[1];
  const double alpha = values[2], beta = values[3];
  const double fraction = std::min(step, decay_steps) / decay_steps;
  const double cosine = 0.5 * (1.0 + std::cos(2.0 * kPi * num_periods * fraction));
  return initial * ((alpha + 1.0 - fraction) * cosine + beta);
}

}  // namespace

struct Schedule::Kind {
  const char* name;
  std::vector<Parameter> (*parameters)();
  double (*rate)(const double* values, double initial, double step);
};

// The entries are sorted by name.
const Schedule::Kind Schedule::kKinds[] = {
    {"cosine_decay", CosineParameters, CosineDecay},
    {"exponential_decay", RateParameters, ExponentialDecay},
    {"inverse_time_decay", RateParameters, InverseTimeDecay},
    {"linear_cosine_decay", LinearCosineParameters, LinearCosineDecay},
    {"natural_exponential_decay", NaturalExponentialParameters, NaturalExponentialDecay},
    {"polynomial_decay", PolynomialParameters, PolynomialDecay},
};

const Schedule::Kind* Schedule::Find(const std::string& name) {
  for (const Kind& kind : kKinds) {
    if (name == kind.name) return &kind;
  }
  return nullptr;
}

Result<Schedule> Schedule::Make(const std::string& name, const std::vector<Hyper>& parameters) {
  const Kind* kind = Find(name);
  if (kind == nullptr) {
    return InvalidArgument("Expected a learning rate schedule of " + JoinNames(kKinds) +
                           ". Received: \"" + name + "\".");
  }
  SOK_ASSIGN_OR_RETURN(const auto values,
                       BindParameters("Learning rate schedule \"{owner}\"", {"owner", name},
                                      kind->parameters(), parameters));
  Schedule schedule(kind);
  double* next = schedule.values_;
  for (const Hyper& hyper : values.all()) *next++ = hyper.value;
  return schedule;
}

const char* Schedule::name() const { return kind_->name; }

double Schedule::operator()(double initial, int64_t step) const {
  return kind_->rate(values_, initial, static_cast<double>(step));
}

std::vector<std::string> ScheduleNames() {
  std::vector<std::string> names;
  for (const Schedule::Kind& kind : Schedule::kKinds) names.push_back(kind.name);
  return names;
}

std::vector<Hyper> ScheduleDefaults(const std::string& name) {
  const Schedule::Kind* kind = Schedule::Find(name);
  return kind == nullptr ? std::vector<Hyper>() : Defaults(kind->parameters());
}

}  // namespace sok
