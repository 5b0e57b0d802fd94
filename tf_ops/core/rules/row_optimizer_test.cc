#include "core/rules/row_optimizer.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace sok {
namespace {

using Numbers = std::map<std::string, double>;
using Row64 = std::vector<double>;
// Makes one step of one row in float64, from hyperparameters, step number, gradient, weights and
// slots.
using Reference =
    std::function<void(const Numbers&, double, const Row64&, Row64&, std::vector<Row64>&)>;

struct Rule {
  std::string name;
  Numbers defaults;  // without weight_decay, if it is 0
  std::vector<std::string> slots;
  Reference reference;
  std::vector<Numbers> variants;  // changes of the defaults for further tests
};

// Returns true for the rules that deferred/deferred_test.cc tests.
bool IsDeferred(const std::string& rule) { return rule.rfind("deferred_", 0) == 0; }

double Sign(double x) { return (x > 0) - (x < 0); }

// The functions below are the formulas of Keras 3, written with its names.
void Sgd(const Numbers& h, double, const Row64& g, Row64& w, std::vector<Row64>&) {
  for (size_t j = 0; j < w.size(); ++j) w[j] -= g[j] * h.at("learning_rate");
}

void Momentum(const Numbers& h, double, const Row64& g, Row64& w, std::vector<Row64>& slots) {
  const double lr = h.at("learning_rate"), momentum = h.at("momentum");
  for (size_t j = 0; j < w.size(); ++j) {
    double& velocity = slots[0][j];
    velocity = momentum * velocity - lr * g[j];
    w[j] += h.at("nesterov") != 0 ? momentum * velocity - lr * g[j] : velocity;
  }
}

// This is the formula of tf.compat.v1.train.MomentumOptimizer.
void V1Momentum(const Numbers& h, double, const Row64& g, Row64& w, std::vector<Row64>& slots) {
  const double lr = h.at("learning_rate"), momentum = h.at("momentum");
  for (size_t j = 0; j < w.size(); ++j) {
    double& accumulation = slots[0][j];
    accumulation = momentum * accumulation + g[j];
    w[j] -= lr * (h.at("nesterov") != 0 ? g[j] + momentum * accumulation : accumulation);
  }
}

void Adagrad(const Numbers& h, double, const Row64& g, Row64& w, std::vector<Row64>& slots) {
  for (size_t j = 0; j < w.size(); ++j) {
    slots[0][j] += g[j] * g[j];
    w[j] -= h.at("learning_rate") * g[j] / std::sqrt(slots[0][j] + h.at("epsilon"));
  }
}

// This is FBGEMM's formula.
void RowwiseAdagrad(const Numbers& h, double, const Row64& g, Row64& w, std::vector<Row64>& slots) {
  double squares = 0;
  for (double x : g) squares += x * x;
  slots[0][0] += squares / static_cast<double>(g.size());
  for (size_t j = 0; j < w.size(); ++j) {
    w[j] -= h.at("learning_rate") / (std::sqrt(slots[0][0]) + h.at("epsilon")) * g[j];
  }
}

Reference Rmsprop(bool has_momentum, bool centered) {
  return [=](const Numbers& h, double, const Row64& g, Row64& w, std::vector<Row64>& slots) {
    const double rho = h.at("rho");
    for (size_t j = 0; j < w.size(); ++j) {
      double& velocity = slots[0][j];
      velocity = rho * velocity + (1 - rho) * g[j] * g[j];
      double denominator = velocity + h.at("epsilon");
      if (centered) {
        double& average = slots[has_momentum ? 2 : 1][j];
        average = rho * average + (1 - rho) * g[j];
        denominator -= average * average;
      }
      double increment = h.at("learning_rate") * g[j] / std::sqrt(denominator);
      if (has_momentum) {
        increment = slots[1][j] = h.at("momentum") * slots[1][j] + increment;
      }
      w[j] -= increment;
    }
  };
}

Reference Adam(bool amsgrad) {
  return [=](const Numbers& h, double t, const Row64& g, Row64& w, std::vector<Row64>& slots) {
    const double beta_1 = h.at("beta_1"), beta_2 = h.at("beta_2");
    const double alpha =
        h.at("learning_rate") * std::sqrt(1 - std::pow(beta_2, t)) / (1 - std::pow(beta_1, t));
    for (size_t j = 0; j < w.size(); ++j) {
      double& m = slots[0][j];
      double& v = slots[1][j];
      m += (g[j] - m) * (1 - beta_1);
      v += (g[j] * g[j] - v) * (1 - beta_2);
      if (amsgrad) slots[2][j] = std::max(slots[2][j], v);
      w[j] -= m * alpha / (std::sqrt(amsgrad ? slots[2][j] : v) + h.at("epsilon"));
    }
  };
}

void Ftrl(const Numbers& h, double, const Row64& g, Row64& w, std::vector<Row64>& slots) {
  const double lr = h.at("learning_rate"), power = -h.at("learning_rate_power");
  const double l1 = h.at("l1_regularization_strength");
  const double l2 = h.at("l2_regularization_strength") + h.at("beta") / (2 * lr);
  for (size_t j = 0; j < w.size(); ++j) {
    double& accumulator = slots[0][j];
    double& linear = slots[1][j];
    const double shrunk = g[j] + 2 * h.at("l2_shrinkage_regularization_strength") * w[j];
    const double updated = accumulator + g[j] * g[j];
    linear += shrunk - (std::pow(updated, power) - std::pow(accumulator, power)) / lr * w[j];
    const double quadratic = std::pow(updated, power) / lr + 2 * l2;
    w[j] = (std::clamp(linear, -l1, l1) - linear) / quadratic;
    accumulator = updated;
  }
}

// This is DeepRec's formula, of tensorflow/core/kernels/training_ali_ops.cc: the row's norm
// decides.
void GroupFtrl(const Numbers& h, double, const Row64& g, Row64& w, std::vector<Row64>& slots) {
  const double lr = h.at("learning_rate"), power = -h.at("learning_rate_power");
  const double l1 = h.at("l1_regularization_strength");
  const double l2 = h.at("l2_regularization_strength") + h.at("beta") / (2 * lr);
  Row64 &accumulator = slots[0], &linear = slots[1], updated(w.size());
  double squares = 0;
  for (size_t j = 0; j < w.size(); ++j) {
    const double shrunk = g[j] + 2 * h.at("l2_shrinkage_regularization_strength") * w[j];
    updated[j] = accumulator[j] + shrunk * shrunk;
    linear[j] +=
        shrunk - (std::pow(updated[j], power) - std::pow(accumulator[j], power)) / lr * w[j];
    squares += linear[j] * linear[j];
    accumulator[j] += g[j] * g[j];
  }
  const double norm = std::sqrt(squares);
  for (size_t j = 0; j < w.size(); ++j) {
    const double eta = std::pow(updated[j], power) / lr + 2 * l2;
    w[j] = norm > l1 ? (l1 - norm) / (eta * norm) * linear[j] : 0;
  }
}

void Lion(const Numbers& h, double, const Row64& g, Row64& w, std::vector<Row64>& slots) {
  const double beta_1 = h.at("beta_1"), beta_2 = h.at("beta_2");
  for (size_t j = 0; j < w.size(); ++j) {
    double& m = slots[0][j];
    w[j] -= h.at("learning_rate") * Sign(m * beta_1 + g[j] * (1 - beta_1));
    m = m * beta_2 + g[j] * (1 - beta_2);
  }
}

void Adadelta(const Numbers& h, double, const Row64& g, Row64& w, std::vector<Row64>& slots) {
  const double rho = h.at("rho"), epsilon = h.at("epsilon");
  for (size_t j = 0; j < w.size(); ++j) {
    double& gradients = slots[0][j];
    double& deltas = slots[1][j];
    gradients = rho * gradients + (1 - rho) * g[j] * g[j];
    const double delta = std::sqrt((deltas + epsilon) / (gradients + epsilon)) * g[j];
    deltas = rho * deltas + (1 - rho) * delta * delta;
    w[j] -= h.at("learning_rate") * delta;
  }
}

void Adamax(const Numbers& h, double t, const Row64& g, Row64& w, std::vector<Row64>& slots) {
  const double beta_1 = h.at("beta_1"), beta_2 = h.at("beta_2");
  for (size_t j = 0; j < w.size(); ++j) {
    double& m = slots[0][j];
    double& u = slots[1][j];
    m = beta_1 * m + (1 - beta_1) * g[j];
    u = std::max(beta_2 * u, std::abs(g[j]));
    w[j] -= h.at("learning_rate") / (1 - std::pow(beta_1, t)) * m / (u + h.at("epsilon"));
  }
}

// The product of beta_1 over the steps so far is multiplied up, step by step, as Keras does.
void Nadam(const Numbers& h, double t, const Row64& g, Row64& w, std::vector<Row64>& slots) {
  const double beta_1 = h.at("beta_1"), beta_2 = h.at("beta_2");
  const auto u = [&](double step) { return beta_1 * (1 - 0.5 * std::pow(0.96, step)); };
  double product = 1;
  for (double step = 1; step <= t; ++step) product *= u(step);
  for (size_t j = 0; j < w.size(); ++j) {
    double& m = slots[0][j];
    double& v = slots[1][j];
    m += (g[j] - m) * (1 - beta_1);
    v += (g[j] * g[j] - v) * (1 - beta_2);
    const double m_hat =
        u(t + 1) * m / (1 - product * u(t + 1)) + (1 - u(t)) * g[j] / (1 - product);
    const double v_hat = v / (1 - std::pow(beta_2, t));
    w[j] -= m_hat * h.at("learning_rate") / (std::sqrt(v_hat) + h.at("epsilon"));
  }
}

const Numbers kAdam = {
    {"learning_rate", 0.001}, {"beta_1", 0.9}, {"beta_2", 0.999}, {"epsilon", 1e-7}};
const Numbers kAdamW = {{"learning_rate", 0.001},
                        {"beta_1", 0.9},
                        {"beta_2", 0.999},
                        {"epsilon", 1e-7},
                        {"weight_decay", 0.004}};
const Numbers kRmsprop = {
    {"learning_rate", 0.001}, {"rho", 0.9}, {"epsilon", 1e-7}, {"initial_velocity", 0}};
const Numbers kRmspropMomentum = {{"learning_rate", 0.001},
                                  {"rho", 0.9},
                                  {"momentum", 0.9},
                                  {"epsilon", 1e-7},
                                  {"initial_velocity", 0}};
const Numbers kFtrl = {{"learning_rate", 0.001},
                       {"learning_rate_power", -0.5},
                       {"initial_accumulator_value", 0.1},
                       {"l1_regularization_strength", 0},
                       {"l2_regularization_strength", 0},
                       {"l2_shrinkage_regularization_strength", 0},
                       {"beta", 0}};

// The rules are sorted by name, as RowOptimizerNames is.
const std::vector<Rule>& Rules() {
  static const std::vector<Rule> rules = {
      {"adadelta",
       {{"learning_rate", 0.001}, {"rho", 0.95}, {"epsilon", 1e-7}},
       {"accumulated_grad", "accumulated_delta_var"},
       Adadelta,
       {{{"rho", 0}}, {{"rho", 0.5}, {"epsilon", 0.1}}}},
      {"adagrad",
       {{"learning_rate", 0.001}, {"initial_accumulator_value", 0.1}, {"epsilon", 1e-7}},
       {"accumulator"},
       Adagrad,
       {{{"initial_accumulator_value", 0}, {"epsilon", 1e-3}}}},
      {"adam",
       kAdam,
       {"momentum", "velocity"},
       Adam(false),
       {{{"beta_1", 0}}, {{"beta_2", 0.9}, {"epsilon", 0.1}}}},
      {"adamax", kAdam, {"m", "u"}, Adamax, {{{"beta_1", 0}}, {{"beta_2", 0.5}, {"epsilon", 0.1}}}},
      {"adamw", kAdamW, {"momentum", "velocity"}, Adam(false), {{{"weight_decay", 0}}}},
      {"amsgrad", kAdam, {"momentum", "velocity", "velocity_hat"}, Adam(true), {{{"beta_2", 0.5}}}},
      {"ftrl",
       kFtrl,
       {"accumulator", "linear"},
       Ftrl,
       {{{"learning_rate_power", -0.7}},
        {{"learning_rate_power", 0}},
        {{"beta", 1}, {"initial_accumulator_value", 0}},
        {{"l1_regularization_strength", 0.5},
         {"l2_regularization_strength", 0.1},
         {"l2_shrinkage_regularization_strength", 0.01}}}},
      {"group_ftrl",
       kFtrl,
       {"accumulator", "linear"},
       GroupFtrl,
       {{{"learning_rate_power", -0.7}},
        {{"learning_rate_power", 0}},
        {{"beta", 1}, {"initial_accumulator_value", 0}},
        {{"l1_regularization_strength", 0.5},
         {"l2_regularization_strength", 0.1},
         {"l2_shrinkage_regularization_strength", 0.01}},
        {{"l1_regularization_strength", 20}}}},
      {"lion",
       {{"learning_rate", 0.001}, {"beta_1", 0.9}, {"beta_2", 0.99}},
       {"momentum"},
       Lion,
       {{{"beta_1", 1}}, {{"beta_2", 0.5}}}},
      {"momentum",
       {{"learning_rate", 0.01}, {"momentum", 0.9}, {"nesterov", 0}},
       {"momentum"},
       Momentum,
       {{{"nesterov", 1}}, {{"momentum", 0.5}}}},
      {"nadam",
       kAdam,
       {"momentum", "velocity"},
       Nadam,
       {{{"beta_1", 0}}, {{"beta_1", 0.5}, {"beta_2", 0.9}, {"epsilon", 0.1}}}},
      {"rmsprop",
       kRmsprop,
       {"velocity"},
       Rmsprop(false, false),
       {{{"rho", 0.5}}, {{"initial_velocity", 1}}}},
      {"rmsprop_centered",
       kRmsprop,
       {"velocity", "average_gradient"},
       Rmsprop(false, true),
       {{{"rho", 0.5}, {"epsilon", 1e-3}}, {{"initial_velocity", 1}}}},
      {"rmsprop_centered_momentum",
       kRmspropMomentum,
       {"velocity", "momentum", "average_gradient"},
       Rmsprop(true, true),
       {{{"momentum", 0.5}}, {{"initial_velocity", 1}, {"epsilon", 1e-10}}}},
      {"rmsprop_momentum",
       kRmspropMomentum,
       {"velocity", "momentum"},
       Rmsprop(true, false),
       {{{"momentum", 0.5}}, {{"momentum", 0}, {"initial_velocity", 1}}}},
      {"rowwise_adagrad",
       {{"learning_rate", 0.01}, {"initial_accumulator_value", 0}, {"epsilon", 1e-8}},
       {"accumulator"},
       RowwiseAdagrad,
       {{{"initial_accumulator_value", 0.5}, {"epsilon", 0.1}}}},
      {"sgd", {{"learning_rate", 0.01}}, {}, Sgd, {}},
      {"v1_momentum",
       {{"learning_rate", 0.01}, {"momentum", 0.9}, {"nesterov", 0}},
       {"momentum"},
       V1Momentum,
       {{{"nesterov", 1}}, {{"momentum", 0.5}}}},
  };
  return rules;
}

Numbers WithWeightDecay(Numbers numbers) {
  numbers.insert({"weight_decay", 0});
  return numbers;
}

std::vector<Hyper> Hypers(const Numbers& numbers) {
  std::vector<Hyper> hypers;
  for (const auto& [name, value] : numbers) hypers.push_back({name, value});
  return hypers;
}

std::unique_ptr<RowOptimizer> MakeOrDie(const std::string& rule, const Numbers& numbers = {}) {
  Result<std::unique_ptr<RowOptimizer>> made = MakeRowOptimizer(rule, Hypers(numbers));
  REQUIRE_MESSAGE(made.ok(), made.status().message());
  return std::move(made.value());
}

// Holds rows like a table does: embeddings and slots, each row between two guards, not in the order
// of memory, at addresses that are only aligned to a float.
struct Rows {
  Rows(const RowOptimizer& optimizer, size_t n, int dim, std::mt19937& random)
      : slots(optimizer.slots(dim)) {
    stride = dim + 1;
    for (const Slot& slot : slots) stride += slot.width;
    floats.assign(n * stride + 1, kGuard);
    std::uniform_real_distribution<float> weight(-1, 1);
    for (size_t i = 0; i < n; ++i) {
      float* next = &floats[i * stride + 1];
      rows.push_back(next);
      for (int j = 0; j < dim; ++j) *next++ = weight(random);
      for (const Slot& slot : slots) next = std::fill_n(next, slot.width, slot.initial);
    }
    std::shuffle(rows.begin(), rows.end(), random);
  }

