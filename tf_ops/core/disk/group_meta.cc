#include "core/disk/group_meta.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "core/base/flat_json.h"

namespace sok {
namespace {

constexpr int kFormat = 1;
// The format of a group whose rows are not float32. Versions that know only float32 refuse it. A
// dump has float32 rows of every group, so its groups have the first format, which those versions
// read.
constexpr int kFormatOfTypes = 2;
// The format of a group whose rows are float8_e4m3, whose name versions of the format 2 do not
// know, in a dump either.
constexpr int kFormatOfFloat8 = 3;

// Adds the value's JSON. nlohmann formats it as a value without children: see FlatJson.
template <typename T>
void Add(const char* before, const T& value, std::string* text) {
  *text += before;
  *text += nlohmann::json(value).dump();
}

// Returns the JSON of an admission, for the description of its group.
std::string AdmissionToJson(const AdmissionConfig& admission) {
  std::string text;
  Add("{\"kind\":", admission.kind, &text);
  Add(",\"min_count\":", admission.min_count, &text);
  Add(",\"capacity\":", admission.capacity, &text);
  Add(",\"false_positive_rate\":", admission.false_positive_rate, &text);
  Add(",\"counter_bits\":", admission.counter_bits, &text);
  return text + '}';
}

// Returns the beginning of a text, short enough for a message.
std::string Beginning(const std::string& text) {
  constexpr size_t kMost = 1000;
  return text.size() <= kMost ? text : text.substr(0, kMost) + "...";
}

}  // namespace

std::string GroupMeta::ToJson(std::optional<uint32_t> ttl) const {
  std::string text;
  const bool is_plain = form.plain() || ttl.has_value();
  const bool is_float8 = form.row == RowType::kFloat8E4M3;
  Add("{\"format\":", is_float8 ? kFormatOfFloat8 : is_plain ? kFormat : kFormatOfTypes, &text);
  Add(",\"dim\":", dim, &text);
  Add(",\"initializer\":{\"kind\":", initializer, &text);
  Add(",\"a\":", initializer_a, &text);
  Add(",\"b\":", initializer_b, &text);
  Add(",\"seed\":", seed, &text);
  text += '}';
  if (!form.plain()) {
    Add(",\"row_dtype\":", std::string(RowTypeName(form.row)), &text);
    Add(",\"slot_dtype\":", std::string(RowTypeName(form.slots)), &text);
  }
  Add(",\"rule\":", state.rule, &text);
  text += ",\"slots\":[";
  const char* before = "{\"name\":";
  for (const Slot& slot : state.slots) {
    Add(before, slot.name, &text);
    Add(",\"width\":", slot.width, &text);
    Add(",\"initial\":", slot.initial, &text);
    text += '}';
    before = ",{\"name\":";
  }
  Add("],\"steps\":", state.steps, &text);
  Add(",\"layout\":", layout, &text);
  Add(",\"rows\":", rows, &text);
  Add(",\"counted_at\":", counted_at, &text);
  if (admission.has_value()) text += ",\"admission\":" + AdmissionToJson(*admission);
  if (eviction.has_value()) text += ",\"eviction\":" + EvictionToJson(*eviction);
  if (ttl.has_value()) Add(",\"ttl\":", *ttl, &text);
  text += '}';
  return text;
}

Result<GroupMeta> GroupMeta::FromJson(const std::string& text) {
  const auto damaged = [&] {
    return Status(Code::kDataLoss, "expected the description of a group, got: " + Beginning(text));
  };
  const std::optional<FlatJson> json = FlatJson::Parse(text);
  int format = 0;
  if (!json.has_value() || !json->Get("/format", &format)) return damaged();
  if (format < kFormat || format > kFormatOfFloat8) {
    return InvalidArgument("expected a group in format " + std::to_string(kFormat) + " to " +
                           std::to_string(kFormatOfFloat8) + ", got " + std::to_string(format) +
                           "; a newer sok-embed wrote it");
  }
  GroupMeta meta;
  bool whole = json->Get("/dim", &meta.dim) && json->Get("/initializer/kind", &meta.initializer) &&
               json->Get("/initializer/a", &meta.initializer_a) &&
               json->Get("/initializer/b", &meta.initializer_b) &&
               json->Get("/initializer/seed", &meta.seed) && json->Get("/rule", &meta.state.rule) &&
               json->has_container("/slots") && json->Get("/steps", &meta.state.steps) &&
               json->Get("/layout", &meta.layout) && json->Get("/rows", &meta.rows) &&
               json->Get("/counted_at", &meta.counted_at);
  for (int i = 0; whole; ++i) {
    const std::string path = "/slots/" + std::to_string(i);
    if (!json->has(path)) break;
    Slot& slot = meta.state.slots.emplace_back();
    whole = json->Get(path + "/name", &slot.name) && json->Get(path + "/width", &slot.width) &&
            json->Get(path + "/initial", &slot.initial);
  }
  if (whole && (format != kFormat || json->has("/row_dtype"))) {
    std::string row, slots;
    whole = json->Get("/row_dtype", &row) && json->Get("/slot_dtype", &slots);
    const auto form = RowForm::Make(row, slots);
    if (!whole || !form.ok()) return damaged();
    meta.form = form.value();
  }
  if (whole && json->has_container("/admission")) {
    AdmissionConfig& admission = meta.admission.emplace();
    whole = json->Get("/admission/kind", &admission.kind) &&
            json->Get("/admission/min_count", &admission.min_count) &&
            json->Get("/admission/capacity", &admission.capacity) &&
            json->Get("/admission/false_positive_rate", &admission.false_positive_rate) &&
            json->Get("/admission/counter_bits", &admission.counter_bits);
  }
  if (whole && json->has_container("/eviction")) {
    EvictionConfig& eviction = meta.eviction.emplace();
    whole = json->Get("/eviction/kind", &eviction.kind);
    // Fields that the kind of eviction does not read are absent.
    json->Get("/eviction/max_age", &eviction.max_age);
    json->Get("/eviction/min_l2", &eviction.min_l2);
    json->Get("/eviction/every", &eviction.every);
  }
  if (!whole || meta.dim < 1) return damaged();
  return meta;
}

std::string EvictionToJson(const EvictionConfig& eviction) {
  std::string text;
  Add("{\"kind\":", eviction.kind, &text);
  if (eviction.kind == "max_age") Add(",\"max_age\":", eviction.max_age, &text);
  if (eviction.kind == "min_norm") {
    Add(",\"min_l2\":", eviction.min_l2, &text);
    Add(",\"every\":", eviction.every, &text);
  }
  return text + '}';
}

std::string GroupMetaName(int group) {
  char name[16];
  std::snprintf(name, sizeof(name), "%s%03d", kGroupMetaPrefix, group);
  return name;
}

}  // namespace sok
