#include "core/stores/group_meta.h"

#include <cstdio>
#include <nlohmann/json.hpp>

namespace sok {
namespace {

constexpr int kFormat = 1;

}  // namespace

std::string GroupMeta::ToJson() const {
  nlohmann::ordered_json slots = nlohmann::ordered_json::array();
  for (const Slot& slot : state.slots) {
    slots.push_back({{"name", slot.name}, {"width", slot.width}, {"initial", slot.initial}});
  }
  const nlohmann::ordered_json json = {
      {"format", kFormat},
      {"dim", dim},
      {"initializer",
       {{"kind", initializer}, {"a", initializer_a}, {"b", initializer_b}, {"seed", seed}}},
      {"rule", state.rule},
      {"slots", slots},
      {"steps", state.steps},
      {"layout", layout},
      {"rows", rows},
      {"counted_at", counted_at},
  };
  return json.dump();
}

Result<GroupMeta> GroupMeta::FromJson(const std::string& text) {
  const auto damaged = [&] {
    return Status(Code::kDataLoss, "expected the description of a group, got: " + text);
  };
  try {
    const auto json = nlohmann::json::parse(text);
    const int format = json.at("format");
    if (format != kFormat) {
      return InvalidArgument("expected a group in format " + std::to_string(kFormat) + ", got " +
                             std::to_string(format) + "; a newer sok-embed wrote it");
    }
    GroupMeta meta;
    meta.dim = json.at("dim");
    const auto& initializer = json.at("initializer");
    meta.initializer = initializer.at("kind");
    meta.initializer_a = initializer.at("a");
    meta.initializer_b = initializer.at("b");
    meta.seed = initializer.at("seed");
    meta.state.rule = json.at("rule");
    for (const auto& slot : json.at("slots")) {
      meta.state.slots.push_back({slot.at("name"), slot.at("width"), slot.at("initial")});
    }
    meta.state.steps = json.at("steps");
    meta.layout = json.at("layout");
    meta.rows = json.at("rows");
    meta.counted_at = json.at("counted_at");
    if (meta.dim < 1) return damaged();
    return meta;
  } catch (const nlohmann::json::exception&) {
    return damaged();
  }
}

std::string GroupMetaName(int group) {
  char name[16];
  std::snprintf(name, sizeof(name), "%s%03d", kGroupMetaPrefix, group);
  return name;
}

}  // namespace sok
