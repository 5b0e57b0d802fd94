// Descriptions of groups are read and written as a JSON library would do it.
#include "core/disk/group_meta.h"

#include <doctest/doctest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "core/base/test_result.h"
#include "core/base/test_threads.h"

namespace sok {
namespace {

class RandomMetas {
 public:
  GroupMeta Next() {
    GroupMeta meta;
    meta.dim = 1 + static_cast<int>(rng_() % 5000);
    meta.initializer = Text();
    meta.initializer_a = Real();
    meta.initializer_b = Real();
    meta.seed = rng_();
    meta.state.rule = Text();
    for (uint64_t slots = rng_() % 4; slots > 0; --slots) {
      meta.state.slots.push_back(
          {Text(), static_cast<int>(rng_() % 100), static_cast<float>(Real())});
    }
    meta.state.steps = static_cast<int64_t>(rng_()) >> rng_() % 64;
    meta.layout = static_cast<uint32_t>(rng_());
    meta.rows = rng_() >> rng_() % 64;
    meta.counted_at = static_cast<uint32_t>(rng_());
    if (rng_() % 2 == 0) {
      meta.form.row = static_cast<RowType>(rng_() % 4);
      meta.form.slots = rng_() % 2 == 0 ? RowType::kBFloat16 : RowType::kFloat32;
    }
    if (rng_() % 2 == 0) {
      AdmissionConfig& admission = meta.admission.emplace();
      admission.kind = Text();
      admission.min_count = static_cast<uint32_t>(rng_());
      admission.capacity = rng_();
      admission.false_positive_rate = Real();
      admission.counter_bits = static_cast<int>(rng_() % 17);
    }
    return meta;
  }

 private:
  std::string Text() {
    static const char* const kParts[] = {"adam", "\"",   "\\", "/",
                                         "\n",   "\x01", "ü",  "\xf0\x9f\x8c\xb3"};
    std::string text;
    for (uint64_t parts = rng_() % 5; parts > 0; --parts) text += kParts[rng_() % 8];
    return text;
  }
  double Real() {
    static const double kSpecial[] = {0.0, -0.0, 1.0, 0.1, 1e22, -1e-30, 0.05, 3.0e37};
    return rng_() % 2 == 0 ? kSpecial[rng_() % 8]
                           : std::uniform_real_distribution<double>(-1, 1)(rng_);
  }