  bool GuardsStand() const {
    for (size_t i = 0; i < floats.size(); i += stride) {
      if (floats[i] != kGuard) return false;
    }
    return true;
  }

  static constexpr float kGuard = 12345.0f;
  std::vector<Slot> slots;
  size_t stride;
  std::vector<float> floats;
  std::vector<float*> rows;
};

struct Gradients {
  Gradients(size_t n, int dim, std::mt19937& random) : floats(n * dim) {
    std::normal_distribution<float> gradient(0, 1);
    for (float& g : floats) g = gradient(random);
    for (size_t i = 0; i < n; ++i) rows.push_back(&floats[i * dim]);
  }
  std::vector<float> floats;
  std::vector<const float*> rows;
};

void CheckAgainstReference(const Rule& rule, const Numbers& changes, int dim) {
  constexpr size_t kRows = 37;
  constexpr int kSteps = 12;
  Numbers numbers = WithWeightDecay(rule.defaults);
  for (const auto& [name, value] : changes) numbers[name] = value;
  const std::unique_ptr<RowOptimizer> optimizer = MakeOrDie(rule.name, numbers);
  std::mt19937 random(1234u + dim);
  Rows table(*optimizer, kRows, dim, random);

  std::vector<Row64> weights(kRows);
  std::vector<std::vector<Row64>> slots(kRows);
  for (size_t i = 0; i < kRows; ++i) {
    weights[i].assign(table.rows[i], table.rows[i] + dim);
    for (const Slot& slot : table.slots) slots[i].emplace_back(slot.width, slot.initial);
  }
  for (int step = 1; step <= kSteps; ++step) {
    const float scale = step % 2 ? 1.0f : 0.25f;
    const Gradients gradients(kRows, dim, random);
    optimizer->Apply({step, scale}, table.rows.data(), gradients.rows.data(), kRows, dim);
    for (size_t i = 0; i < kRows; ++i) {
      Row64 g(gradients.rows[i], gradients.rows[i] + dim);
      for (double& x : g) x *= scale;
      for (double& w : weights[i]) w -= w * numbers["weight_decay"] * numbers["learning_rate"];
      rule.reference(numbers, step, g, weights[i], slots[i]);
    }
  }
  auto distance = [](const float* row, const Row64& reference) {
    double most = 0;
    for (size_t j = 0; j < reference.size(); ++j) {
      most = std::max(most, std::fabs(row[j] - reference[j]) / (1 + std::fabs(reference[j])));
    }
    return most;
  };
  double in_weights = 0, in_slots = 0;
  for (size_t i = 0; i < kRows; ++i) {
    const float* row = table.rows[i];
    in_weights = std::max(in_weights, distance(row, weights[i]));
    row += dim;
    for (const Row64& slot : slots[i]) {
      in_slots = std::max(in_slots, distance(row, slot));
      row += slot.size();
    }
  }
  // 12 steps are rounded to float32, each by about 6e-8. Ftrl's linear is a sum of terms as large
  // as w / learning_rate, 1000 by default, which cancel each other.
  CHECK(in_weights < 1e-5);
  const bool is_ftrl = rule.name == "ftrl" || rule.name == "group_ftrl";
  CHECK(in_slots < (is_ftrl ? 2e-4 : 1e-5));
  CHECK(table.GuardsStand());
}

TEST_CASE("the registry has the rules of this table, those of sok_embed.kv, and no other") {
  std::vector<std::string> names;
  for (const Rule& rule : Rules()) names.push_back(rule.name);
  const std::vector<std::string> known = RowOptimizerNames();
  CHECK(std::is_sorted(known.begin(), known.end()));
  std::vector<std::string> here;
  for (const std::string& name : known) {
    if (name.rfind("kv_", 0) != 0 && !IsDeferred(name)) here.push_back(name);
  }
  CHECK(here == names);
}

TEST_CASE("a rule's parameters and defaults are Keras'") {
  for (const Rule& rule : Rules()) {
    CAPTURE(rule.name);
    Numbers defaults;
    for (const Hyper& hyper : RowOptimizerDefaults(rule.name)) defaults[hyper.name] = hyper.value;
    CHECK(defaults == WithWeightDecay(rule.defaults));
  }
  CHECK(RowOptimizerDefaults("unknown").empty());
}

TEST_CASE("a rule's slots have Keras' names, and depend on its name alone but for their values") {
  for (const Rule& rule : Rules()) {
    CAPTURE(rule.name);
    std::vector<Numbers> variants = rule.variants;
    variants.push_back({});
    for (const Numbers& variant : variants) {
      Numbers numbers = WithWeightDecay(rule.defaults);
      for (const auto& [name, value] : variant) numbers[name] = value;
      const std::vector<Slot> slots = MakeOrDie(rule.name, numbers)->slots(24);
      REQUIRE(slots.size() == rule.slots.size());
      for (size_t i = 0; i < slots.size(); ++i) {
        CHECK(slots[i].name == rule.slots[i]);
        CHECK(slots[i].width == (rule.name == "rowwise_adagrad" ? 1 : 24));
        const auto initial =
            numbers.find(slots[i].name == "accumulator" ? "initial_accumulator_value"
                                                        : "initial_" + slots[i].name);
        CHECK(slots[i].initial ==
              (initial == numbers.end() ? 0.0f : static_cast<float>(initial->second)));
      }
    }
  }
}

TEST_CASE("a slot that no training takes below 0 says that it sums squares, and no other does") {
  constexpr size_t kRows = 50;
  const int dim = 8;
  for (const std::string& rule : RowOptimizerNames()) {
    if (IsDeferred(rule)) continue;  // the caller's formula decides its slots
    const std::unique_ptr<RowOptimizer> optimizer = MakeOrDie(rule);
    std::mt19937 random(3);
    Rows table(*optimizer, kRows, dim, random);
    std::vector<float> least(table.slots.size(), HUGE_VALF);
    for (int64_t number = 1; number <= 20; ++number) {
      const Gradients gradients(kRows, dim, random);
      optimizer->Apply({number, 1.0f}, table.rows.data(), gradients.rows.data(), kRows, dim);
      for (const float* row : table.rows) {
        const float* slot = row + dim;
        for (size_t i = 0; i < table.slots.size(); slot += table.slots[i++].width) {
          least[i] = std::min(least[i], *std::min_element(slot, slot + table.slots[i].width));
        }
      }
    }
    for (size_t i = 0; i < table.slots.size(); ++i) {
      CAPTURE(rule);
      CAPTURE(table.slots[i].name);
      CHECK((least[i] >= 0) == table.slots[i].sums_squares);
    }
  }
  CHECK(RowOptimizerSlots("unknown", dim).empty());
}

TEST_CASE("a rule follows its formula in float64") {
  for (const Rule& rule : Rules()) {
    CAPTURE(rule.name);
    for (int dim : {1, 3, 8, 16, 17, 64}) {
      CAPTURE(dim);
      CheckAgainstReference(rule, {}, dim);
      CheckAgainstReference(rule, {{"learning_rate", 0.05}, {"weight_decay", 0.01}}, dim);
      for (Numbers variant : rule.variants) {
        variant["learning_rate"] = 0.05;
        CAPTURE(variant.begin()->first);
        CheckAgainstReference(rule, variant, dim);
      }
    }
  }
}

TEST_CASE("a row's update does not depend on the rows beside it") {
  constexpr size_t kRows = 41;
  for (const Rule& rule : Rules()) {
    CAPTURE(rule.name);
    const int dim = 19;
    const std::unique_ptr<RowOptimizer> optimizer = MakeOrDie(rule.name, {{"weight_decay", 0.1}});
    std::mt19937 first(7), second(7);
    Rows together(*optimizer, kRows, dim, first);
    Rows apart(*optimizer, kRows, dim, second);
    const Gradients gradients(kRows, dim, first);
    for (int64_t number : {1, 2, 1000000}) {
      optimizer->Apply({number, 0.5f}, together.rows.data(), gradients.rows.data(), kRows, dim);
      for (size_t i = kRows; i-- > 0;) {
        optimizer->Apply({number, 0.5f}, &apart.rows[i], &gradients.rows[i], 1, dim);
      }
    }
    CHECK(together.floats == apart.floats);
    optimizer->Apply({4, 1.0f}, nullptr, nullptr, 0, dim);
  }
}

TEST_CASE("the scale multiplies the gradient and nothing else") {
  for (const Rule& rule : Rules()) {
    CAPTURE(rule.name);
    const int dim = 16;
    const std::unique_ptr<RowOptimizer> optimizer = MakeOrDie(rule.name, {{"weight_decay", 0.1}});
    std::mt19937 first(9), second(9);
    Rows scaled(*optimizer, 5, dim, first);
    Rows plain(*optimizer, 5, dim, second);
    Gradients gradients(5, dim, first);
    optimizer->Apply({1, 0.25f}, scaled.rows.data(), gradients.rows.data(), 5, dim);
    for (float& g : gradients.floats) g *= 0.25f;
    optimizer->Apply({1, 1.0f}, plain.rows.data(), gradients.rows.data(), 5, dim);
    CHECK(scaled.floats == plain.floats);
  }
}

TEST_CASE("a zero gradient leaves finite numbers, whatever the accumulator starts from") {
  for (const Rule& rule : Rules()) {
    CAPTURE(rule.name);
    Numbers numbers;
    if (rule.defaults.count("initial_accumulator_value")) {
      numbers["initial_accumulator_value"] = 0;
    }
    if (rule.name == "rowwise_adagrad") numbers["epsilon"] = 0;
    const std::unique_ptr<RowOptimizer> optimizer = MakeOrDie(rule.name, numbers);
    std::mt19937 random(3);
    Rows table(*optimizer, 1, 8, random);
    const std::vector<float> zeros(8, 0.0f);
    const float* gradient = zeros.data();
    optimizer->Apply({1, 1.0f}, table.rows.data(), &gradient, 1, 8);
    CHECK(std::all_of(table.floats.begin(), table.floats.end(),
                      [](float x) { return std::isfinite(x); }));
  }
}

TEST_CASE("a NaN gradient shows in the weights") {
  for (const Rule& rule : Rules()) {
    CAPTURE(rule.name);
    const std::unique_ptr<RowOptimizer> optimizer = MakeOrDie(rule.name);
    std::mt19937 random(3);
    Rows table(*optimizer, 1, 8, random);
    const std::vector<float> nans(8, std::numeric_limits<float>::quiet_NaN());
    const float* gradient = nans.data();
    optimizer->Apply({1, 1.0f}, table.rows.data(), &gradient, 1, 8);
    for (int j = 0; j < 8; ++j) CHECK(std::isnan(table.rows[0][j]));
  }
}

std::string ErrorOf(const std::string& rule, const Numbers& numbers) {
  const Result<std::unique_ptr<RowOptimizer>> made = MakeRowOptimizer(rule, Hypers(numbers));
  REQUIRE(!made.ok());
  CHECK(made.status().code() == Code::kInvalidArgument);
  return made.status().message();
}

TEST_CASE("an unknown rule or parameter is an error that lists the known ones") {
  CHECK(ErrorOf("unknown", {}).find("\"unknown\"") != std::string::npos);
  for (const Rule& rule : Rules()) {
    CAPTURE(rule.name);
    CHECK(ErrorOf("unknown", {}).find(rule.name) != std::string::npos);
    const std::string error = ErrorOf(rule.name, {{"beta_3", 0.5}});
    CHECK(error.find("\"beta_3\"") != std::string::npos);
    for (const auto& [name, value] : rule.defaults) {
      CHECK(error.find(name) != std::string::npos);
    }
  }
}

TEST_CASE("a value that a rule cannot work with is an error that names it") {
  for (const Rule& rule : Rules()) {
    for (const auto& [name, value] : WithWeightDecay(rule.defaults)) {
      CAPTURE(rule.name);
      CAPTURE(name);
      for (double bad : {std::nan(""), HUGE_VAL, -HUGE_VAL, 1e39}) {
        CHECK(ErrorOf(rule.name, {{name, bad}}).find(name) != std::string::npos);
      }
    }
  }
  for (const auto& [rule, name, bad] : std::vector<std::tuple<const char*, const char*, double>>{
           {"adam", "beta_1", 1},
           {"adam", "beta_2", 1 - 1e-9},  // equal to 1 in float32
           {"adam", "beta_2", -0.1},
           {"adam", "epsilon", -1},
           {"adam", "weight_decay", -1},
           {"momentum", "momentum", 1.1},
           {"momentum", "nesterov", 0.5},
           {"v1_momentum", "nesterov", 0.5},
           {"rmsprop", "initial_velocity", -1},
           {"rmsprop", "rho", -0.1},
           {"adagrad", "initial_accumulator_value", -1},
           {"ftrl", "learning_rate", 0},
           {"ftrl", "learning_rate_power", 0.5},
           {"ftrl", "l1_regularization_strength", -1},
           {"lion", "beta_1", 0}}) {
    CAPTURE(rule);
    CAPTURE(bad);
    CHECK(ErrorOf(rule, {{name, bad}}).find(std::string("expected ") + name) != std::string::npos);
  }
}

}  // namespace
}  // namespace sok
