#include "core/rules/schedule.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <tuple>
#include <vector>

namespace sok {
namespace {

Schedule MakeOrDie(const std::string& name, const std::vector<Hyper>& parameters) {
  const Result<Schedule> made = Schedule::Make(name, parameters);
  REQUIRE_MESSAGE(made.ok(), made.status().message());
  return made.value();
}

std::string ErrorOf(const std::string& name, const std::vector<Hyper>& parameters) {
  const Result<Schedule> made = Schedule::Make(name, parameters);
  REQUIRE(!made.ok());
  CHECK(made.status().code() == Code::kInvalidArgument);
  return made.status().message();
}

// Returns the required parameters of each schedule, by its name.
const std::map<std::string, std::vector<Hyper>>& Required() {
  static const std::map<std::string, std::vector<Hyper>> required = {
      {"cosine_decay", {{"decay_steps", 10}}},
      {"exponential_decay", {{"decay_steps", 10}, {"decay_rate", 0.5}}},
      {"inverse_time_decay", {{"decay_steps", 10}, {"decay_rate", 0.5}}},
      {"linear_cosine_decay", {{"decay_steps", 10}}},
      {"natural_exponential_decay", {{"decay_steps", 10}, {"decay_rate", 0.5}}},
      {"polynomial_decay", {{"decay_steps", 10}}},
  };
  return required;
}

std::vector<Hyper> With(const std::string& name, const std::vector<Hyper>& more) {
  std::vector<Hyper> parameters = Required().at(name);
  parameters.insert(parameters.end(), more.begin(), more.end());
  return parameters;
}

TEST_CASE("a schedule has the values that its formula gives by hand") {
  struct Case {
    const char* name;
    std::vector<Hyper> parameters;
    double initial;
    std::vector<std::tuple<int64_t, double>> values;
  };
  const double half = std::sqrt(0.5), e = std::exp(-0.5);
  for (const Case& c : std::vector<Case>{
           {"exponential_decay", {}, 0.8, {{0, 0.8}, {5, 0.8 * half}, {10, 0.4}, {30, 0.1}}},
           {"exponential_decay",
            {{"staircase", 1}},
            0.8,
            {{0, 0.8}, {9, 0.8}, {10, 0.4}, {39, 0.1}}},
           {"exponential_decay", {{"decay_rate", 2}}, 0.1, {{0, 0.1}, {30, 0.8}}},
           {"exponential_decay", {{"decay_rate", 0}}, 0.1, {{0, 0.1}, {1, 0}}},
           {"natural_exponential_decay", {}, 1, {{0, 1}, {10, e}, {20, e * e}}},
           {"natural_exponential_decay", {{"staircase", 1}}, 1, {{9, 1}, {19, e}, {20, e * e}}},
           {"inverse_time_decay", {}, 0.6, {{0, 0.6}, {10, 0.4}, {20, 0.3}, {5, 0.48}}},
           {"inverse_time_decay", {{"staircase", 1}}, 0.6, {{9, 0.6}, {10, 0.4}, {29, 0.3}}},
           {"polynomial_decay",
            {{"end_learning_rate", 0.1}},
            0.5,
            {{0, 0.5}, {5, 0.3}, {10, 0.1}, {99, 0.1}}},
           {"polynomial_decay", {}, 1.0001, {{0, 1.0001}, {5, 0.5001}, {10, 1e-4}}},
           {"polynomial_decay",
            {{"end_learning_rate", 0}, {"power", 2}},
            1,
            {{5, 0.25}, {9, 0.01}}},
           // The period becomes 20 after step 10, and 30 after step 20.
           {"polynomial_decay",
            {{"end_learning_rate", 0}, {"cycle", 1}},
            1,
            {{0, 1}, {5, 0.5}, {10, 0}, {15, 0.25}, {20, 0}, {21, 0.3}}},
           {"cosine_decay", {}, 2, {{0, 2}, {5, 1}, {10, 0}, {11, 0}}},
           {"cosine_decay", {{"alpha", 0.5}}, 2, {{0, 2}, {5, 1.5}, {10, 1}, {99, 1}}},
           {"cosine_decay", {{"decay_steps", 12}}, 1, {{4, 0.75}, {8, 0.25}}},
           {"cosine_decay",
            {{"warmup_target", 1}, {"warmup_steps", 4}},
            0.2,
            {{0, 0.2}, {1, 0.4}, {3, 0.8}, {4, 1}, {9, 0.5}, {14, 0}, {99, 0}}},
           {"cosine_decay", {{"warmup_target", 1}}, 0.2, {{0, 1}, {5, 0.5}}},
           {"cosine_decay", {{"warmup_steps", 4}}, 2, {{0, 2}, {5, 1}}},
           {"cosine_decay", {{"warmup_target", std::nan("")}, {"warmup_steps", 4}}, 2, {{0, 2}}},
           {"linear_cosine_decay", {}, 1, {{0, 1.001}, {5, 0.251}, {10, 0.001}, {99, 0.001}}},
           {"linear_cosine_decay",
            {{"num_periods", 1}, {"alpha", 1}, {"beta", 0}},
            1,
            {{0, 2}, {5, 0}, {10, 1}}}}) {
    CAPTURE(c.name);
    const Schedule schedule = MakeOrDie(c.name, With(c.name, c.parameters));
    CHECK(schedule.name() == std::string(c.name));
    for (const auto& [step, value] : c.values) {
      CAPTURE(step);
      CHECK(std::fabs(schedule(c.initial, step) - value) < 1e-15);
    }
  }
}

TEST_CASE("a schedule stays finite, and falls, for as long as a row can count") {
  for (const auto& [name, parameters] : Required()) {
    CAPTURE(name);
    const Schedule schedule = MakeOrDie(name, parameters);
    double last = HUGE_VAL;
    for (int64_t step : {0LL, 1LL, 2LL, 3LL, 5LL, 7LL, 9LL, 10LL, 11LL, 1000LL, 4294967294LL}) {
      const double now = schedule(0.1, step);
      CHECK(now >= 0);
      CHECK(now <= last);
      last = now;
    }
  }
}

TEST_CASE("a polynomial cycle ends at its end at every multiple of its steps") {
  for (double steps : {1.0, 3.0, 0.1, 7.3}) {
    const Schedule schedule =
        MakeOrDie("polynomial_decay",
                  {{"decay_steps", steps}, {"end_learning_rate", 0}, {"power", 0.5}, {"cycle", 1}});
    for (int64_t step = 0; step < 1000; ++step) {
      CHECK(schedule(1, step) >= 0);  // also false for NaN
      CHECK(schedule(1, step) <= 1);
    }
  }
}

TEST_CASE("an unknown schedule or parameter is an error that lists the known ones") {
  std::vector<std::string> names;
  for (const auto& [name, parameters] : Required()) names.push_back(name);
  CHECK(ScheduleNames() == names);
  CHECK(ScheduleDefaults("step_decay").empty());
  CHECK(ErrorOf("step_decay", {}).find("\"step_decay\"") != std::string::npos);
  for (const std::string& name : names) {
    CAPTURE(name);
    CHECK(ErrorOf("step_decay", {}).find(name) != std::string::npos);
    const std::string error = ErrorOf(name, With(name, {{"decay", 0.5}}));
    CHECK(error.find("\"" + name + "\"") != std::string::npos);
    CHECK(error.find("\"decay\"") != std::string::npos);
    for (const Hyper& hyper : ScheduleDefaults(name)) {
      CHECK(error.find(hyper.name) != std::string::npos);
    }
  }
}

TEST_CASE("a parameter without a default must be given") {
  for (const auto& [name, parameters] : Required()) {
    CAPTURE(name);
    for (const Hyper& left_out : parameters) {
      std::vector<Hyper> others;
      for (const Hyper& hyper : parameters) {
        if (hyper.name != left_out.name) others.push_back(hyper);
      }
      const std::string error = ErrorOf(name, others);
      CHECK(error.find("expected " + left_out.name) != std::string::npos);
      CHECK(error.find("no default") != std::string::npos);
    }
    for (const Hyper& hyper : ScheduleDefaults(name)) {
      const bool required = std::any_of(parameters.begin(), parameters.end(),
                                        [&](const Hyper& h) { return h.name == hyper.name; });
      CHECK(std::isnan(hyper.value) == (required || hyper.name == "warmup_target"));
    }
  }
}

TEST_CASE("a value that a schedule cannot work with is an error that names it") {
  for (const auto& [name, parameters] : Required()) {
    CAPTURE(name);
    for (const Hyper& hyper : ScheduleDefaults(name)) {
      CAPTURE(hyper.name);
      std::vector<double> bads = {HUGE_VAL, -HUGE_VAL};
      if (hyper.name != "warmup_target") bads.push_back(std::nan(""));
      if (hyper.name == "decay_steps") bads.insert(bads.end(), {0.0, -1.0});
      if (hyper.name == "staircase" || hyper.name == "cycle") bads.push_back(0.5);
      if (hyper.name == "power" || hyper.name == "warmup_steps") bads.push_back(-1);
      for (double bad : bads) {
        const std::string error = ErrorOf(name, With(name, {{hyper.name, bad}}));
        CHECK(error.find("expected " + hyper.name) != std::string::npos);
      }
    }
  }
  CHECK(ErrorOf("exponential_decay", {{"decay_steps", 0}, {"decay_rate", 0.5}}) ==
        "Learning rate schedule \"exponential_decay\": expected decay_steps to be a value above 0. "
        "Received: 0.");
}

}  // namespace
}  // namespace sok