  std::mt19937_64 rng_{TestSeed()};
};

nlohmann::ordered_json TreeOf(const GroupMeta& meta) {
  auto slots = nlohmann::ordered_json::array();
  for (const Slot& slot : meta.state.slots) {
    slots.push_back({{"name", slot.name}, {"width", slot.width}, {"initial", slot.initial}});
  }
  nlohmann::ordered_json tree = {{"format", meta.form.plain() ? 1 : 2},
                                 {"dim", meta.dim},
                                 {"initializer",
                                  {{"kind", meta.initializer},
                                   {"a", meta.initializer_a},
                                   {"b", meta.initializer_b},
                                   {"seed", meta.seed}}}};
  if (!meta.form.plain()) {
    tree["row_dtype"] = RowTypeName(meta.form.row);
    tree["slot_dtype"] = RowTypeName(meta.form.slots);
  }
  tree["rule"] = meta.state.rule;
  tree["slots"] = slots;
  tree["steps"] = meta.state.steps;
  tree["layout"] = meta.layout;
  tree["rows"] = meta.rows;
  tree["counted_at"] = meta.counted_at;
  if (meta.admission.has_value()) {
    const AdmissionConfig& admission = *meta.admission;
    tree["admission"] = {{"kind", admission.kind},
                         {"min_count", admission.min_count},
                         {"capacity", admission.capacity},
                         {"false_positive_rate", admission.false_positive_rate},
                         {"counter_bits", admission.counter_bits}};
  }
  return tree;
}

}  // namespace

TEST_CASE("the description of any group of a storage is the text that a JSON library makes") {
  RandomMetas metas;
  for (int i = 0; i < 2000; ++i) {
    const GroupMeta meta = metas.Next();
    auto tree = TreeOf(meta);
    CHECK(meta.ToJson() == tree.dump());
    tree["format"] = 1;  // in a dump, whose rows are float32
    tree["ttl"] = i;
    CHECK(meta.ToJson(i) == tree.dump());
  }
}

TEST_CASE("the description of a group of a storage is read whatever its order and its spaces") {
  RandomMetas metas;
  for (int i = 0; i < 2000; ++i) {
    const GroupMeta meta = metas.Next();
    nlohmann::json sorted = TreeOf(meta);
    sorted["later"] = {{"a", {1, 2}}, {"dim", 0}};  // a later version writes it
    for (const std::string& text :
         {meta.ToJson(), meta.ToJson(i), sorted.dump(i % 5), sorted.dump(-1, ' ', true)}) {
      CHECK(Value(GroupMeta::FromJson(text)).ToJson() == meta.ToJson());
    }
  }
}

TEST_CASE("a text of great depth is not a description, and takes no memory") {
  for (const char* opening : {"[", "{\"a\":"}) {
    std::string text;
    for (int depth = 0; depth < 200000; ++depth) text += opening;
    const Status status = GroupMeta::FromJson(text).status();
    CHECK(status.code() == Code::kDataLoss);
    CHECK(status.message().size() < 1100);
  }
}

TEST_CASE("a text of long names is not a description, and takes no memory") {
  const std::string name(60000, 'a');
  std::string zeros = "[0";
  for (int i = 0; i < 60000; ++i) zeros += ",0";
  for (const std::string& text :
       {"{\"" + name + "\":" + zeros + "]}", "{\"" + name + "\":0}",
        "{\"" + std::string(250, 'a') + "\":{\"" + std::string(250, 'b') + "\":" + zeros + "]}}"}) {
    const Status status = GroupMeta::FromJson(text).status();
    CHECK(status.code() == Code::kDataLoss);
    CHECK(status.message().size() < 1100);
  }
}

TEST_CASE("a damaged description of a group of a storage is an error that shows it") {
  RandomMetas metas;
  GroupMeta meta = metas.Next();
  meta.state.slots = {{"m", 4, 0.5f}};
  const auto code_of = [](const std::string& text) {
    const Status status = GroupMeta::FromJson(text).status();
    if (status.code() == Code::kDataLoss) {
      CHECK(status.message() == "expected the description of a group, got: " + text);
    }
    return status.code();
  };
  const std::string whole = meta.ToJson();
  REQUIRE(code_of(whole) == Code::kOk);
  for (size_t size = 0; size < whole.size(); ++size) {
    CHECK(code_of(whole.substr(0, size)) == Code::kDataLoss);
  }
  CHECK(code_of(whole + "}") == Code::kDataLoss);
  const nlohmann::json tree = TreeOf(meta);
  const nlohmann::json leaves = tree.flatten();
  for (const auto& leaf : leaves.items()) {
    CAPTURE(leaf.key());
    nlohmann::json without = leaves;
    without.erase(leaf.key());
    CHECK(code_of(without.unflatten().dump()) == Code::kDataLoss);
    for (const nlohmann::json& other : {nlohmann::json(nullptr), nlohmann::json::array(),
                                        leaf.value().is_string() ? nlohmann::json(1) : "1"}) {
      nlohmann::json changed = tree;
      changed[nlohmann::json::json_pointer(leaf.key())] = other;
      CHECK(code_of(changed.dump()) == Code::kDataLoss);
    }
  }
  for (const char* field : {"dim", "layout", "rows", "counted_at"}) {
    CAPTURE(field);
    nlohmann::json changed = tree;
    changed[field] = -1;
    CHECK(code_of(changed.dump()) == Code::kDataLoss);
    changed[field] = 1e30;
    CHECK(code_of(changed.dump()) == Code::kDataLoss);
  }
  nlohmann::json later = tree;
  later["format"] = 4;
  CHECK(GroupMeta::FromJson(later.dump()).status().message() ==
        "expected a group in format 1 to 3, got 4; a newer sok-embed wrote it");
  later["format"] = 2;  // whose types must be known
  later.erase("row_dtype");
  CHECK(code_of(later.dump()) == Code::kDataLoss);
  later["row_dtype"] = "int8";
  later["slot_dtype"] = "int8";
  CHECK(code_of(later.dump()) == Code::kDataLoss);
}

}  // namespace sok
