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
#include <vector>

#include "core/rules/row_optimizer.h"
#include "core/rules/schedule.h"

namespace sok {
namespace {

using Numbers = std::map<std::string, double>;

// Updates one coordinate in float64, from hyperparameters, learning rate, update number, gradient,
// weight and slots.
using Reference = std::function<void(const Numbers&, double, double, double, double&, double*)>;

struct Rule {
  std::string name;
  std::string rate;
  Numbers defaults;
  std::vector<std::string> slots;
  Reference reference;
  std::vector<Numbers> variants;  // changes of the defaults under which it is tested too
};

double Sign(double x) { return (x > 0) - (x < 0); }

void Sgd(const Numbers& h, double lr, double, double g, double& w, double*) {
  w -= lr * (g + h.at("lambda") * w);
}

void Adagrad(const Numbers& h, double lr, double t, double g, double& w, double* slot) {
  g += h.at("lambda") * w;
  slot[0] += g * g;
  w -= lr / (1 + (t - 1) * h.at("eta")) * g / (std::sqrt(slot[0]) + h.at("epsilon"));
}

double AdamStep(const Numbers& h, double lr, double t, double g, double* slot, bool amsgrad) {
  const double beta1 = h.at("beta1"), beta2 = h.at("beta2");
  slot[0] = beta1 * slot[0] + (1 - beta1) * g;
  slot[1] = beta2 * slot[1] + (1 - beta2) * g * g;
  const double m_hat = slot[0] / (1 - std::pow(beta1, t));
  double v_hat = slot[1] / (1 - std::pow(beta2, t));
  if (amsgrad) v_hat = slot[2] = std::max(slot[2], v_hat);
  return lr * m_hat / (std::sqrt(v_hat) + h.at("epsilon"));
}

void Adam(const Numbers& h, double lr, double t, double g, double& w, double* slot) {
  w -= AdamStep(h, lr, t, g + h.at("lambda") * w, slot, false);
}

void Amsgrad(const Numbers& h, double lr, double t, double g, double& w, double* slot) {
  w -= AdamStep(h, lr, t, g + h.at("lambda") * w, slot, true);
}

void AdamW(const Numbers& h, double lr, double t, double g, double& w, double* slot) {
  w *= 1 - lr * h.at("lambda");
  w -= AdamStep(h, lr, t, g, slot, false);
}

void Lion(const Numbers& h, double lr, double, double g, double& w, double* slot) {
  const double beta1 = h.at("beta1"), beta2 = h.at("beta2");
  w -= lr * (Sign(beta1 * slot[0] + (1 - beta1) * g) + h.at("lambda") * w);
  slot[0] = beta2 * slot[0] + (1 - beta2) * g;
}

void Ftrl(const Numbers& h, double lr, double, double g, double& w, double* slot) {
  double &z = slot[0], &n = slot[1];
  const double sigma = (std::sqrt(n + g * g) - std::sqrt(n)) / lr;
  z += g - sigma * w;
  n += g * g;
  const double lambda1 = h.at("lambda1");
  const double denominator = (h.at("beta") + std::sqrt(n)) / lr + h.at("lambda2");
  if (denominator == 0) return;
  w = std::fabs(z) <= lambda1 ? 0 : -(z - Sign(z) * lambda1) / denominator;
}

const Numbers kAdam = {
    {"gamma", 1e-3}, {"beta1", 0.9}, {"beta2", 0.999}, {"lambda", 0}, {"epsilon", 1e-8}};
const Numbers kAdamW = {
    {"gamma", 1e-3}, {"beta1", 0.9}, {"beta2", 0.999}, {"lambda", 1e-2}, {"epsilon", 1e-8}};

// The rules are sorted by name, as RowOptimizerNames is.
const std::vector<Rule>& Rules() {
  static const std::vector<Rule> rules = {
      {"kv_adagrad",
       "gamma",
       {{"gamma", 1e-2}, {"lambda", 0}, {"eta", 0}, {"epsilon", 1e-10}},
       {"accumulator"},
       Adagrad,
       {{{"lambda", 0.05}}, {{"eta", 0.1}, {"epsilon", 0.1}}}},
      {"kv_adam",
       "gamma",
       kAdam,
       {"momentum", "velocity"},
       Adam,
       {{{"lambda", 0.05}}, {{"beta1", 0}}, {{"beta2", 0.9}, {"epsilon", 0.1}}}},
      {"kv_adamw",
       "gamma",
       kAdamW,
       {"momentum", "velocity"},
       AdamW,
       {{{"lambda", 0}}, {{"lambda", 0.5}, {"beta2", 0.9}}}},
      {"kv_amsgrad",
       "gamma",
       kAdam,
       {"momentum", "velocity", "velocity_hat"},
       Amsgrad,
       {{{"lambda", 0.05}}, {{"beta2", 0.5}}}},
      {"kv_ftrl",
       "alpha",
       {{"alpha", 5e-3}, {"beta", 0}, {"lambda1", 0}, {"lambda2", 0}},
       {"linear", "accumulator"},
       Ftrl,
       {{{"beta", 1}}, {{"lambda1", 0.5}, {"lambda2", 0.1}}, {{"lambda1", 200}}}},
      {"kv_lion",
       "eta",
       {{"eta", 3e-4}, {"beta1", 0.9}, {"beta2", 0.99}, {"lambda", 0.01}},
       {"momentum"},
       Lion,
       {{{"lambda", 0}}, {{"beta1", 0.5}, {"beta2", 0.5}, {"lambda", 0.5}}}},
      {"kv_sgd", "gamma", {{"gamma", 1e-3}, {"lambda", 0}}, {}, Sgd, {{{"lambda", 0.05}}}},
  };
  return rules;
}

std::unique_ptr<RowOptimizer> MakeOrDie(const std::string& rule, const Numbers& numbers,
                                        const Schedule* schedule = nullptr) {
  std::vector<Hyper> hypers;
  for (const auto& [name, value] : numbers) hypers.push_back({name, value});
  auto made = MakeRowOptimizer(rule, hypers, schedule);
  REQUIRE_MESSAGE(made.ok(), made.status().message());
  return std::move(made.value());
}

Schedule Halving() {
  return Schedule::Make("exponential_decay", {{"decay_steps", 40}, {"decay_rate", 0.5}}).value();
}

// Holds rows of the weights and then the slots, in float32 and in float64.
struct Rows {
  Rows(const RowOptimizer& optimizer, size_t n, int dim, std::mt19937& random) {
    size_t width = dim;
    for (const Slot& slot : optimizer.slots(dim)) width += slot.width;
    floats.assign(n, std::vector<float>(width, 0.0f));
    std::uniform_real_distribution<float> weight(-1, 1);
    for (auto& row : floats) std::generate_n(row.begin(), dim, [&] { return weight(random); });
    for (const auto& row : floats) exact.emplace_back(row.begin(), row.end());
  }
  std::vector<std::vector<float>> floats;
  std::vector<std::vector<double>> exact;
};

// Lion jumps when its sum changes sign, so the result for a sum close to 0 depends on rounding.
bool NearJump(const Rule& rule, const Numbers& h, double g, double m) {
  if (rule.name != "kv_lion" || g == 0) return false;
  const double sum = h.at("beta1") * m + (1 - h.at("beta1")) * g;
  return sum != 0 && std::fabs(sum) < 1e-5;
}

// Each update has only some of the rows, so that their step numbers differ. Each coordinate of a
// gradient is sometimes 0, and in the first two updates of row 0 all of them are.
void CheckAgainstReference(const Rule& rule, const Numbers& changes, int dim, bool scheduled) {
  constexpr size_t kRows = 9;
  constexpr int kSteps = 100;
  Numbers h = rule.defaults;
  for (const auto& [name, value] : changes) h[name] = value;
  const Schedule schedule = Halving();
  const auto optimizer = MakeOrDie(rule.name, h, scheduled ? &schedule : nullptr);
  const size_t slots = optimizer->slots(dim).size();
  std::mt19937 random(77u + dim);
  std::normal_distribution<float> normal(0, 1);
  Rows table(*optimizer, kRows, dim, random);
  // One row has many updates from the start, so its bias corrections are 1.
  std::vector<uint32_t> updates(kRows, 0);
  updates[4] = 4000000000u;
  for (int step = 1; step <= kSteps; ++step) {
    const float scale = step % 2 ? 1.0f : 0.25f;
    std::vector<size_t> chosen;
    std::vector<uint32_t> numbers;
    std::vector<std::vector<float>> gradients;
    for (size_t i = 0; i < kRows; ++i) {
      if (i > 0 && random() % 3 == 0) continue;
      chosen.push_back(i);
      numbers.push_back(++updates[i]);
      std::vector<float>& g = gradients.emplace_back(dim);
      for (int j = 0; j < dim; ++j) {
        g[j] = random() % 5 == 0 || (i == 0 && step <= 2) ? 0.0f : normal(random);
        const double m = slots > 0 ? table.exact[i][dim + j] : 0.0;
        while (NearJump(rule, h, g[j] * scale, m)) g[j] += 0.5f;
      }
    }
    std::vector<float*> rows;
    std::vector<const float*> pointers;
    for (size_t u = 0; u < chosen.size(); ++u) {
      rows.push_back(table.floats[chosen[u]].data());
      pointers.push_back(gradients[u].data());
    }
    // If this step number were used, the results would be wrong.
    optimizer->Apply({1000, scale, numbers.data()}, rows.data(), pointers.data(), rows.size(), dim);
    for (size_t u = 0; u < chosen.size(); ++u) {
      const double t = numbers[u];
      const double lr = h.at(rule.rate) * (scheduled ? std::exp2(-(t - 1) / 40) : 1);
      std::vector<double>& row = table.exact[chosen[u]];
      for (int j = 0; j < dim; ++j) {
        double slot[3];
        for (size_t k = 0; k < slots; ++k) slot[k] = row[(k + 1) * dim + j];
        rule.reference(h, lr, t, static_cast<double>(gradients[u][j]) * scale, row[j], slot);
        for (size_t k = 0; k < slots; ++k) row[(k + 1) * dim + j] = slot[k];
      }
    }
  }
  double most = 0;
  for (size_t i = 0; i < kRows; ++i) {
    // In float32 the rule's alpha is 0, and the reference divides by it.
    if (i == 4 && scheduled && rule.name == "kv_ftrl") continue;
    for (size_t j = 0; j < table.exact[i].size(); ++j) {
      const double exact = table.exact[i][j];
      const double distance = std::fabs(table.floats[i][j] - exact) / (1 + std::fabs(exact));
      most = std::max(most, std::isfinite(distance) ? distance : HUGE_VAL);
    }
  }
  // This allows for 100 roundings of float32 in the same direction, each of at most 6e-8.
  CHECK(most < 1e-5);
}

TEST_CASE("the registry has the kv rules of this table, with their parameters and slots") {
  std::vector<std::string> names, known;
  for (const Rule& rule : Rules()) names.push_back(rule.name);
  for (const std::string& name : RowOptimizerNames()) {
    if (name.rfind("kv_", 0) == 0) known.push_back(name);
  }
  CHECK(known == names);
  for (const Rule& rule : Rules()) {
    CAPTURE(rule.name);
    Numbers defaults;
    for (const Hyper& hyper : RowOptimizerDefaults(rule.name)) defaults[hyper.name] = hyper.value;
    CHECK(defaults == rule.defaults);
    std::vector<std::string> slots;
    for (const Slot& slot : MakeOrDie(rule.name, {})->slots(24)) {
      slots.push_back(slot.name);
      CHECK(slot.width == 24);
      CHECK(slot.initial == 0.0f);
    }
    CHECK(slots == rule.slots);
  }
}

TEST_CASE("a kv rule follows its formula in float64, each row by its own number") {
  for (const Rule& rule : Rules()) {
    CAPTURE(rule.name);
    for (bool scheduled : {false, true}) {
      CAPTURE(scheduled);
      for (int dim : {1, 3, 8, 17, 64}) {
        CAPTURE(dim);
        CheckAgainstReference(rule, {}, dim, scheduled);
        CheckAgainstReference(rule, {{rule.rate, 0.05}}, dim, scheduled);
        for (Numbers variant : rule.variants) {
          variant.insert({rule.rate, 0.02});
          CAPTURE(variant.begin()->first);
          CheckAgainstReference(rule, variant, dim, scheduled);
        }
      }
    }
  }
}

TEST_CASE("a row's own number counts as the step's would, for every rule") {
  constexpr int kDim = 19;
  // There are more numbers than a commit caches, and numbers that replace each other in the cache.
  std::vector<uint32_t> numbers;
  for (uint32_t i = 0; i < 300; ++i) numbers.push_back(1 + (i % 3 == 0 ? 64 * i : i % 90));
  for (const std::string& name : RowOptimizerNames()) {
    CAPTURE(name);
    const Schedule schedule = Halving();
    const bool kv = name.rfind("kv_", 0) == 0;
    const auto optimizer = MakeOrDie(name, {}, kv ? &schedule : nullptr);
    std::mt19937 first(5), second(5);
    Rows together(*optimizer, numbers.size(), kDim, first);
    Rows apart(*optimizer, numbers.size(), kDim, second);
    const std::vector<float> gradient(kDim, 0.3f);
    const std::vector<const float*> gradients(numbers.size(), gradient.data());
    std::vector<float*> rows;
    for (auto& row : together.floats) rows.push_back(row.data());
    optimizer->Apply({7, 0.5f, numbers.data()}, rows.data(), gradients.data(), rows.size(), kDim);
    for (size_t i = 0; i < numbers.size(); ++i) {
      float* row = apart.floats[i].data();
      optimizer->Apply({numbers[i], 0.5f}, &row, &gradients[i], 1, kDim);
    }
    CHECK(together.floats == apart.floats);
    optimizer->Apply({7, 0.5f, numbers.data()}, nullptr, nullptr, 0, kDim);
  }
}

// Returns the weights of one row of 8 after one update with a gradient whose elements have this
// value.
std::vector<float> After(const RowOptimizer& optimizer, float start, float gradient,
                         int64_t number = 1) {
  std::vector<float> row(8 * (1 + optimizer.slots(8).size()), 0.0f);
  std::fill_n(row.begin(), 8, start);
  const std::vector<float> gradients(8, gradient);
  float* rows = row.data();
  const float* pointer = gradients.data();
  optimizer.Apply({number, 1.0f}, &rows, &pointer, 1, 8);
  row.resize(8);
  return row;
}

TEST_CASE("a first gradient of 0 leaves the weights, epsilon or not, where nothing decays") {
  for (const Rule& rule : Rules()) {
    CAPTURE(rule.name);
    Numbers numbers;
    if (rule.defaults.count("epsilon")) numbers["epsilon"] = 0;
    if (rule.defaults.count("lambda")) numbers["lambda"] = 0;
    CHECK(After(*MakeOrDie(rule.name, numbers), 0.5f, 0.0f) == std::vector<float>(8, 0.5f));
  }
  // Here the weight becomes 0, as the formula has it.
  CHECK(After(*MakeOrDie("kv_ftrl", {{"beta", 1}}), 0.5f, 0.0f) == std::vector<float>(8, 0.0f));
  CHECK(After(*MakeOrDie("kv_ftrl", {{"lambda1", 1}}), 0.5f, 0.0f) == std::vector<float>(8, 0.5f));
}

TEST_CASE("a NaN gradient shows in the weights of a kv rule, at any epsilon") {
  for (const Rule& rule : Rules()) {
    CAPTURE(rule.name);
    Numbers numbers;
    if (rule.defaults.count("epsilon")) numbers["epsilon"] = 0;
    const float nan = std::numeric_limits<float>::quiet_NaN();
    for (float w : After(*MakeOrDie(rule.name, numbers), 0.5f, nan)) CHECK(std::isnan(w));
  }
}

TEST_CASE("a schedule that ends at 0 ends all change, of ftrl too") {
  const Schedule schedule = Schedule::Make("cosine_decay", {{"decay_steps", 10}}).value();
  for (const Rule& rule : Rules()) {
    CAPTURE(rule.name);
    const auto optimizer = MakeOrDie(rule.name, {}, &schedule);
    CHECK(After(*optimizer, 0.5f, 1.0f, 1) != std::vector<float>(8, 0.5f));
    CHECK(After(*optimizer, 0.5f, 1.0f, 11) == std::vector<float>(8, 0.5f));
    CHECK(After(*optimizer, 0.5f, 1.0f, 4000000000) == std::vector<float>(8, 0.5f));
  }
}

TEST_CASE("a rule with Keras' names takes no schedule, and says who does") {
  const Schedule schedule = Halving();
  for (const std::string& name : RowOptimizerNames()) {
    if (name.rfind("kv_", 0) == 0) continue;
    const auto made = MakeRowOptimizer(name, {}, &schedule);
    REQUIRE(!made.ok());
    CHECK(made.status().code() == Code::kInvalidArgument);
    CHECK(made.status().message() ==
          "Row optimizer \"" + name +
              "\": expected no learning rate schedule. Received: \"exponential_decay\". The rules "
              "that take one are kv_adagrad, kv_adam, kv_adamw, kv_amsgrad, kv_ftrl, kv_lion, "
              "kv_sgd.");
  }
}

TEST_CASE("a value that a kv rule cannot work with is an error that names it") {
  auto error = [](const std::string& rule, const std::string& name, double bad) {
    const auto made = MakeRowOptimizer(rule, {{name, bad}});
    REQUIRE(!made.ok());
    CHECK(made.status().code() == Code::kInvalidArgument);
    return made.status().message();
  };
  for (const Rule& rule : Rules()) {
    CAPTURE(rule.name);
    CHECK(error(rule.name, "beta3", 0.5).find("\"beta3\"") != std::string::npos);
    for (const auto& [name, value] : rule.defaults) {
      CAPTURE(name);
      for (double bad : {std::nan(""), HUGE_VAL, 1e39}) {
        CHECK(error(rule.name, name, bad).find("expected " + name) != std::string::npos);
      }
    }
  }
  for (const auto& [rule, name, bad] :
       std::vector<std::tuple<const char*, const char*, double>>{{"kv_adam", "beta1", 1},
                                                                 {"kv_adam", "beta2", -0.1},
                                                                 {"kv_adamw", "epsilon", -1},
                                                                 {"kv_amsgrad", "lambda", -1},
                                                                 {"kv_adagrad", "eta", -1},
                                                                 {"kv_ftrl", "alpha", 0},
                                                                 {"kv_ftrl", "beta", -1},
                                                                 {"kv_lion", "beta1", 0},
                                                                 {"kv_sgd", "lambda", -1}}) {
    CAPTURE(rule);
    CHECK(error(rule, name, bad).find(std::string("expected ") + name) != std::string::npos);
  }
}

}  // namespace
}  // namespace sok
