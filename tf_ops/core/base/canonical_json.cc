#include "core/base/canonical_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

namespace sok {
namespace {

// Has no trees of nlohmann's: see flat_json.h.
class Writer final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Writer(const std::string& omitted) : omitted_(omitted) {}

  std::string& text() { return text_; }

  bool null() override { return Add("null"); }
  bool boolean(bool value) override { return Add(value ? "true" : "false"); }
  bool number_integer(int64_t value) override { return Add(std::to_string(value)); }
  bool number_unsigned(uint64_t value) override { return Add(std::to_string(value)); }
  bool number_float(double value, const std::string&) override {
    return Add(nlohmann::json(value).dump());
  }
  bool string(std::string& value) override { return Add(Quoted(value)); }
  bool binary(nlohmann::json::binary_t&) override { return false; }  // never occurs in a text
  bool start_object(size_t) override { return Open(true); }
  bool end_object() override { return Close(); }
  bool start_array(size_t) override { return Open(false); }
  bool end_array() override { return Close(); }
  bool key(std::string& name) override {
    open_.back().name = name;
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::json::exception&) override {
    return false;
  }

 private:
  using Member = std::pair<std::string, std::string>;  // name and text
  struct Container {
    bool is_object;
    std::string name;  // that of the next value of an object
    std::vector<Member> members;
  };

  static std::string Quoted(const std::string& text) {
    return nlohmann::json(text).dump(-1, ' ', true);
  }
  bool Open(bool is_object) {
    open_.push_back({is_object, "", {}});
    return true;
  }
  bool Add(std::string text) {
    if (open_.empty()) {
      text_ = std::move(text);
    } else {
      open_.back().members.emplace_back(open_.back().name, std::move(text));
    }
    return true;
  }
  bool Close() {
    Container closed = std::move(open_.back());
    open_.pop_back();
    std::vector<Member>& members = closed.members;
    // The order of bytes in UTF-8 is that of code points.
    std::stable_sort(members.begin(), members.end(),
                     [](const Member& a, const Member& b) { return a.first < b.first; });
    std::string text;
    for (size_t i = 0; i < members.size(); ++i) {
      if (closed.is_object) {
        if (i + 1 < members.size() && members[i].first == members[i + 1].first) continue;
        if (open_.empty() && !omitted_.empty() && members[i].first == omitted_) continue;
      }
      if (!text.empty()) text += ',';
      if (closed.is_object) text += Quoted(members[i].first) + ':';
      text += members[i].second;
    }
    return Add(closed.is_object ? '{' + text + '}' : '[' + text + ']');
  }

  const std::string& omitted_;
  std::vector<Container> open_;
  std::string text_;
};

}  // namespace

std::optional<std::string> CanonicalJson(const std::string& text, const std::string& omitted) {
  Writer writer(omitted);
  if (!nlohmann::json::sax_parse(text, &writer)) return std::nullopt;
  return std::move(writer.text());
}

}  // namespace sok
